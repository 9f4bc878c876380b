# SPDX-License-Identifier: Apache-2.0
"""What can speak against a release: the tree, the files, the changelog, the API, a tag."""

from __future__ import annotations

from pathlib import Path

import tomlkit

from kernelworks import catalog, checking, checks_build, provenance, release_api, release_git, release_notes
from kernelworks.catalog import Kernel
from kernelworks.errors import ReleaseError
from kernelworks.release_diff import Change, changes
from kernelworks.release_git import Tag
from kernelworks.release_notes import Section

MAIN = "main"


def tree(root: Path, *, allow_branch: bool) -> None:
    """A clean commit, on the branch that releases are made on."""
    origin = provenance.origin_of(root)
    if origin.commit is None:
        raise ReleaseError(f"a release is a tag on a commit, and here the {origin}")
    if origin.dirty:
        raise ReleaseError(
            "a release is a tag on a commit, and tracked files are changed; commit or restore them"
        )
    branch = release_git.branch_of(root)
    if branch != MAIN and not allow_branch:
        where = f"this is {branch}" if branch else "no branch is checked out"
        raise ReleaseError(
            f"releases are made on {MAIN}, and {where}; change to it, or insist with --allow-branch"
        )


def files(root: Path, kernel: Kernel) -> None:
    """What `kernelworks check` says, but for old builds: those of a release are still to be made."""
    checks = [check for check in checking.CHECKS if check is not checks_build.variants_are_sound]
    findings = [finding.line(root) for check in checks for finding in check(kernel)]
    if findings:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        raise ReleaseError(f"{findings[0]}{more}; see `kernelworks check {kernel.name}`")


def unpublished(kernel: Kernel) -> Section:
    """The section that the next release is going to have, with something in it."""
    section = _newest(kernel)
    where = f"kernels/{kernel.name}/CHANGELOG.md"
    if section.date is not None:
        raise ReleaseError(
            f"the newest section of {where} is {section.name}, which was released on {section.date}; "
            f"begin one with '## {section.version}.{section.number + 1} (not yet published)'"
        )
    if not section.has_entries:
        raise ReleaseError(
            f"the newest section of {where}, {section.name}, lists no change; write what changed"
        )
    return section


def changes_since(root: Path, kernel: Kernel, tag: Tag) -> list[Change]:
    """How the API of a kernel differs from that of an earlier release."""

    def then(path: str) -> str | None:
        return release_git.file_at(root, str(tag), f"kernels/{kernel.name}/{path}")

    def now(path: str) -> str | None:
        file = kernel.directory / path
        return file.read_text(encoding="utf-8") if file.is_file() else None

    manifest = then("build.toml")
    if manifest is None:
        raise ReleaseError(f"the tag {tag} has no kernels/{kernel.name}/build.toml; whose release is it?")
    earlier = catalog.from_document(tomlkit.parse(manifest).unwrap(), kernel.directory)
    return changes(release_api.of_kernel(earlier, then), release_api.of_kernel(kernel, now))


def check_tag(root: Path, kernel: Kernel, text: str) -> str:
    """One line that says that a tag, the manifest, the changelog and the commit agree; an error otherwise."""
    tag = release_git.parse(text)
    if tag.kernel != kernel.name:
        raise ReleaseError(f"{tag} is a release of {tag.kernel}, not of {kernel.name}")
    at, head = release_git.commit_of(root, f"refs/tags/{tag}"), release_git.commit_of(root, "HEAD")
    if at is None or at != head:
        where = f"is at {at[:12]}" if at else "does not exist here"
        raise ReleaseError(f"{tag} {where}, and checked out is {(head or 'nothing')[:12]}; check the tag out")
    if tag.version != kernel.version:
        raise ReleaseError(f"{tag} is of version {tag.version}, but build.toml has version {kernel.version}")
    section = _newest(kernel)
    if section.name != f"{tag.version}.{tag.number}" or section.date is None:
        state = "" if section.date else ", which is not yet published"
        raise ReleaseError(
            f"{tag}: the newest section of kernels/{kernel.name}/CHANGELOG.md is {section.name}{state}; "
            "`kernelworks release` makes tag and section in one go"
        )
    if not section.has_entries:
        raise ReleaseError(f"{tag}: kernels/{kernel.name}/CHANGELOG.md says nothing about it")
    earlier = [each for each in release_git.tags_of(root, kernel.name) if each < tag]
    if earlier and earlier[-1].version == tag.version != 0:
        for change in changes_since(root, kernel, earlier[-1]):
            if change.breaks:
                raise ReleaseError(f"{tag}: since {earlier[-1]}, {change.what}: a new version")
    after = earlier[-1] if earlier else "no other"
    return f"{tag}: version, changelog and commit {at[:12]} agree; after {after}"


def _newest(kernel: Kernel) -> Section:
    path = kernel.directory / "CHANGELOG.md"
    where = f"kernels/{kernel.name}/CHANGELOG.md"
    if not path.is_file():
        raise ReleaseError(f"there is no {where}, which says what a release changes")
    return release_notes.newest(path.read_text(encoding="utf-8"), where)
