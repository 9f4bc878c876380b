# SPDX-License-Identifier: Apache-2.0
"""What a publication changes on the Hub, decided before anything is sent."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from kernelworks import releases
from kernelworks.catalog import Kernel
from kernelworks.errors import PublishError
from kernelworks.hub_data import Edit, Refs, RemoteFile
from kernelworks.sizes import human

ADD, REPLACE, DELETE = "add", "replace", "delete"
MAIN = "main"
README = "README.md"
KEPT = ".gitattributes"  # all that a new version branch keeps of what it inherits


@dataclass(frozen=True)
class LocalFile:
    """A file to publish, and the path that it gets on the Hub."""

    path: str
    content: Path | bytes
    size: int
    sha256: str | None = None  # where a digest that was checked has it already

    def equals(self, remote: RemoteFile) -> bool:
        """Whether the Hub has these very bytes; hashes them only where the sizes agree."""
        if self.size != remote.size:
            return False
        if remote.sha256 is not None:
            return remote.sha256 == (self.sha256 or _hash("sha256", self.content))
        return remote.oid == _hash("sha1", self.content, f"blob {self.size}\0".encode())


@dataclass(frozen=True)
class Variant:
    """One built directory, sound."""

    folder: Path
    files: tuple[LocalFile, ...]
    metadata: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What it is called on the Hub, too."""
        return self.folder.name


@dataclass(frozen=True)
class Parcel:
    """All that is to be on the Hub afterwards."""

    kernel: Kernel
    repo_id: str
    branch: str
    variants: tuple[Variant, ...]
    benchmarks: tuple[LocalFile, ...] | None
    card: bytes | None
    sources: tuple[str, ...]  # the commits that the variants were built from
    notes: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[LocalFile, ...]:
        """What the version's branch gets."""
        return (*(file for each in self.variants for file in each.files), *(self.benchmarks or ()))


@dataclass(frozen=True)
class Remote:
    """What the Hub has now."""

    refs: Refs | None  # None: there is no such repository
    branch: Mapping[str, RemoteFile]  # of main, where the branch is still to be made from it
    main: Mapping[str, RemoteFile]
    is_fresh: bool  # whether nothing was ever published to the branch


@dataclass(frozen=True)
class Change:
    """What happens to one file."""

    action: str
    path: str
    size: int
    content: Path | bytes | None = None

    def edit(self) -> Edit:
        """The same for a commit."""
        return Edit(self.path, self.content)


@dataclass(frozen=True)
class BranchPlan:
    """One commit to one branch, or none where there is nothing to change."""

    branch: str
    parent: str | None  # None: the branch is made first, from main
    changes: tuple[Change, ...]

    def count(self, action: str) -> int:
        """How many files it adds, replaces or deletes."""
        return sum(change.action == action for change in self.changes)

    @property
    def sent(self) -> int:
        """The bytes of the files that travel."""
        return sum(change.size for change in self.changes if change.content is not None)


@dataclass(frozen=True)
class Plan:
    """A publication as it will be made."""

    parcel: Parcel
    endpoint: str
    creates_repository: bool
    private: bool
    build: BranchPlan
    card: BranchPlan
    release: str | None  # the tag; None on a branch that serves no version
    is_released: bool  # whether the branch, as it is now, has its tag
    starts_clean: bool  # whether nothing was ever published to the branch
    last: releases.Release | None  # the newest release of this version
    notes: tuple[str, ...]

    @property
    def is_nothing(self) -> bool:
        """Whether the Hub has all of it already."""
        return not self.build.changes and not self.card.changes and (self.is_released or self.release is None)

    @property
    def sent_variants(self) -> tuple[Variant, ...]:
        """Those of which any file travels; all, where the branch is still to be made and planned anew."""
        sent = {change.path for change in self.build.changes if change.content is not None}
        return tuple(
            each
            for each in self.parcel.variants
            if self.build.parent is None or any(file.path in sent for file in each.files)
        )

    @property
    def title(self) -> str:
        """The first line of the build's commit."""
        return f"{self.parcel.kernel.name} {self.release or self.build.branch}"

    @property
    def description(self) -> str:
        """The rest of it, for `kernelworks status`."""
        return releases.description(", ".join(self.parcel.sources), (v.name for v in self.parcel.variants))


