# SPDX-License-Identifier: Apache-2.0
"""The repositories on disk, as they are read: revisions, history, damage, and one writer at a time."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pygit2
import pytest

from kernelworks.hubserver import store as stores
from kernelworks.hubserver import trees
from kernelworks.hubserver.failures import Failure
from kernelworks.hubserver.settings import Settings
from kernelworks.hubserver.store import Repository, Store, signature

REPO = "acme/toy"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    settings = Settings(tmp_path, b"secret")
    settings.repositories.mkdir()
    settings.spool.mkdir()
    return Store(settings)


@pytest.fixture
def repository(store: Store) -> Repository:
    return store.create(REPO, private=False, author="ci")


def test_a_new_repository_is_a_bare_git_repository_that_keeps_everything(
    store: Store, repository: Repository
) -> None:
    assert store.repositories() == [REPO]
    asked = ["git", "--git-dir", str(repository.git), "log", "--format=%an %s", "main"]
    assert subprocess.check_output(asked, text=True) == "ci initial commit\n"
    assert repository.bare.config["gc.pruneExpire"] == "never"
    assert [entry.path for entry in repository.tree("main")] == [".gitattributes", "README.md"]
    assert b"# toy" in repository.read("main", "README.md")
    assert not list(store.settings.spool.iterdir())
    assert not repository.private
    assert store.create("acme/secret", private=True, author="ci").private
    with pytest.raises(Failure, match="here already"):
        store.create(REPO, private=False, author="ci")
    store.delete(REPO)
    assert store.repositories() == ["acme/secret"]
    with pytest.raises(Failure, match="not here"):
        store.open(REPO)


def test_each_way_to_name_a_revision(repository: Repository) -> None:
    tip = repository.resolve("main")
    for revision in ("refs/heads/main", "HEAD", tip):
        assert repository.resolve(revision) == tip
    tree = str(repository.commit_object(tip).tree_id)
    for revision in ("nothing", "0" * 40, tree, "refs/heads/", "refs/../config", "main^", "@", tip[:10]):
        with pytest.raises(Failure) as caught:
            repository.resolve(revision)
        assert caught.value.status in (400, 404)


def test_tags_of_both_kinds_lead_to_their_commit(repository: Repository) -> None:
    tip, who = repository.resolve("main"), signature("ci")
    repository.bare.references.create("refs/tags/light", pygit2.Oid(hex=tip))
    commit = pygit2.enums.ObjectType.COMMIT
    repository.bare.create_tag("heavy", pygit2.Oid(hex=tip), commit, who, "about")
    assert {ref.name: ref.commit for ref in repository.refs()} == {"heavy": tip, "light": tip, "main": tip}
    assert repository.resolve("heavy") == tip


@pytest.mark.parametrize("name", ["a\nb", "<a>", "", "ü"])
def test_any_name_of_a_token_can_sign_a_commit(name: str) -> None:
    assert signature(name).name in ("ab", "a", "unknown", "ü")


def test_one_writer_at_a_time(store: Store, repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "LOCK_SECONDS", 0.1)
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with store.locked(REPO):
            inside.set()
            leave.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait()
    with pytest.raises(Failure) as caught, store.locked(REPO):
        pass
    assert (caught.value.status, caught.value.headers["Retry-After"]) == (503, "5")
    leave.set()
    holder.join()
    with store.locked(REPO):
        pass


def test_an_object_that_was_cut_short_is_found_before_git_reads_it(repository: Repository) -> None:
    """libgit2 1.9 reads such a file for ever."""
    entry = repository.tree("main")[1]
    path = repository.git / "objects" / entry.blob[:2] / entry.blob[2:]
    path.chmod(0o600)
    whole = path.read_bytes()
    assert repository.intact(entry)
    path.write_bytes(whole[:-5])
    assert not repository.intact(entry)
    with pytest.raises(Failure, match="object corrupted"):
        trees.stored(repository.bare, entry.blob, pygit2.Blob)
    trees.put(repository.bare, b"other")
    trees.put(repository.bare, b"---\nlibrary_name: kernels\n---\n\n# toy\n")
    assert repository.intact(entry), "storing the same bytes again mends it"
    assert path.read_bytes()


def test_one_damaged_file_hides_no_other(repository: Repository) -> None:
    entry = repository.tree("main")[1]
    path = repository.git / "objects" / entry.blob[:2] / entry.blob[2:]
    whole = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(b"")
    assert [each.path for each in repository.tree("main")] == [".gitattributes", "README.md"]
    assert repository.read("main", ".gitattributes")
    with pytest.raises(Failure, match="object corrupted"):
        repository.read("main", "README.md")
    path.write_bytes(whole)
    assert repository.read("main", "README.md"), "damage is not remembered"
