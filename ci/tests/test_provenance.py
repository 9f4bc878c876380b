# SPDX-License-Identifier: Apache-2.0
"""The state of the repository, in every state that it can be in."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from repositories import commit, edit, git

from kernelworks.provenance import Origin, origin_of, untracked

HEADER = "common/factor.h"


def test_a_clean_tree(repository: Path) -> None:
    assert origin_of(repository) == Origin(git(repository, "rev-parse", "HEAD"), dirty=False)


def test_untracked_files_do_not_make_it_dirty(repository: Path) -> None:
    (repository / "notes.txt").touch()
    assert not origin_of(repository).dirty


@pytest.mark.parametrize("how", ["modified", "staged", "deleted"])
def test_changed_tracked_files_do(repository: Path, how: str) -> None:
    if how == "deleted":
        (repository / HEADER).unlink()
    else:
        edit(repository / HEADER, "2.0f", "3.0f")
    if how == "staged":
        git(repository, "add", HEADER)
    assert origin_of(repository).dirty
    assert "with uncommitted changes" in str(origin_of(repository))


def test_a_shallow_clone_knows_its_commit(repository: Path, tmp_path: Path) -> None:
    edit(repository / HEADER, "2.0f", "3.0f")
    commit(repository, "second")
    git(tmp_path, "clone", "--quiet", "--depth=1", repository.as_uri(), "shallow")
    assert git(tmp_path / "shallow", "rev-list", "--count", "HEAD") == "1"
    assert origin_of(tmp_path / "shallow") == origin_of(repository)


def test_a_worktree_is_its_own_top(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "--quiet", str(tmp_path / "tree"))
    assert origin_of(tmp_path / "tree") == origin_of(repository)


def test_without_git_it_is_unknown_and_says_why(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert origin_of(repository) == Origin(None, False, "git is not installed")
    monkeypatch.undo()
    shutil.rmtree(repository / ".git")
    assert origin_of(repository) == Origin(None, False, "not a git repository")


def test_another_s_repository_around_it_does_not_count(repository: Path) -> None:
    inner = Path(shutil.copytree(repository / "kernels", repository / "unpacked/kernels")).parent
    assert origin_of(inner).note == "unpacked is not the top of a git repository"


def test_no_commit_yet(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    assert origin_of(tmp_path) == Origin(None, False, "the git repository has no commit yet")


def test_untracked_lists_what_no_commit_holds(repository: Path) -> None:
    (repository / "common/new header.h").touch()
    paths = [repository / HEADER, repository / "common/new header.h"]
    assert untracked(repository, paths) == ["common/new header.h"]
