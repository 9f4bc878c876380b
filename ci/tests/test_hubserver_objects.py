# SPDX-License-Identifier: Apache-2.0
"""Large files by their sha256: stored whole, found again, and never served when they are not the same."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from kernelworks.hubserver import objects
from kernelworks.hubserver.failures import Failure
from kernelworks.hubserver.objects import Objects, Pointer

DATA = os.urandom(300_000)
SHA256 = hashlib.sha256(DATA).hexdigest()
POINTER = Pointer(SHA256, len(DATA))


@pytest.fixture
def stored(tmp_path: Path) -> Objects:
    found = Objects(tmp_path / "toy.lfs")
    put(found, tmp_path / "incoming")
    return found


def put(into: Objects, incoming: Path) -> None:
    incoming.write_bytes(DATA)
    into.add(incoming, SHA256, objects.git_oid_of(incoming))


def test_a_pointer_is_what_git_lfs_writes() -> None:
    assert objects.pointer_in(POINTER.text) == POINTER
    for text in (POINTER.text + b"x", POINTER.text[:-1], b"", POINTER.text.replace(b"v1", b"v2")):
        assert objects.pointer_in(text) is None


def test_the_ids_are_those_of_git_itself(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    asked = subprocess.run(["git", "hash-object", path], capture_output=True, text=True, check=True)
    assert objects.git_oid_of(path) == asked.stdout.strip()
    path.write_bytes(POINTER.text)
    assert POINTER.blob == objects.git_oid_of(path)


def test_a_stored_file_comes_back(stored: Objects) -> None:
    with stored.open(POINTER, "x.so") as file:
        assert file.read() == DATA
    assert stored.size(SHA256) == len(DATA)
    assert stored.size("0" * 64) is None


def test_a_lost_note_is_computed_again(stored: Objects) -> None:
    before = stored.git_oid(POINTER)
    path = stored.path(SHA256)
    path.with_name(path.name + ".git").unlink()
    assert stored.git_oid(POINTER) == before


@pytest.mark.parametrize("damage", ["shorter", "flipped", "missing"])
def test_other_bytes_than_were_stored_are_an_error(stored: Objects, damage: str, tmp_path: Path) -> None:
    stored.open(POINTER, "x.so").close()  # the look at it is remembered, until it changes
    path = stored.path(SHA256)
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(DATA[:-1] if damage == "shorter" else DATA[:-1] + bytes([DATA[-1] ^ 1]))
    with pytest.raises(Failure) as caught:
        stored.open(POINTER, "x.so")
    assert caught.value.status == 500
    assert "object corrupted" in caught.value.message
    assert "x.so" in caught.value.message
    assert not stored.intact(POINTER)
    put(stored, tmp_path / "again")
    assert stored.intact(POINTER)
