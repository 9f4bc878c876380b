# SPDX-License-Identifier: Apache-2.0
"""A kernel in pure Python that any client loads, and its way onto a Hub with the stock client."""

from __future__ import annotations

import json
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi

from kernelworks import official

REPO = "acme/scale-it"
VARIANT = "torch-cpu"
CARD = "---\nlicense: mit\n---\n\n# scale-it\n\nMultiplies by {factor}.\n"


def write_variant(folder: Path, *, version: int = 1, factor: int = 2, name: str = VARIANT) -> Path:
    """`folder`/build/NAME, complete with its digest."""
    variant = folder / "build" / name
    variant.mkdir(parents=True)
    (variant / "__init__.py").write_text(f"def scale(x):\n    return {factor} * x\n")
    metadata = {
        "name": "scale-it",
        "id": f"_scale_it_{version}_{factor}",
        "version": version,
        "license": "MIT",
        "python-depends": [],
        "backend": {"type": "cpu"},
        "digest": official.digest(variant),
    }
    (variant / "metadata.json").write_text(json.dumps(metadata))
    return variant


def publish(
    endpoint: str,
    folder: Path,
    *,
    token: str | None = None,
    repo: str = REPO,
    version: int = 1,
    factor: int = 2,
) -> str:
    """Make a version branch with one variant, as any client would; the id of the commit."""
    api = HfApi(endpoint=endpoint, token=token or False)
    write_variant(folder, version=version, factor=factor)
    api.create_repo(repo, repo_type="kernel", exist_ok=True)
    api.create_branch(repo, branch=f"v{version}", repo_type="kernel", exist_ok=True)
    files = [path for path in folder.rglob("*") if path.is_file()]
    operations = [CommitOperationAdd(str(path.relative_to(folder)), path) for path in files]
    commit = api.create_commit(
        repo, operations, commit_message=f"scale-it v{version}.1", repo_type="kernel", revision=f"v{version}"
    )
    card = CommitOperationAdd("README.md", CARD.format(factor=factor).encode())
    api.create_commit(repo, [card], commit_message="card", repo_type="kernel")
    return str(commit.oid)
