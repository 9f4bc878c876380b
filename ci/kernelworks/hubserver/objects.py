# SPDX-License-Identifier: Apache-2.0
"""The large files of one repository, by sha256 beside it; git holds a pointer to each."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import pygit2

from kernelworks.hubserver.durable import make_folder, sync
from kernelworks.hubserver.failures import corrupted

LARGE = 256 * 1024  # git deflates what it holds, which is slow to read; from this size on it holds a pointer
POINTER_BYTES = 1024  # a pointer is shorter, says its specification
_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\noid sha256:([0-9a-f]{64})\nsize (0|[1-9][0-9]{0,18})\n"
)
CHUNK = 1024 * 1024


@dataclass(frozen=True)
class Pointer:
    """What git holds in the place of a large file."""

    sha256: str
    size: int

    @property
    def text(self) -> bytes:
        """The blob in git."""
        line = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {self.size}\n"
        return line.encode()

    @property
    def blob(self) -> str:
        """The id of that blob."""
        return str(pygit2.hash(self.text))


def pointer_in(data: bytes) -> Pointer | None:
    """The pointer that these bytes are, if they are one."""
    found = _POINTER.fullmatch(data) if len(data) < POINTER_BYTES else None
    return Pointer(found[1].decode(), int(found[2])) if found else None


class Objects:
    """The large files of one repository; each was hashed before it came in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, sha256: str) -> Path:
        """Where an object lies, or would."""
        return self.folder / sha256[:2] / sha256[2:4] / sha256

    def size(self, sha256: str) -> int | None:
        """How large a stored object is; None when it is not here."""
        try:
            return self.path(sha256).stat().st_size
        except FileNotFoundError:
            return None

    def intact(self, pointer: Pointer) -> bool:
        """Whether an object is here with the bytes that it was stored with."""
        path = self.path(pointer.sha256)
        return self.size(pointer.sha256) == pointer.size and _unchanged(path, pointer.sha256)

    def add(self, temporary: Path, sha256: str, git_oid: str) -> None:
        """Take over a file that has this sha256; afterwards it is whole and on the disk."""
        target = self.path(sha256)
        make_folder(target.parent)
        # A name that is there with other bytes behind it is mended by this.
        if self.intact(Pointer(sha256, temporary.stat().st_size)):
            return
        note = temporary.with_name(temporary.name + ".git")
        note.write_text(git_oid + "\n")
        for source, name in ((note, _note(target)), (temporary, target)):
            sync(source)
            source.replace(name)
        sync(target.parent)

    def git_oid(self, pointer: Pointer) -> str:
        """What git would call the content, for clients that compare by it."""
        target = self.path(pointer.sha256)
        try:
            noted = _note(target).read_text().strip()
            return noted if len(noted) == 40 else git_oid_of(target)
        except FileNotFoundError:
            # The note is lost, or the object itself; an id that no content has says that they differ.
            return git_oid_of(target) if target.is_file() else pointer.blob

    def open(self, pointer: Pointer, name: str) -> BinaryIO:
        """A large file to be read, after a look at whether it is still what was stored."""
        path = self.path(pointer.sha256)
        try:
            file = path.open("rb")
        except FileNotFoundError as error:
            raise corrupted(f"{name}: object {pointer.sha256} is missing") from error
        if os.fstat(file.fileno()).st_size != pointer.size or not _unchanged(path, pointer.sha256):
            file.close()
            raise corrupted(f"{name}: object {pointer.sha256} has other bytes than were stored")
        return file


def _unchanged(path: Path, sha256: str) -> bool:
    """Whether a file has this sha256: read once, and again when its date or size says that it changed."""
    found = path.stat()
    return _hash_matches(path, sha256, (found.st_ino, found.st_size, found.st_mtime_ns))


@lru_cache(maxsize=16_384)
def _hash_matches(path: Path, sha256: str, stamp: tuple[int, ...]) -> bool:
    return sha256_of(path) == sha256


def sha256_of(path: Path) -> str:
    """The sha256 of a file, read in pieces."""
    return _hashed(path, hashlib.sha256())


def git_oid_of(path: Path) -> str:
    """What git calls a file's content, read in pieces."""
    return _hashed(path, hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False))


def _hashed(path: Path, algorithm: hashlib._Hash) -> str:
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            algorithm.update(piece)
    return algorithm.hexdigest()


def _note(target: Path) -> Path:
    return target.with_name(target.name + ".git")
