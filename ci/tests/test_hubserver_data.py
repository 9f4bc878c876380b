# SPDX-License-Identifier: Apache-2.0
"""The data directory, before the first request."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pygit2
import pytest

from kernelworks.errors import HostingError
from kernelworks.hubserver import data, documents


def test_a_new_directory_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    root = tmp_path / "a" / "hub"
    found = data.prepare(root)
    assert root.stat().st_mode & 0o077 == 0
    assert (root / "secret").stat().st_mode & 0o777 == 0o600
    assert len(found.settings.secret) == 32
    assert found.settings.repositories.is_dir()
    assert found.free_bytes > 0
    assert repr(found.settings.secret) not in repr(found), "a secret in a traceback is none"


def test_a_second_start_keeps_the_secret(tmp_path: Path) -> None:
    """Addresses for uploads that were given out stay valid over a restart, and between two servers."""
    assert data.prepare(tmp_path / "hub").settings.secret == data.prepare(tmp_path / "hub").settings.secret


def test_leftovers_go_when_no_other_server_lives(tmp_path: Path) -> None:
    first = data.prepare(tmp_path / "hub")
    (first.settings.spool / "upload").mkdir()
    (first.settings.spool / "upload" / "part").write_bytes(b"x")
    (first.settings.spool / "file").write_bytes(b"x")
    assert data.prepare(tmp_path / "hub").removed == 0, "the first server may be working on them"
    first.lock.close()
    found = data.prepare(tmp_path / "hub")
    assert found.removed == 2
    assert list(found.settings.spool.iterdir()) == []


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    data.prepare(tmp_path).lock.close()
    marker = tmp_path / data.MARKER
    marker.write_text(marker.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(HostingError, match="is of format 2, and this kernelworks reads format 1"):
        data.prepare(tmp_path)
    with pytest.raises(HostingError, match="is of format 2"):
        data.require(tmp_path)


def test_strange_directories_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(HostingError, match=r"is not the data of a Hub and holds thesis\.txt"):
        data.prepare(tmp_path)
    (tmp_path / "thesis.txt").unlink()
    (tmp_path / "lost+found").mkdir()  # the top of a fresh file system
    data.prepare(tmp_path)


def test_other_layouts_are_not_entered(tmp_path: Path) -> None:
    data.prepare(tmp_path / "hub")
    with pytest.raises(HostingError, match="lies in the data of another Hub"):
        data.prepare(tmp_path / "hub" / "repos" / "inner")
    pygit2.init_repository(str(tmp_path / "work"))
    with pytest.raises(HostingError, match="lies inside a git repository"):
        data.prepare(tmp_path / "work" / ".git" / "hub")
    data.prepare(tmp_path / "work" / "hub")  # beside the files of a work tree is nobody's layout


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostingError, match="is not a directory"):
        data.prepare(tmp_path / "file")


def test_a_directory_that_cannot_be_written_is_one_sentence() -> None:
    """/proc refuses even the administrator, which tests in a container often are."""
    with pytest.raises(HostingError, match=r"cannot be written: .*; give this user the directory"):
        data.prepare(Path("/proc/hub"))


@pytest.mark.parametrize("damage", ["mode", "short"])
def test_a_secret_that_is_none_is_refused(tmp_path: Path, damage: str) -> None:
    data.prepare(tmp_path)
    secret = tmp_path / "secret"
    if damage == "mode":
        secret.chmod(0o644)
    else:
        secret.write_bytes(b"short")
    with pytest.raises(HostingError, match=r"chmod 600|is damaged"):
        data.prepare(tmp_path)


def test_other_commands_want_a_directory_that_was_served(tmp_path: Path) -> None:
    with pytest.raises(HostingError, match="is not the data of a Hub"):
        data.require(tmp_path)
    data.prepare(tmp_path)
    assert data.require(tmp_path).root == tmp_path


def test_the_file_system_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    lines = [
        "/dev/a / ext4 rw 0 0",
        r"server:/x /srv/my\040data nfs4 rw 0 0",
        "old /srv/b xfs rw 0 0",
        "new /srv/b cifs rw 0 0",
    ]
    mounts.write_text("\n".join(lines))
    assert data.file_system(Path("/srv/my data/hub"), mounts) == "nfs4"
    assert data.file_system(Path("/srv/b"), mounts) == "cifs"
    assert data.file_system(Path("/home/me"), mounts) == "ext4"
    assert data.file_system(Path("/home/me"), tmp_path / "none") is None


def test_a_share_and_a_full_disk_are_warned_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "file_system", lambda root: "nfs4")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5 * 1024**2))
    network, space = data.prepare(tmp_path / "hub").warnings
    assert "is on nfs4" in network
    assert "5 MiB free" in space


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    documents.write_json(file, {"a": 1})
    before = file.read_bytes()
    with pytest.raises(TypeError):
        documents.write_json(file, {"a": object()})
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]
