# SPDX-License-Identifier: Apache-2.0
"""`kernelworks release`: decides a kernel's next version by what changed since its last, commits, tags."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import tomlkit

from kernelworks import catalog, checks_docs, release_checks, release_git, release_notes
from kernelworks.catalog import Kernel
from kernelworks.errors import ReleaseError
from kernelworks.release_diff import Change
from kernelworks.release_git import Tag
from kernelworks.release_notes import Section


@dataclass(frozen=True)
class ReleasePlan:
    """What is going to be released, and every file that changes with it."""

    tag: Tag
    last: Tag | None
    changes: tuple[Change, ...]  # of the API, since the last
    edits: Mapping[Path, str]
    notes: str  # of the changelog

    def lines(self, root: Path) -> Iterator[str]:
        """For people."""
        yield (
            f"{self.tag}, after {self.last}"
            if self.last
            else f"{self.tag}, the first release of {self.tag.kernel}"
        )
        for change in self.changes:
            yield f"  api     {change.what}{', which breaks callers' if change.breaks else ''}"
        if self.last and not self.changes:
            yield "  api     as it was"
        for path in sorted(self.edits):
            yield f"  edits   {path.relative_to(root)}"


def plan(root: Path, kernel: Kernel, *, api_change: bool, allow_branch: bool, today: str) -> ReleasePlan:
    """Everything about a release, once nothing speaks against it; touches nothing."""
    release_checks.tree(root, allow_branch=allow_branch)
    last = max(release_git.tags_of(root, kernel.name), default=None)
    found = release_checks.changes_since(root, kernel, last) if last else []
    tag = next_tag(kernel, last, found, api_change=api_change)
    if last and release_git.is_same(root, str(last), "HEAD", f"kernels/{kernel.name}"):
        raise ReleaseError(f"kernels/{kernel.name} is as it was at {last}; there is nothing to release")
    if release_git.commit_of(root, f"refs/tags/{tag}"):
        raise ReleaseError(f"the tag {tag} exists already; a release is never made twice")
    release_checks.files(root, kernel)
    section = release_checks.unpublished(kernel)
    edits = dict(_edits(kernel, tag, section, today))
    return ReleasePlan(tag, last, tuple(found), edits, section.body.strip())


def next_tag(kernel: Kernel, last: Tag | None, found: Sequence[Change], *, api_change: bool) -> Tag:
    """The version by the Hub's rule, which is that a version never breaks, and the number that follows."""
    written = kernel.version
    if last is None:
        if api_change:
            raise ReleaseError(
                f"--api-change: {kernel.name} has no release yet, so there is no API to change"
            )
        return Tag(written, 0, kernel.name)
    if written not in (last.version, last.version + 1):
        raise ReleaseError(
            f"kernels/{kernel.name}/build.toml has version {written}, but the last release is {last}; "
            f"write {last.version}, or {last.version + 1} for another API"
        )
    breaking = [change.what for change in found if change.breaks]
    # Of version 0 nobody expects that calls keep working.
    if breaking and written == last.version and written != 0 and not api_change:
        more = f" (and {len(breaking) - 1} more)" if len(breaking) > 1 else ""
        raise ReleaseError(
            f"since {last}, {breaking[0]}{more}, which breaks callers of version {written}; "
            "undo that, or release it as a new version with --api-change"
        )
    if written == last.version + 1 and not breaking and not api_change:
        raise ReleaseError(
            f"kernels/{kernel.name}/build.toml has version {written}, but nothing since {last} is seen "
            f"to break a caller; write version = {last.version}, or insist with --api-change"
        )
    if api_change or written != last.version:
        return Tag(last.version + 1, 0, kernel.name)
    return Tag(last.version, last.number + 1, kernel.name)


def carry_out(root: Path, release: ReleasePlan) -> None:
    """Write the files, commit them, and tag the commit."""
    for path, text in release.edits.items():
        path.write_text(text, encoding="utf-8")
    name = f"{release.tag.version}.{release.tag.number}"
    release_git.commit(root, release.edits, f"{release.tag.kernel}: release {name}")
    release_git.tag(root, str(release.tag), f"{release.tag.kernel} {name}\n\n{release.notes}\n")


def _edits(kernel: Kernel, tag: Tag, section: Section, today: str) -> Iterator[tuple[Path, str]]:
    if tag.version != kernel.version:
        manifest = kernel.directory / "build.toml"
        document = tomlkit.parse(manifest.read_text(encoding="utf-8"))
        document["general"]["version"] = tag.version
        yield manifest, tomlkit.dumps(document)
        texts: dict[Path, str] = {}
        # From the end, so that the places of the matches before stay where they are.
        for path, text, match in reversed(list(checks_docs.versions_named(kernel))):
            start, end = match.span(1)
            now = texts.get(path, text)
            texts[path] = f"{now[:start]}{tag.version}{now[end:]}"
        yield from texts.items()
    changelog = kernel.directory / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    yield changelog, release_notes.dated(text, section, f"{tag.version}.{tag.number}", today)


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `kernelworks release`."""
    parser = subparsers.add_parser(
        "release",
        help="decide a kernel's next version, and commit and tag it",
        description=__doc__,
        epilog="Pushing the tag is what publishes: it starts the release workflow.",
    )
    parser.add_argument("name", metavar="NAME", help="the kernel")
    parser.add_argument(
        "--api-change", action="store_true", help="a new version, because calls of the last one would break"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    parser.add_argument("--allow-branch", action="store_true", help="on another branch than main too")
    parser.add_argument(
        "--check-tag", metavar="TAG", help="make nothing; see that a tag says what the files at it say"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Release one kernel, or check a release's tag."""
    root = catalog.root_of(arguments.root)
    kernel = catalog.load(root, arguments.name)
    if arguments.check_tag is not None:
        if arguments.api_change or arguments.dry_run or arguments.allow_branch:
            raise ReleaseError(
                "--check-tag makes nothing; leave out --api-change, --dry-run and --allow-branch"
            )
        print(release_checks.check_tag(root, kernel, arguments.check_tag))
        return 0
    release = plan(
        root,
        kernel,
        api_change=arguments.api_change,
        allow_branch=arguments.allow_branch,
        today=datetime.now(timezone.utc).date().isoformat(),
    )
    print("\n".join(release.lines(root)))
    if arguments.dry_run:
        return 0
    carry_out(root, release)
    branch = release_git.branch_of(root) or "HEAD"
    print(f"committed and tagged; to publish it: git push origin {branch} {release.tag}")
    return 0
