# SPDX-License-Identifier: Apache-2.0
"""The fresh process of `kernelworks verify`: downloads a published version, checks it, and loads it.

It is a program, run with an empty cache. What it finds goes to a file after each step, so that a kernel
that takes the process down with it leaves everything before on record.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from kernelworks import official
from kernelworks.errors import KernelworksError
from kernelworks.hub import Hub
from kernelworks.hub_data import RemoteFile, variants_in

NOT_IN_DIGEST = ("metadata.json", "metadata.json.sigstore")
LOADING = "loading"  # the step during which a process that died was at work


@dataclass(frozen=True)
class Job:
    """What to verify."""

    repo_id: str
    branch: str
    commit: str
    version: int | None  # None: the branch serves no version, and is loaded by its name
    load: bool


@dataclass(frozen=True)
class Outcome:
    """What was found; `findings` is empty where nothing is wrong."""

    step: str = "downloading"
    snapshot: str | None = None
    variants: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    loaded: str | None = None  # the variant
    backend: str | None = None
    not_loaded: str | None = None  # why nothing was loaded, where that is no finding


def main(argv: list[str]) -> int:
    """`verify_child JOB OUTCOME`: the job as JSON, and the file that gets the outcome."""
    job, path = Job(**json.loads(argv[0])), Path(argv[1])
    hub = Hub()
    try:
        for outcome in steps(hub, job):
            path.write_text(json.dumps(asdict(outcome)), encoding="utf-8")
    except KernelworksError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def steps(hub: Hub, job: Job) -> Iterator[Outcome]:
    """Download, check, load: each step's outcome holds those before it."""
    snapshot = hub.snapshot(job.repo_id, job.commit)
    outcome = Outcome("checking", str(snapshot))
    yield outcome
    tree = hub.tree(job.repo_id, job.commit, "build")
    names = variants_in(tree)
    findings = [finding for name in names for finding in of_variant(snapshot, name, tree, job.version)]
    if not names:
        findings.append(f"{job.branch} of {job.repo_id} holds no variant")
    outcome = replace(outcome, variants=tuple(names), findings=tuple(findings))
    yield outcome
    # Nothing that is not what its digest says is run.
    if job.load and not findings:
        yield replace(outcome, step=LOADING)
        yield loaded(job, outcome)


def of_variant(
    snapshot: Path, name: str, tree: Mapping[str, RemoteFile], version: int | None
) -> Iterator[str]:
    """What is wrong with one variant as it was downloaded."""
    folder = snapshot / "build" / name
    metadata = official.metadata_of(folder)
    if metadata is None:
        yield f"{name}: there is no metadata.json that can be read"
        return
    if complaint := official.complaint_about_metadata(json.dumps(metadata)):
        yield f"{name}: metadata.json is not what the loader reads: {complaint}"
        return
    for violation in official.digest_violations(folder):
        yield f"{name}: is not as its digest says: {violation}"
    if version is not None and metadata["version"] != version:
        yield f"{name}: is of version {metadata['version']}, on the branch of version {version}"
    listed = {*NOT_IN_DIGEST, *((metadata.get("digest") or {}).get("files") or {})}
    for path in tree:
        parts = PurePosixPath(path).parts
        if parts[:2] != ("build", name) or "__pycache__" in parts:
            continue
        if (inner := "/".join(parts[2:])) not in listed:
            yield f"{name}: {inner} is in no digest"


def loaded(job: Job, outcome: Outcome) -> Outcome:
    """Load it as a user does; that no variant fits this machine is told apart from one that is broken."""
    # Here, because it imports torch.
    from kernels import get_kernel  # type: ignore[attr-defined]

    place: dict[str, Any] = {"version": job.version} if job.version is not None else {"revision": job.branch}
    missing = ""
    for backend in (None, "cpu"):
        try:
            module = get_kernel(job.repo_id, backend=backend, trust_remote_code=[job.repo_id], **place)
        except FileNotFoundError as error:
            missing = missing or " ".join(str(error).split())
            continue
        except Exception as error:  # whatever a kernel's own code raises while it is imported
            return replace(
                outcome, findings=(f"get_kernel failed: {type(error).__name__}: {error}",), step=LOADING
            )
        return _judged(Path(str(module.__file__)).parent, job, outcome)
    return replace(outcome, not_loaded=missing)


def _judged(folder: Path, job: Job, outcome: Outcome) -> Outcome:
    """Whether what was loaded is what was verified."""
    while folder.parent.name != "build" and folder != folder.parent:
        folder = folder.parent
    commit = folder.parent.parent.name
    if commit != job.commit:
        what = f"get_kernel loaded commit {commit[:12]}, but {job.branch} was at {job.commit[:12]}"
        return replace(outcome, findings=(f"{what}; somebody else published in the meantime",))
    metadata = official.metadata_of(folder) or {}
    return replace(outcome, step="loaded", loaded=folder.name, backend=metadata["backend"]["type"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
