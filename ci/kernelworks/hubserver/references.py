# SPDX-License-Identifier: Apache-2.0
"""Branches and tags: each change moves one reference, last of all, so readers see before or after."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pygit2
from pygit2.enums import ObjectType

from kernelworks.hubserver import names
from kernelworks.hubserver.failures import bad_request, conflict, no_revision
from kernelworks.hubserver.store import Repository, Store, signature

STALE_SECONDS = 3  # git holds a reference's lock for milliseconds; an older one is of a process that died


@dataclass(frozen=True)
class Outcome:
    """Where a reference is after a change, and where it was."""

    ref: str
    before: str | None
    commit: str

    @property
    def moved(self) -> bool:
        """False when what was asked for was there already."""
        return self.before != self.commit


def create_branch(store: Store, repo_id: str, branch: str, starting_point: str | None) -> Outcome:
    """A new branch at a revision, by default at the tip of `main`."""
    ref = f"refs/heads/{names.branch(branch)}"
    return _create_ref(store, repo_id, ref, starting_point or names.DEFAULT_BRANCH)


def create_tag(store: Store, repo_id: str, tag: str, revision: str, message: str, author: str) -> Outcome:
    """A new tag; with a message it is an object of its own."""
    ref = f"refs/tags/{names.tag(tag)}"
    if not message:
        return _create_ref(store, repo_id, ref, revision)
    with store.locked(repo_id):
        repository = store.open(repo_id)
        target = repository.resolve(revision)
        _refuse_existing(repository, ref)
        _wait_for_lock(repository.git / f"{ref}.lock")
        oid, who = pygit2.Oid(hex=target), signature(author)
        repository.bare.create_tag(tag, oid, ObjectType.COMMIT, who, message)
        return Outcome(ref, None, target)


def delete_ref(store: Store, repo_id: str, ref: str) -> Outcome:
    """Take a branch or tag away; its commits stay, as locks and caches name them for ever."""
    if ref == f"refs/heads/{names.DEFAULT_BRANCH}":
        raise bad_request(f"branch {names.DEFAULT_BRANCH}: is the default branch and cannot be deleted")
    with store.locked(repo_id):
        repository = store.open(repo_id)
        tip = repository.tip(ref)
        if tip is None:
            raise no_revision(repo_id, ref)
        keep = f"refs/keep/{tip}"
        if repository.tip(keep) is None:
            move(repository, keep, tip)
        _wait_for_lock(repository.git / f"{ref}.lock")
        _wait_for_lock(repository.git / "packed-refs.lock")
        repository.bare.references.delete(ref)
        return Outcome(ref, tip, tip)


def _create_ref(store: Store, repo_id: str, ref: str, revision: str) -> Outcome:
    with store.locked(repo_id):
        repository = store.open(repo_id)
        target = repository.resolve(revision)
        _refuse_existing(repository, ref)
        move(repository, ref, target)
        return Outcome(ref, None, target)


def _refuse_existing(repository: Repository, ref: str) -> None:
    """A branch and a tag of one name would leave open which of them a client means."""
    name = ref.split("/", 2)[2]
    for other in repository.refs():
        if other.ref.startswith(("refs/heads/", "refs/tags/")):
            if other.name == name:
                raise conflict(f"{repository.id} has {other.ref} already")
            if other.name.startswith(f"{name}/") or name.startswith(f"{other.name}/"):
                raise conflict(f"{repository.id} has {other.ref}, which leaves no room for {ref}")


def move(repository: Repository, ref: str, commit: str) -> None:
    """Have a reference name a commit: the one step that readers see."""
    _wait_for_lock(repository.git / f"{ref}.lock")
    target = pygit2.Oid(hex=commit)
    if ref in repository.bare.references:
        repository.bare.references[ref].set_target(target)
    else:
        repository.bare.references.create(ref, target)


def _wait_for_lock(lock: Path) -> None:
    """Every writer here holds the repository, so a lock that stays was left by a process that was killed."""
    while True:
        try:
            age = time.time() - lock.stat().st_mtime
        except FileNotFoundError:
            return
        if age > STALE_SECONDS:
            lock.unlink(missing_ok=True)
        else:
            time.sleep(0.05)
