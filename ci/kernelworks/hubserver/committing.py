# SPDX-License-Identifier: Apache-2.0
"""Makes commits: the files first, then trees and the commit, and the reference last of all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pygit2
from pygit2.enums import FileMode

from kernelworks.hubserver import digests, names, objects, trees
from kernelworks.hubserver.changes import Add, AddLarge, Change, Delete
from kernelworks.hubserver.failures import Failure, bad_request, no_entry
from kernelworks.hubserver.objects import Pointer
from kernelworks.hubserver.references import Outcome, move
from kernelworks.hubserver.store import Repository, Store, signature
from kernelworks.hubserver.trees import Entry

Files = Mapping[str, Entry]


@dataclass(frozen=True)
class Incoming:
    """The files that came with a commit: how each will be listed, and where its bytes lie now."""

    entries: Files
    bytes_of: Mapping[str, Path]  # by blob

    @classmethod
    def of(cls, change: Change) -> Incoming:
        """Hash what came, before anybody waits for the lock."""
        entries, bytes_of = {}, {}
        for operation in change.operations:
            if isinstance(operation, Add):
                entry = _entry(operation)
                entries[operation.path] = entry
                bytes_of[entry.blob] = operation.content.file
        return cls(entries, bytes_of)


def commit(
    store: Store,
    repo_id: str,
    revision: str,
    change: Change,
    *,
    author: str,
    pull_request: bool,
    folder: Path,
) -> Outcome:
    """Make a commit on a branch, or as a pull request; one that is there already is answered again."""
    incoming = Incoming.of(change)
    with store.locked(repo_id):
        repository = store.open(repo_id)
        if pull_request:
            return _pull_request(repository, revision, change, incoming, author, folder)
        ref = _branch_ref(repository, revision)
        tip = repository.tip(ref)
        assert tip is not None
        _mend(repository, tip, incoming)
        files = _result(repository, tip, change, incoming)
        if files is None:
            return Outcome(ref, tip, tip)
        new = _write(repository, tip, files, change, incoming, author, folder)
        move(repository, ref, new)
        return Outcome(ref, tip, new)


def _branch_ref(repository: Repository, revision: str) -> str:
    names.revision(revision)
    for ref in (f"refs/heads/{revision}", revision):
        if ref.startswith(("refs/heads/", "refs/pr/")) and repository.tip(ref):
            return ref
    repository.resolve(revision)
    raise bad_request(f"revision {revision}: is no branch of {repository.id}; commits go to branches")


def _entry(operation: Add) -> Entry:
    content = operation.content
    oid = objects.git_oid_of(content.file)
    if content.size < objects.LARGE:
        return Entry(operation.path, oid, oid, content.size)
    pointer = Pointer(content.sha256, content.size)
    return Entry(operation.path, pointer.blob, oid, content.size, pointer)


def _result(repository: Repository, tip: str, change: Change, incoming: Incoming) -> Files | None:
    """The files after the change; None when the tip has them: then it is this very change, sent again."""
    now = repository.listing(tip).files
    parents = repository.commit(tip).parents
    asked = change.header.parent
    if asked in (None, tip):
        try:
            files = _applied(repository, now, change, incoming)
        except Failure:
            if asked or not _made(repository, parents, now, change, incoming):
                raise
            return None
        return None if _same(files, now) else files
    if asked in parents and _made(repository, parents, now, change, incoming):
        return None
    raise Failure(
        412,
        "PreconditionFailed",
        f"parentCommit {asked}: the branch of {repository.id} has moved to {tip}; look at it and try again",
    )


def _made(
    repository: Repository, parents: Iterable[str], now: Files, change: Change, incoming: Incoming
) -> bool:
    """Whether the change, made on the commit before the tip, gives the tip."""
    for parent in parents:
        try:
            before = repository.listing(parent).files
            if _same(_applied(repository, before, change, incoming), now):
                return True
        except Failure:
            continue
    return False


def _mend(repository: Repository, tip: str, incoming: Incoming) -> None:
    """Put files that the tip has, and that were damaged on the disk, back from what came."""
    now = repository.listing(tip).files
    for path, entry in incoming.entries.items():
        if path in now and now[path].blob == entry.blob and not repository.intact(entry):
            _store(repository, entry, incoming.bytes_of[entry.blob])


def _same(one: Files, other: Files) -> bool:
    return one.keys() == other.keys() and all(one[path].blob == other[path].blob for path in one)


def _applied(repository: Repository, before: Files, change: Change, incoming: Incoming) -> Files:
    """The files after the operations, in the order in which they came."""
    files = dict(before)
    for operation in change.operations:
        if isinstance(operation, Delete):
            _delete(files, operation, repository.id)
        elif isinstance(operation, AddLarge):
            files[operation.path] = _stored(repository, operation)
        else:
            files[operation.path] = incoming.entries[operation.path]
    folders = {str(parent) for path in files for parent in PurePosixPath(path).parents}
    for path in files:
        if path in folders:
            raise bad_request(f"path {path}: would be a file and a folder; delete one of them first")
    return files


def _delete(files: dict[str, Entry], operation: Delete, repo_id: str) -> None:
    gone = [
        path
        for path in files
        if (path.startswith(f"{operation.path}/") if operation.is_folder else path == operation.path)
    ]
    if not gone:
        raise no_entry(operation.path, repo_id)
    for path in gone:
        del files[path]


def _stored(repository: Repository, operation: AddLarge) -> Entry:
    """A large file that was uploaded to this repository: knowing a hash opens no other one's files."""
    size = repository.objects.size(operation.sha256)
    damaged = size is not None and not repository.objects.intact(Pointer(operation.sha256, size))
    if size is None or damaged or operation.size not in (None, size):
        raise bad_request(
            f"lfsFile {operation.path}: object {operation.sha256} of this size was not uploaded to "
            f"{repository.id}; upload it first"
        )
    pointer = Pointer(operation.sha256, size)
    return Entry(operation.path, pointer.blob, repository.objects.git_oid(pointer), size, pointer)


