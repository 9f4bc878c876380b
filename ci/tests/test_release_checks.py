# SPDX-License-Identifier: Apache-2.0
"""`kernelworks release NAME --check-tag`: a tag, the manifest, the changelog and the commit agree, or not."""

from __future__ import annotations

from pathlib import Path

import pytest
from released import CHANGELOG, INIT, change, release, repository
from repositories import commit, edit, git
from small_kernel import KERNEL


@pytest.fixture
def root(tmp_path: Path) -> Path:
    found = repository(tmp_path / "repository")
    assert release(found) == 0
    change(found, INIT, "(x: Tensor)", "(x: Tensor, factor: float = 2.0)")
    assert release(found) == 0
    return found


def test_a_release_s_own_tag_is_right(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert release(root, "--check-tag", "scale-it-v2.1") == 0
    assert capsys.readouterr().out.startswith("scale-it-v2.1: version, changelog and commit ")
    git(root, "checkout", "--quiet", "scale-it-v2.0")
    assert release(root, "--check-tag", "scale-it-v2.0") == 0
    assert capsys.readouterr().out.endswith(" agree; after no other\n")


def by_hand(root: Path, tag: str, *edits: tuple[str, str, str]) -> str:
    for path, old, new in edits:
        edit(root / path, old, new)
    if edits:
        commit(root, "by hand")
    git(root, "tag", tag)
    return tag


WRONG = {
    "another kernel's": (lambda root: by_hand(root, "other-v2.1"), "is a release of other, not of scale-it"),
    "no tag": (lambda root: "v2.1", "'v2.1' is no tag of a release; write NAME-v<version>.<number>"),
    "leading zeros": (lambda root: "scale-it-v2.01", "is no tag of a release"),
    "not there": (lambda root: "scale-it-v2.2", "scale-it-v2.2 does not exist here, and checked out is"),
    "elsewhere": (lambda root: "scale-it-v2.0", "check the tag out"),
    "another version": (
        lambda root: by_hand(root, "scale-it-v3.0"),
        "scale-it-v3.0 is of version 3, but build.toml has version 2",
    ),
    "another number": (
        lambda root: by_hand(root, "scale-it-v2.2"),
        "the newest section of kernels/scale-it/CHANGELOG.md is 2.1; `kernelworks release` makes tag and",
    ),
    "not published": (
        lambda root: by_hand(
            root, "scale-it-v2.2", (CHANGELOG, "## 2.1", "## 2.2 (not yet published)\n- a\n\n## 2.1")
        ),
        "is 2.2, which is not yet published",
    ),
    "nothing said": (
        lambda root: by_hand(root, "scale-it-v2.2", (CHANGELOG, "## 2.1", "## 2.2 - 2026-12-01\n\n## 2.1")),
        "CHANGELOG.md says nothing about it",
    ),
    "a broken promise": (
        lambda root: by_hand(
            root,
            "scale-it-v2.2",
            (CHANGELOG, "## 2.1", "## 2.2 - 2026-12-01\n- a\n\n## 2.1"),
            (INIT, "factor: float = 2.0", "factor: float = 3.0"),
        ),
        "since scale-it-v2.1, scale: factor was 2.0 by default, and is 3.0: a new version",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_tag_that_is_wrong(root: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, sentence = WRONG[case]
    tag = make(root)
    capsys.readouterr()
    assert release(root, "--check-tag", tag) == 17
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert (captured.out, captured.err.count("\n")) == ("", 1)


def test_a_new_version_may_break_what_it_wants(root: Path) -> None:
    change(root, INIT, '"scale"]', "]")
    assert release(root, "--api-change") == 0
    assert release(root, "--check-tag", "scale-it-v3.0") == 0


def test_it_makes_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert release(root, "--check-tag", "scale-it-v2.1", "--dry-run") == 17
    assert "--check-tag makes nothing; leave out --api-change, --dry-run" in capsys.readouterr().err


def test_a_kernel_without_a_changelog(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git(root, "rm", "--quiet", CHANGELOG)
    commit(root, "no changelog")
    git(root, "tag", "scale-it-v2.2")
    assert release(root, "--check-tag", "scale-it-v2.2") == 17
    assert f"there is no {KERNEL}/CHANGELOG.md, which says what a release changes" in capsys.readouterr().err
