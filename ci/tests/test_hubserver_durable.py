# SPDX-License-Identifier: Apache-2.0
"""What must be on the disk before anybody is told that it was stored."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelworks.hubserver import auth, durable, objects
from kernelworks.hubserver.settings import Settings
from kernelworks.hubserver.store import Store


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Every file and folder that was synced, by the name that it had then."""
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("this system does not say which file is behind a descriptor")
    found: set[str] = set()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_a_new_repository_is_whole_before_it_has_its_name(synced: set[str], tmp_path: Path) -> None:
    store = Store(Settings(tmp_path, b""))
    store.settings.repositories.mkdir()
    store.settings.spool.mkdir()
    git = store.create("acme/toy", private=True, author="ci").git
    new = {path.split("/toy.git", 1)[1] for path in synced if "/toy.git" in path}
    assert {f"/{path.relative_to(git)}" for path in git.rglob("*")} <= new
    assert {str(git.parent), str(git.parent.parent)} <= synced, "its name, and that of its organization"


def test_an_object_has_its_bytes_and_every_folder_above(synced: set[str], tmp_path: Path) -> None:
    source, sha256 = tmp_path / "source", "ab" * 32
    source.write_bytes(b"x")
    large = objects.Objects(tmp_path / "toy.lfs")
    large.add(source, sha256, "0" * 40)
    above = {str(path) for path in large.path(sha256).parents if path.is_relative_to(tmp_path)}
    assert above | {str(source)} <= synced


def test_a_revoked_token_does_not_come_back(synced: set[str], tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    auth.add(file, "ci", ["acme"], write=True, days=None)
    synced.clear()
    auth.revoke(file, "ci")
    assert str(tmp_path) in synced


def test_folders_are_made_once(tmp_path: Path) -> None:
    for _ in range(2):
        durable.make_folder(tmp_path / "a/b")
    assert (tmp_path / "a/b").is_dir()
