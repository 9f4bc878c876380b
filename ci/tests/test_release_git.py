# SPDX-License-Identifier: Apache-2.0
"""Tags in their order, files of another commit, and commits of certain files alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from released import CHANGELOG, INIT, repository
from repositories import edit, git

from kernelworks import release_git
from kernelworks.errors import ReleaseError
from kernelworks.release_git import Tag


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return repository(tmp_path / "repository")


def test_tags_are_in_the_order_of_their_numbers(root: Path) -> None:
    for tag in ("toy-v1.10", "toy-v1.9", "toy-v2.0", "toy-v1.x", "toy-v1.2-rc", "toy-box-v3.0", "v9.9"):
        git(root, "tag", tag)
    assert list(map(str, release_git.tags_of(root, "toy"))) == ["toy-v1.9", "toy-v1.10", "toy-v2.0"]
    assert release_git.tags_of(root, "none") == []
    assert release_git.parse("toy-box-v3.0") == Tag(3, 0, "toy-box")


def test_a_commit_holds_the_named_files_alone(root: Path) -> None:
    edit(root / INIT, "ops", "ops  ")
    git(root, "add", "--all")
    edit(root / CHANGELOG, "`scale`", "`scale`, faster")
    release_git.commit(root, [root / CHANGELOG], "scale-it: said")
    assert git(root, "show", "--format=", "--name-only").split() == [CHANGELOG]
    assert git(root, "status", "--porcelain") == f"M  {INIT}"
    assert release_git.file_at(root, "HEAD", CHANGELOG) == (root / CHANGELOG).read_text()
    assert release_git.file_at(root, "HEAD", "nowhere") is None


def test_a_failure_of_git_is_one_sentence(root: Path) -> None:
    release_git.tag(root, "toy-v1.0", "one\n\n### kept\n")
    assert "### kept" in git(root, "tag", "--list", "--format=%(contents)")
    with pytest.raises(ReleaseError, match=r"git tag failed: tag 'toy-v1.0' already exists"):
        release_git.tag(root, "toy-v1.0", "again")


def test_branches_and_commits(root: Path) -> None:
    assert release_git.branch_of(root) == "main"
    assert release_git.commit_of(root, "main") == git(root, "rev-parse", "HEAD")
    assert release_git.commit_of(root, "nothing") is None
    git(root, "checkout", "--quiet", "--detach")
    assert release_git.branch_of(root) is None
