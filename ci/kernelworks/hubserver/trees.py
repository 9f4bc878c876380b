# SPDX-License-Identifier: Apache-2.0
"""What is in a commit: its files and folders, large files with their real size, kept by tree in memory."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import pygit2
from pygit2.enums import ObjectType

from kernelworks.hubserver import objects
from kernelworks.hubserver.failures import Failure, corrupted
from kernelworks.hubserver.objects import Objects, Pointer

HEADER_BYTES = 64  # of an object; its type and size, and what follows them
BEGINNING = 4096  # of its file: the code tables that zlib puts first can take some hundred bytes
KINDS = {
    b"blob": ObjectType.BLOB,
    b"commit": ObjectType.COMMIT,
    b"tag": ObjectType.TAG,
    b"tree": ObjectType.TREE,
}

Kind = TypeVar("Kind", pygit2.Blob, pygit2.Commit, pygit2.Tag, pygit2.Tree)


@dataclass(frozen=True)
class Entry:
    """A file or a folder of a commit."""

    path: str
    blob: str  # the id of the object in git: of a large file, its pointer's
    oid: str  # the git id of the content itself, which clients compare with their own files
    size: int
    pointer: Pointer | None = None
    is_folder: bool = False
    damaged: bool = False  # what git has of it, or the large file, is not there or cannot be read

    @property
    def etag(self) -> str:
        """One for each content, and hexadecimal: clients make it a file name."""
        return self.pointer.sha256 if self.pointer else self.blob

    def as_json(self) -> dict[str, Any]:
        """The entry as the clients read it."""
        kind = "directory" if self.is_folder else "file"
        lfs = {}
        if self.pointer:
            # The sha256 is this server's to say; no `xetHash`, which would send the client elsewhere.
            size, pointer_size = self.pointer.size, len(self.pointer.text)
            lfs = {"lfs": {"oid": self.pointer.sha256, "size": size, "pointerSize": pointer_size}}
        return {"type": kind, "oid": self.oid, "size": self.size, "path": self.path, **lfs}


@dataclass(frozen=True)
class Listing:
    """Everything in a tree, by path."""

    entries: dict[str, Entry]

    @property
    def files(self) -> dict[str, Entry]:
        """The files alone."""
        return {path: entry for path, entry in self.entries.items() if not entry.is_folder}

    def below(self, folder: str, *, recursive: bool) -> Sequence[Entry] | None:
        """What is in a folder ("" is the top), in the order of paths; None where there is no such folder."""
        if folder and not (folder in self.entries and self.entries[folder].is_folder):
            return None
        start = f"{folder}/" if folder else ""
        return [
            entry
            for path, entry in self.entries.items()
            if path.startswith(start) and (recursive or "/" not in path[len(start) :])
        ]


def listing(git: Path, tree: str) -> Listing:
    """The content of a tree of the bare repository `git`; trees never change, so it is read once."""
    found = _listing(git, tree)
    if any(entry.damaged for entry in found.entries.values()):
        _listing.cache_clear()  # it may be mended any time
    return found


@lru_cache(maxsize=16)
def _listing(git: Path, tree: str) -> Listing:
    repository = pygit2.Repository(str(git))
    large = Objects(git.with_suffix(".lfs"))
    root = stored(repository, tree, pygit2.Tree)
    return Listing({entry.path: entry for entry in sorted(_walk(repository, large, root, ""), key=_order)})


def stored(repository: pygit2.Repository, oid: str, kind: type[Kind]) -> Kind:
    """An object that must be in git, and whole; git compares what it reads with the id."""
    if damaged(Path(repository.path), oid):
        raise corrupted(f"git's {oid}")
    try:
        return repository[oid].peel(kind)
    except (KeyError, pygit2.GitError) as error:
        raise corrupted(f"git's {oid} ({error})") from error


def damaged(git: Path, oid: str) -> bool:
    """Whether an object has a file of its own that is not what was written."""
    path = _own_file(git, oid)
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    return not _whole(path, oid, (found.st_ino, found.st_size, found.st_mtime_ns))


@lru_cache(maxsize=16_384)
def _whole(path: Path, oid: str, stamp: tuple[int, ...]) -> bool:
    """Looked at here first: libgit2 1.9 never returns from reading a file that was cut short."""
    inflater, digest = zlib.decompressobj(), hashlib.sha1(usedforsecurity=False)
    try:
        with path.open("rb") as file:
            while piece := file.read(objects.CHUNK):
                digest.update(inflater.decompress(piece))
    except zlib.error:
        return False
    return inflater.eof and digest.hexdigest() == oid


def put(repository: pygit2.Repository, data: bytes) -> None:
    """Store a blob, also in the place of one that was damaged."""
    oid = str(pygit2.hash(data))
    git = Path(repository.path)
    if damaged(git, oid):
        _own_file(git, oid).unlink()
    repository.create_blob(data)


def header(repository: pygit2.Repository, oid: str) -> tuple[int, int]:
    """The type and the size of an object, of which no more than the beginning is read where it has a file."""
    try:
        with _own_file(Path(repository.path), oid).open("rb") as file:
            start = zlib.decompressobj().decompress(file.read(BEGINNING), HEADER_BYTES)
        kind, size = start.partition(b"\0")[0].split()
        return KINDS[kind], int(size)
    except FileNotFoundError:
        pass  # in a pack, which pygit2 of Python 3.10 can only read as a whole
    except (zlib.error, ValueError, KeyError) as error:
        raise corrupted(f"git's {oid} ({error})") from error
    try:
        found, data = repository.odb.read(oid)
    except (KeyError, pygit2.GitError) as error:
        raise corrupted(f"git's {oid} ({error})") from error
    return found, len(data)


def _own_file(git: Path, oid: str) -> Path:
    """Where git keeps an object that is in no pack."""
    return git / "objects" / oid[:2] / oid[2:]


def _walk(repository: pygit2.Repository, large: Objects, tree: pygit2.Tree, above: str) -> Iterator[Entry]:
    for child in tree:
        path = f"{above}{child.name}"
        oid = str(child.id)
        if child.type == ObjectType.TREE:
            yield Entry(path, oid, oid, 0, is_folder=True)
            yield from _walk(repository, large, stored(repository, oid, pygit2.Tree), f"{path}/")
        elif child.type == ObjectType.BLOB:
            yield _file(repository, large, path, oid)


def _file(repository: pygit2.Repository, large: Objects, path: str, oid: str) -> Entry:
    try:
        _, size = header(repository, oid)
        data = stored(repository, oid, pygit2.Blob).data if size < objects.POINTER_BYTES else b""
    except Failure:
        return Entry(path, oid, oid, 0, damaged=True)
    pointer = objects.pointer_in(data)
    if pointer:
        missing = large.size(pointer.sha256) is None
        return Entry(path, oid, large.git_oid(pointer), pointer.size, pointer, damaged=missing)
    return Entry(path, oid, oid, size)


def _order(entry: Entry) -> str:
    return entry.path
