# SPDX-License-Identifier: Apache-2.0
"""Looks for damage in a data directory: git's own check, and the bytes behind every pointer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pygit2
from pygit2.enums import ObjectType

from kernelworks.errors import ToolchainError
from kernelworks.hubserver import objects, trees
from kernelworks.hubserver.failures import Failure
from kernelworks.hubserver.objects import Pointer
from kernelworks.hubserver.settings import Settings
from kernelworks.hubserver.store import Repository, Store
from kernelworks.process import run


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it was stored."""

    repo: str
    what: str

    def __str__(self) -> str:
        return f"{self.repo}: {self.what}"


@dataclass(frozen=True)
class Report:
    """What was looked at, and what was found."""

    repositories: int
    large_files: int
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        found = f"{len(self.findings)} findings" if self.findings else "no damage"
        return f"{self.repositories} repositories, {self.large_files} large files: {found}"


def check(settings: Settings) -> Report:
    """Look at every repository; a server may be running meanwhile."""
    store = Store(settings)
    ids, large, findings = store.repositories(), 0, []
    for repo_id in ids:
        try:
            repository = store.open(repo_id)
            findings += [Finding(repo_id, what) for what in git_complaints(repository)]
            pointers = pointers_of(repository)
        except (Failure, pygit2.GitError, KeyError, OSError) as error:
            findings.append(Finding(repo_id, f"git cannot read it: {error}"))
            continue
        large += len(pointers)
        for pointer, paths in sorted(pointers.items(), key=lambda item: item[1]):
            if what := object_complaint(repository, pointer):
                findings.append(Finding(repo_id, f"{paths}: {what}"))
    return Report(len(ids), large, tuple(findings))


def git_complaints(repository: Repository) -> Iterator[str]:
    """What git says against objects and refs; dangling ones are what an interrupted commit leaves."""
    try:
        done = run(["git", "--git-dir", str(repository.git), "fsck", "--full", "--strict", "--no-dangling"])
    except ToolchainError:
        yield "git is not installed, so its objects were not checked; install it and check again"
        return
    lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    yield from (f"git fsck: {line}" for line in lines)
    if done.returncode and not lines:
        yield f"git fsck ended with code {done.returncode}"


def pointers_of(repository: Repository) -> dict[Pointer, str]:
    """Every large file that any commit of any ref holds, with a path that it has."""
    found: dict[Pointer, str] = {}
    seen: set[str] = set()
    pending = [tip for name in repository.bare.references if (tip := repository.tip(name))]
    while pending:
        commit = pending.pop()
        if commit not in seen:
            seen.add(commit)
            # Not by git's own walk: libgit2 would read an object that was cut short for ever.
            pending += repository.commit(commit).parents
            _collect(repository, str(repository.commit_object(commit).tree_id), "", seen, found)
    return found


def object_complaint(repository: Repository, pointer: Pointer) -> str | None:
    """What is wrong with the bytes behind a pointer, or None."""
    path = repository.objects.path(pointer.sha256)
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return f"object {pointer.sha256} is missing"
    if size != pointer.size:
        return f"object {pointer.sha256} has {size} bytes, not {pointer.size}"
    if objects.sha256_of(path) != pointer.sha256:
        return f"object {pointer.sha256} has other bytes than were stored"
    return None


def _collect(
    repository: Repository, tree: str, above: str, seen: set[str], found: dict[Pointer, str]
) -> None:
    """Most trees of a history are those of the commit before, and are read once."""
    if tree in seen:
        return
    seen.add(tree)
    for child in trees.stored(repository.bare, tree, pygit2.Tree):
        oid = str(child.id)
        if child.type == ObjectType.TREE:
            _collect(repository, oid, f"{above}{child.name}/", seen, found)
        elif child.type == ObjectType.BLOB and oid not in seen:
            seen.add(oid)
            _, size = trees.header(repository.bare, oid)
            small = size < objects.POINTER_BYTES
            data = trees.stored(repository.bare, oid, pygit2.Blob).data if small else b""
            if pointer := objects.pointer_in(data):
                found.setdefault(pointer, f"{above}{child.name}")
