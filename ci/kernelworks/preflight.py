# SPDX-License-Identifier: Apache-2.0
"""Everything that can stop a publication, looked at before anything is sent: first here, then on the Hub."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelworks import checks_build, checks_docs, checks_layout, manifest, official, releases
from kernelworks.catalog import Kernel
from kernelworks.errors import HubAccessError, PublishError
from kernelworks.finding import Finding
from kernelworks.hub import PUBLIC_HUB, Hub
from kernelworks.publish_plan import LocalFile, Parcel, Plan, Variant

REPO_ID = re.compile(r"[\w-][\w.-]*/[a-z][a-z0-9-]*[a-z0-9]")
# What a loader needs besides what the checks of a build look for; a digest may be right without it.
REQUIRED = ("__init__.py", "_ops.py")
LEFT_OUT = ("__pycache__", ".pyc")


@dataclass(frozen=True)
class Wish:
    """What was asked for on the command line."""

    repo_id: str | None = None
    branch: str | None = None
    source: Path | None = None  # a directory with variants, instead of the kernel's own build/
    release: int | None = None
    private: bool = False
    allow_dev: bool = False
    allow_dirty: bool = False
    pull_request: bool = False


def parcel(root: Path, kernel: Kernel, wish: Wish, *, public: bool) -> Parcel:
    """What is to be published, once nothing here speaks against it."""
    repo_id = repository(kernel, wish)
    branch = version_branch(kernel, wish)
    folder = variants_folder(kernel, wish.source)
    found = built(folder, strict=wish.source is None)
    if not found:
        raise PublishError(
            f"{_shown(folder, root)} holds no variant; run `kernelworks build {kernel.name}`"
            + ("" if wish.source is None else ", or name a directory that holds some with --from")
        )
    findings = [finding.line(root) for finding in findings_of(kernel, found)]
    findings += [line for path in found for line in _unwanted(path, wish, public=public)]
    _refuse(kernel, findings)
    variants = tuple(variant(path) for path in found)
    return Parcel(
        kernel=kernel,
        repo_id=repo_id,
        branch=branch,
        variants=variants,
        benchmarks=_benchmarks(kernel),
        card=_card(kernel, repo_id),
        sources=tuple(dict.fromkeys(_source(each.metadata) for each in variants)),
        notes=tuple(_notes(kernel, variants, repo_id)),
    )


def binaries(root: Path, plan: Plan) -> None:
    """Nothing speaks against the shared libraries of what is sent, either.

    Reading them takes longest, so what the Hub has already is left out: it is not sent again.
    """
    kernel = plan.parcel.kernel
    _refuse(
        kernel,
        [
            finding.line(root)
            for each in plan.sent_variants
            for finding in checks_build.binary_is_sound(
                kernel, checks_build.extension_of(each.folder, each.metadata), each.metadata
            )
        ],
    )


def _refuse(kernel: Kernel, findings: list[str]) -> None:
    if findings:
        listed = "".join(f"\n  {line}" for line in dict.fromkeys(findings))
        raise PublishError(f"nothing was sent; {kernel.name} cannot be published like this:{listed}")


def repository(kernel: Kernel, wish: Wish) -> str:
    """The repository on the Hub, which is named after the kernel."""
    where = f"kernels/{kernel.name}/build.toml" if wish.repo_id is None else "--repo-id"
    repo_id = wish.repo_id or kernel.repo_id
    if REPO_ID.fullmatch(repo_id) is None:
        raise PublishError(f"{where}: {repo_id!r} is no repository; write ORG/{kernel.name}")
    owner, _, tail = repo_id.partition("/")
    if tail != kernel.name:
        raise PublishError(
            f"{where}: {repo_id} is the repository of another kernel than {kernel.name}; "
            f"write {owner}/{kernel.name}"
        )
    return repo_id


def version_branch(kernel: Kernel, wish: Wish) -> str:
    """--branch before build.toml before v<version>; a branch of another version is refused."""
    written = manifest.read(kernel.directory)["general"]["hub"].get("branch")
    branch = wish.branch or written or releases.branch_of(kernel.version)
    where = "--branch" if wish.branch else f"kernels/{kernel.name}/build.toml"
    if branch == "main":
        raise PublishError(
            f"{where}: main holds the card alone; builds go to a branch like v{kernel.version}"
        )
    version = releases.version_of(branch)
    if version is not None and version != kernel.version:
        raise PublishError(
            f"{where}: {branch} is the branch of version {version}, but build.toml has version "
            f"{kernel.version}; publish to v{kernel.version}, or change build.toml and build again"
        )
    return str(branch)


def variants_folder(kernel: Kernel, source: Path | None) -> Path:
    """Where the variants lie: as our builder leaves them, or as Nix does (result/, or a bundle's build/)."""
    if source is None:
        return kernel.directory / "build"
    if not source.is_dir():
        raise PublishError(f"--from {source}: there is no such directory")
    inner = source / "build"
    return inner if inner.is_dir() and built(inner, strict=False) else source


def built(folder: Path, *, strict: bool) -> list[Path]:
    """The variants in a folder; in a kernel's own build/ every directory is meant to be one."""
    return sorted(
        path
        for path in (folder.iterdir() if folder.is_dir() else ())
        if path.is_dir()
        and (strict or (path / "metadata.json").exists() or re.match(r"torch\d*-|tvm-ffi", path.name))
    )


def findings_of(kernel: Kernel, variants: Iterable[Path]) -> Iterator[Finding]:
    """What `kernelworks check` has against names, texts and these variants, but for their binaries."""
    yield from checks_layout.names_agree(kernel)
    yield from checks_docs.versions_agree(kernel)
    yield from checks_docs.card_is_complete(kernel)
    for path in variants:
        yield from checks_build.variant_is_sound(kernel, path, binary=False)
        for name in REQUIRED:
            if not (path / name).is_file():
                yield Finding(path / name, "is missing, and nothing loads without it", checks_build.REBUILD)


def variant(path: Path) -> Variant:
    """A sound variant with its files; their hashes are in its digest already."""
    metadata = official.metadata_of(path) or {}
    hashes = {
        name: base64.b64decode(value).hex()
        for name, value in ((metadata.get("digest") or {}).get("files") or {}).items()
    }
    files = tuple(
        LocalFile(f"build/{path.name}/{name}", each, each.stat().st_size, hashes.get(name))
        for each in sorted(path.rglob("*"))
        for name in (each.relative_to(path).as_posix(),)
        if each.is_file() and not any(mark in name for mark in LEFT_OUT)
    )
    return Variant(path, files, metadata)


def rights(hub: Hub, repo_id: str, *, pull_request: bool = False) -> None:
    """A token that is there, valid, and allowed to write to the organization, as far as the Hub tells."""
    owner = repo_id.partition("/")[0]
    account = hub.account()
    if account is None:
        raise HubAccessError(
            f"no token for {hub.endpoint}, and publishing to {repo_id} needs one; "
            "set HF_TOKEN, or run `hf auth login`"
        )
    if account.role == "read":
        raise HubAccessError(
            f"the token of {account.name} is read-only, and publishing to {repo_id} writes; "
            "set HF_TOKEN to a token that may"
        )
    if pull_request:
        return  # anyone may propose
    everywhere = "*" in account.orgs
    if owner in account.readers or not (everywhere or owner in (account.name, *account.orgs)):
        may = ", ".join(each for each in (account.name, *account.orgs) if each not in account.readers)
        who = account.name or "the holder of this token"
        raise HubAccessError(
            f"{who} may not write to {owner} on {hub.endpoint}, only to {may or 'nothing'}; "
            f"ask {owner} for the right, or name another organization with --repo-id"
        )


def repository_type(hub: Hub, repo_id: str) -> None:
    """For a name with no kernel behind it: it must not be taken by a repository of another type."""
    if (other := hub.other_type_of(repo_id)) is not None:
        raise PublishError(
            f"{repo_id} on {hub.endpoint} is a {other} repository, not a kernel; "
            "name another with --repo-id, or have that one moved away"
        )


def _unwanted(path: Path, wish: Wish, *, public: bool) -> Iterator[str]:
    metadata = official.metadata_of(path) or {}
    profile = (metadata.get("kernelworks") or {}).get("profile")
    if profile == "dev" and public and not wish.allow_dev:
        yield (
            f"{path.name} is a dev build, and {PUBLIC_HUB} is for everyone; "
            "build it with --profile release, or insist with --allow-dev"
        )
    origin = (metadata.get("provenance") or {}).get("kernel") or {}
    if wish.allow_dirty:
        return
    if not origin.get("commit"):
        yield (
            f"{path.name} does not say which commit it was built from; "
            "build it in a git repository, or insist with --allow-dirty"
        )
    elif origin.get("dirty"):
        yield (
            f"{path.name} was built from {str(origin['commit'])[:12]} with uncommitted changes; "
            "commit and build again, or insist with --allow-dirty"
        )


def _source(metadata: Mapping[str, Any]) -> str:
    origin = (metadata.get("provenance") or {}).get("kernel") or {}
    if not origin.get("commit"):
        return "unknown"
    return str(origin["commit"]) + (" with uncommitted changes" if origin.get("dirty") else "")


def _benchmarks(kernel: Kernel) -> tuple[LocalFile, ...] | None:
    """None where the kernel has no benchmarks: then those on the Hub are left alone."""
    folder = kernel.directory / "benchmarks"
    if not folder.is_dir():
        return None
    return tuple(
        LocalFile(f"benchmarks/{path.name}", path, path.stat().st_size)
        for path in sorted(folder.glob("benchmark*.py"))
    )


def _card(kernel: Kernel, repo_id: str) -> bytes | None:
    """CARD.md with the repository that it is published to in its snippets, so that they run as they stand."""
    path = kernel.directory / "CARD.md"
    if not path.is_file():
        return None
    return re.sub(rf"\b{re.escape(kernel.repo_id)}\b", repo_id, path.read_text(encoding="utf-8")).encode()


def _notes(kernel: Kernel, variants: Iterable[Variant], repo_id: str) -> Iterator[str]:
    dev = [each.name for each in variants if (each.metadata.get("kernelworks") or {}).get("profile") == "dev"]
    if dev:
        yield f"dev builds, not for everyone: {', '.join(dev)}"
    if not (kernel.directory / "CARD.md").is_file():
        yield f"there is no CARD.md, so the README of {repo_id} stays as it is"
    elif repo_id != kernel.repo_id:
        yield f"the card says {kernel.repo_id}; it is published with {repo_id} in its place"
    if len({_source(each.metadata) for each in variants}) > 1:
        yield "the variants were built from different commits"


def _shown(path: Path, root: Path) -> Path:
    return path.relative_to(root) if path.is_relative_to(root) else path