def make(
    parcel: Parcel, remote: Remote, *, endpoint: str, private: bool = False, number: int | None = None
) -> Plan:
    """Compare, file by file; what equals is not sent again."""
    refs = remote.refs or Refs({}, {})
    tip = refs.branches.get(parcel.branch)
    version = releases.version_of(parcel.branch)
    known = [] if version is None else releases.of_version(refs, version)
    changes = _build_changes(parcel, remote)
    current = releases.at(known, tip) if tip and not changes else None
    tag = None if version is None else _next_tag(version, known, number, current)
    newest = max(releases.versions(refs), default=0)
    is_newest = newest <= parcel.kernel.version
    notes = [] if is_newest else [f"the README stays: it is of version {newest}, which is newer"]
    if private and remote.refs is not None:
        notes.append("--private changes nothing: the repository is there already")
    return Plan(
        parcel=parcel,
        endpoint=endpoint,
        creates_repository=remote.refs is None,
        private=private,
        build=BranchPlan(parcel.branch, tip, changes),
        card=BranchPlan(MAIN, refs.branches.get(MAIN), _card_changes(parcel, remote) if is_newest else ()),
        release=tag,
        is_released=current is not None,
        starts_clean=remote.is_fresh,
        last=known[-1] if known else None,
        notes=(*parcel.notes, *notes),
    )


def _next_tag(
    version: int, known: list[releases.Release], number: int | None, current: releases.Release | None
) -> str:
    if current is not None:
        return current.tag
    if number is not None and any(each.number == number for each in known):
        raise PublishError(
            f"--release {number}: {releases.tag_of(version, number)} is there already, with other content; "
            f"the next free one is {known[-1].number + 1}"
        )
    following = known[-1].number + 1 if known else 0
    return releases.tag_of(version, following if number is None else number)


def _build_changes(parcel: Parcel, remote: Remote) -> tuple[Change, ...]:
    """Additions, and the removal of what is left over: on a fresh branch all of it, otherwise only ours."""
    wanted = {file.path: file for file in parcel.files}
    return tuple(
        sorted(
            (
                *_additions(wanted.values(), remote.branch),
                *(
                    Change(DELETE, path, file.size)
                    for path, file in remote.branch.items()
                    if path not in wanted and _is_left_over(path, parcel, remote)
                ),
            ),
            key=lambda change: change.path,
        )
    )


def _is_left_over(path: str, parcel: Parcel, remote: Remote) -> bool:
    if remote.is_fresh:
        return path != KEPT
    parts = PurePosixPath(path).parts
    if parts[0] == "build" and len(parts) > 2:
        return parts[1] in {variant.name for variant in parcel.variants}
    is_benchmark = len(parts) == 2 and parts[0] == "benchmarks" and path.endswith(".py")
    return parcel.benchmarks is not None and is_benchmark and parts[1].startswith("benchmark")


def _card_changes(parcel: Parcel, remote: Remote) -> tuple[Change, ...]:
    if parcel.card is None:
        return ()
    return tuple(_additions([LocalFile(README, parcel.card, len(parcel.card))], remote.main))


def _additions(files: Iterable[LocalFile], there: Mapping[str, RemoteFile]) -> Iterator[Change]:
    for file in files:
        remote = there.get(file.path)
        if remote is None:
            yield Change(ADD, file.path, file.size, file.content)
        elif not file.equals(remote):
            yield Change(REPLACE, file.path, file.size, file.content)


def lines(plan: Plan) -> Iterator[str]:
    """The plan as it is printed."""
    parcel, kernel = plan.parcel, plan.parcel.kernel
    yield f"{kernel.name} version {kernel.version} to {parcel.repo_id} on {plan.endpoint}"
    kind = "private" if plan.private else "public"
    yield f"  repository  {f'kernel, new, {kind}' if plan.creates_repository else 'kernel, there already'}"
    yield f"  source      {', '.join(parcel.sources)}"
    yield f"  variants    {', '.join(variant.name for variant in parcel.variants)}"
    for branch in (plan.build, plan.card):
        if branch.changes or branch.parent is not None:
            yield from _branch_lines(branch)
    if plan.release and not plan.is_released:
        yield f"  release     {plan.release}, a tag that is made once the published build was verified"
    elif plan.release:
        yield f"  release     {plan.release}, made already"
    for note in plan.notes:
        yield f"  note        {note}"


def _branch_lines(branch: BranchPlan) -> Iterator[str]:
    new = "new" if branch.branch == MAIN else "new, from main"
    where = new if branch.parent is None else f"at {branch.parent[:12]}"
    if not branch.changes:
        yield f"  branch {branch.branch:<5}{where}: nothing to change"
        return
    counts = ", ".join(
        f"{count} {word}"
        for action, word in ((ADD, "added"), (REPLACE, "replaced"), (DELETE, "deleted"))
        if (count := branch.count(action))
    )
    yield f"  branch {branch.branch:<5}{where}: {counts}, {human(branch.sent)} to send"
    for change in branch.changes:
        yield f"    {change.action:<8}{change.path}  {human(change.size)}"


def _hash(algorithm: str, content: Path | bytes, before: bytes = b"") -> str:
    state = hashlib.new(algorithm, before, usedforsecurity=False)
    if isinstance(content, bytes):
        state.update(content)
    else:
        with content.open("rb") as file:
            while piece := file.read(1 << 20):
                state.update(piece)
    return state.hexdigest()