def _pull_request(
    repository: Repository, revision: str, change: Change, incoming: Incoming, author: str, folder: Path
) -> Outcome:
    base = repository.resolve(revision)
    if change.header.parent not in (None, base):
        raise Failure(412, "PreconditionFailed", f"parentCommit {change.header.parent}: is not {base}")
    files = _applied(repository, repository.listing(base).files, change, incoming)
    numbers = [int(ref.name) for ref in repository.refs() if ref.ref.startswith("refs/pr/")]
    last = f"refs/pr/{max(numbers, default=0)}"
    tip = repository.tip(last)
    if tip:
        found = repository.commit_object(tip)
        again = found.message == change.header.message and repository.commit(tip).parents == (base,)
        if again and _same(files, repository.listing(tip).files):
            return Outcome(last, tip, tip)
    new = _write(repository, base, files, change, incoming, author, folder)
    ref = f"refs/pr/{max(numbers, default=0) + 1}"
    move(repository, ref, new)
    return Outcome(ref, None, new)


def _write(
    repository: Repository,
    parent: str,
    files: Files,
    change: Change,
    incoming: Incoming,
    author: str,
    folder: Path,
) -> str:
    """Check the digests, then store files, trees and the commit, which nothing refers to yet."""
    before = repository.listing(parent).files
    changed = {path for path in files.keys() | before.keys() if files.get(path) != before.get(path)}
    for variant in sorted({found for path in changed if (found := digests.variant_of(path))}):
        if f"{variant}/{digests.METADATA}" in files:
            _check_digest(repository, variant, files, incoming, folder)
    index = pygit2.Index()
    for path, entry in files.items():
        if path in changed:
            _store(repository, entry, incoming.bytes_of.get(entry.blob))
        index.add(pygit2.IndexEntry(path, pygit2.Oid(hex=entry.blob), FileMode.BLOB))
    tree = index.write_tree(repository.bare)
    who = signature(author)
    made = repository.bare.create_commit(
        None, who, who, change.header.message, tree, [pygit2.Oid(hex=parent)]
    )
    return str(made)


def _check_digest(
    repository: Repository, variant: str, files: Files, incoming: Incoming, folder: Path
) -> None:
    """Lay the variant out as a folder, for the official code to judge."""
    laid_out = folder / "check" / variant
    for path, entry in files.items():
        if path.startswith(f"{variant}/"):
            target = folder / "check" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            source = incoming.bytes_of.get(entry.blob)
            # What came has become the object already where that one was damaged.
            if entry.pointer and not (source and source.exists()):
                source = repository.objects.path(entry.pointer.sha256)
            if source:
                target.symlink_to(source)
            else:
                target.write_bytes(trees.stored(repository.bare, entry.blob, pygit2.Blob).data)
    complaint = digests.complaint(laid_out, variant)
    if complaint:
        raise Failure(422, "DigestMismatch", complaint)


def _store(repository: Repository, entry: Entry, source: Path | None) -> None:
    """Put a file where it belongs; of the same content under two paths, the first one took the bytes."""
    if entry.pointer:
        if source and source.exists():
            repository.objects.add(source, entry.pointer.sha256, entry.oid)
        trees.put(repository.bare, entry.pointer.text)
    elif source:
        trees.put(repository.bare, source.read_bytes())
