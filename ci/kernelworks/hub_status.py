# SPDX-License-Identifier: Apache-2.0
"""`kernelworks status`: what a Hub serves of each kernel, and how that differs from what is here."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kernelworks import catalog, matrix, official, preflight, releases, rolling_back, verifying
from kernelworks.catalog import Kernel
from kernelworks.hub import Hub
from kernelworks.hub_data import Refs, RemoteFile, variants_in
from kernelworks.releases import Release

SAME, OTHER, HERE, THERE = "the same here", "differs from the build here", "only here", "not built here"


@dataclass(frozen=True)
class VersionStatus:
    """One version on the Hub."""

    version: int
    commit: str
    current: str | None  # the release whose content the branch has
    variants: tuple[str, ...]
    releases: tuple[Release, ...]


@dataclass(frozen=True)
class Status:
    """One repository on a Hub beside the working tree."""

    endpoint: str
    repo_id: str
    exists: bool
    versions: tuple[VersionStatus, ...] = ()
    here: int | None = None  # the version of the working tree; None where it has no such kernel
    builds: Mapping[str, str] | None = None  # each variant of that version: here, there, equal or not
    missing: tuple[str, ...] = ()  # of the complete matrix


def status(hub: Hub, repo_id: str, kernel: Kernel | None) -> Status:
    """Ask the Hub; with the kernel of the working tree, compare."""
    refs = hub.refs(repo_id)
    if refs is None:
        return Status(hub.endpoint, repo_id, False, here=kernel.version if kernel else None)
    trees = {
        version: hub.tree(repo_id, refs.branches[releases.branch_of(version)])
        for version in releases.versions(refs)
    }
    found = tuple(_version(hub, repo_id, refs, version, tree) for version, tree in trees.items())
    if kernel is None:
        return Status(hub.endpoint, repo_id, True, found)
    published = trees.get(kernel.version, {})
    variants = variants_in(published)
    return Status(
        endpoint=hub.endpoint,
        repo_id=repo_id,
        exists=True,
        versions=found,
        here=kernel.version,
        builds=compared(kernel, published),
        missing=tuple(name for name in matrix.complete(kernel) if name not in variants),
    )


def _version(
    hub: Hub, repo_id: str, refs: Refs, version: int, tree: Mapping[str, RemoteFile]
) -> VersionStatus:
    branch = releases.branch_of(version)
    tip = refs.branches[branch]
    known = releases.of_version(refs, version, hub.commits(repo_id, branch))
    current = rolling_back.current_of(hub, repo_id, known, tip)
    return VersionStatus(
        version, tip, current.tag if current else None, tuple(variants_in(tree)), tuple(known)
    )


def compared(kernel: Kernel, published: Mapping[str, RemoteFile]) -> dict[str, str]:
    """Each variant, here and there: two that have every file in common are the same."""
    folder = kernel.directory / "build"
    here = {path.name: path for path in preflight.built(folder, strict=False)}
    there = variants_in(published)
    return {
        name: THERE
        if name not in here
        else HERE
        if name not in there
        else SAME
        if _is_same(here[name], published)
        else OTHER
        for name in sorted({*here, *there})
    }


def _is_same(path: Path, published: Mapping[str, RemoteFile]) -> bool:
    if official.metadata_of(path) is None:
        return False
    local = {file.path: file for file in preflight.variant(path).files}
    remote = {name: file for name, file in published.items() if name.startswith(f"build/{path.name}/")}
    return local.keys() == remote.keys() and all(local[name].equals(remote[name]) for name in local)


def lines(found: Status) -> Iterator[str]:
    """For people."""
    yield f"{found.repo_id} on {found.endpoint}"
    if not found.exists:
        yield "  not published" + (f"; version {found.here} is here" if found.here is not None else "")
        return
    if not found.versions:
        yield "  no version is published"
    for version in found.versions:
        now = version.current or "no release: its content is that of none"
        yield f"  version {version.version}  {version.commit[:12]}, {now}"
        for release in reversed(version.releases):
            date = release.date.strftime("%Y-%m-%d %H:%M UTC") if release.date else "-"
            yield f"    {release.tag:<8}{release.commit[:12]}  {date}  source {release.source}"
        for name in version.variants:
            yield f"    {name}"
    if found.here is None:
        return
    if found.here not in {version.version for version in found.versions}:
        yield f"  here: version {found.here}, which is not published"
    for name, word in (found.builds or {}).items():
        yield f"  here: {name} {word}"
    if found.missing:
        yield f"  not there, of the builds for torch {matrix.TORCH}: {', '.join(found.missing)}"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `kernelworks status`."""
    parser = subparsers.add_parser(
        "status", help="show what is published, and how it differs from what is here", description=__doc__
    )
    parser.add_argument(
        "repo_ids", nargs="*", metavar="ORG/NAME", help="repositories (default: every kernel's own)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the status of each repository."""
    root = verifying.root_if_any(arguments.root)
    repo_ids: Sequence[str] = arguments.repo_ids
    if not repo_ids:
        root = catalog.root_of(arguments.root)
        repo_ids = [kernel.repo_id for kernel in catalog.load_all(root, ())]
    hub = Hub()
    found = [status(hub, repo_id, verifying.kernel_of(root, repo_id)) for repo_id in repo_ids]
    if arguments.json:
        print(json.dumps([asdict(each) for each in found], indent=2, default=str))
    else:
        print("\n\n".join("\n".join(lines(each)) for each in found))
    return 0
