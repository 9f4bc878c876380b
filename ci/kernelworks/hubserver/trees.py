# SPDX-License-Identifier: Apache-2.0
"""What is in a commit: its files and folders, large files with their real size, kept by tree in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import pygit2
from pygit2.enums import ObjectType

from kernelworks.hubserver import objects
from kernelworks.hubserver.failures import corrupted
from kernelworks.hubserver.objects import Objects, Pointer

Kind = TypeVar("Kind", pygit2.Blob, pygit2.Commit, pygit2.Tree)


@dataclass(frozen=True)
class Entry:
    """A file or a folder of a commit."""

    path: str
    blob: str  # the id of the object in git: of a large file, its pointer's
    oid: str  # the git id of the content itself, which clients compare with their own files
    size: int
    pointer: Pointer | None = None
    is_folder: bool = False

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


@lru_cache(maxsize=16)
def listing(git: Path, tree: str) -> Listing:
    """The content of a tree of the bare repository `git`; trees never change, so it is read once."""
    repository = pygit2.Repository(str(git))
    large = Objects(git.with_suffix(".lfs"))
    root = stored(repository, tree, pygit2.Tree)
    return Listing({entry.path: entry for entry in sorted(_walk(repository, large, root, ""), key=_order)})


def stored(repository: pygit2.Repository, oid: str, kind: type[Kind]) -> Kind:
    """An object that must be in git; git compares its bytes with its id when it reads them."""
    try:
        return repository[oid].peel(kind)
    except (KeyError, ValueError, pygit2.GitError) as error:
        raise corrupted(f"git's {oid} ({error})") from error


def size_of(repository: pygit2.Repository, oid: str) -> int:
    """The size of an object, without reading it."""
    try:
        return int(repository.odb.read_header(oid)[1])
    except (KeyError, pygit2.GitError) as error:
        raise corrupted(f"git's {oid} ({error})") from error


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
    size = size_of(repository, oid)
    if size < objects.POINTER_BYTES:
        pointer = objects.pointer_in(stored(repository, oid, pygit2.Blob).data)
        if pointer:
            return Entry(path, oid, large.git_oid(pointer.sha256), pointer.size, pointer)
    return Entry(path, oid, oid, size)


def _order(entry: Entry) -> str:
    return entry.path
