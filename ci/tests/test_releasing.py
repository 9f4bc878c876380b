# SPDX-License-Identifier: Apache-2.0
"""`kernelworks release`: which version and number come next, what is written, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from released import CHANGELOG, INIT, change, release, repository
from repositories import commit, edit, git
from small_kernel import KERNEL

from kernelworks import catalog


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return repository(tmp_path / "repository")


def tags(root: Path) -> list[str]:
    return git(root, "tag", "--list").split()


def test_the_first_release_has_the_version_of_the_manifest(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert release(root) == 0
    assert capsys.readouterr().out == (
        "scale-it-v2.0, the first release of scale-it\n"
        f"  edits   {CHANGELOG}\n"
        "committed and tagged; to publish it: git push origin main scale-it-v2.0\n"
    )
    assert re.search(r"^## 2\.0 - \d{4}-\d\d-\d\d$", (root / CHANGELOG).read_text(), re.MULTILINE)
    assert git(root, "log", "-1", "--format=%s") == "scale-it: release 2.0"
    assert git(root, "rev-parse", "scale-it-v2.0^{commit}") == git(root, "rev-parse", "HEAD")
    assert git(root, "cat-file", "-t", "scale-it-v2.0") == "tag"
    assert git(root, "tag", "--list", "--format=%(contents)") == "scale-it 2.0\n\n- `scale`"
    assert git(root, "status", "--porcelain") == ""


def test_what_breaks_nobody_is_the_next_number(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    release(root)
    change(root, INIT, "(x: Tensor)", "(x: Tensor, factor: float = 2.0)")
    assert release(root) == 0
    assert "scale-it-v2.1, after scale-it-v2.0\n  api     scale: factor is new\n" in capsys.readouterr().out
    change(root, f"{KERNEL}/kernel_src/scale_cpu.cpp", "#include", "// faster\n#include")
    assert release(root) == 0
    assert "scale-it-v2.2, after scale-it-v2.1\n  api     as it was\n" in capsys.readouterr().out
    assert tags(root) == ["scale-it-v2.0", "scale-it-v2.1", "scale-it-v2.2"]
    assert catalog.load(root, "scale-it").version == 2


def test_what_breaks_callers_needs_a_new_version(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    release(root)
    change(root, INIT, "(x: Tensor)", "(x: Tensor, factor: float)")
    before = git(root, "rev-parse", "HEAD")
    assert release(root) == 17
    assert (
        "error: since scale-it-v2.0, scale: factor is new and required, which breaks callers of version 2; "
        "undo that, or release it as a new version with --api-change\n" in capsys.readouterr().err
    )
    assert git(root, "rev-parse", "HEAD") == before
    assert release(root, "--api-change", "--dry-run") == 0
    assert "which breaks callers\n" in capsys.readouterr().out
    assert (git(root, "rev-parse", "HEAD"), tags(root)) == (before, ["scale-it-v2.0"])
    assert release(root, "--api-change") == 0
    # One source of truth: the manifest, and every text that names the version after it.
    assert catalog.load(root, "scale-it").version == 3
    assert '"acme/scale-it", version=3' in (root / KERNEL / "CARD.md").read_text()
    assert (root / "README.md").read_text() == (
        'get_kernel("acme/scale-it", version=3)\nget_kernel("acme/other", version=7)\n'
    )
    assert "## 3.0 - " in (root / CHANGELOG).read_text()
    assert tags(root) == ["scale-it-v2.0", "scale-it-v3.0"]
    assert git(root, "status", "--porcelain") == ""


def test_a_version_raised_by_hand_is_taken_where_it_must_be(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release(root)
    for path, old, new in (
        ("build.toml", "version = 2", "version = 3"),
        ("CARD.md", "version=2", "version=3"),
        ("../../README.md", '"acme/scale-it", version=2', '"acme/scale-it", version=3'),
    ):
        edit(root / KERNEL / path, old, new)
    edit(root / CHANGELOG, "## 2.0", "## 3.0 (not yet published)\n\n- a\n\n## 2.0")
    commit(root, "version 3")
    assert release(root) == 17
    assert "has version 3, but nothing since scale-it-v2.0 is seen to break" in capsys.readouterr().err
    change(root, INIT, '"scale"]', "]")
    assert release(root) == 0
    assert "scale-it-v3.0, after scale-it-v2.0\n  api     scale is gone" in capsys.readouterr().out


def test_behaviour_may_change_without_a_signature(root: Path) -> None:
    release(root)
    change(root, f"{KERNEL}/kernel_src/scale_cpu.cpp", "#include", "// other numbers\n#include")
    assert release(root, "--api-change") == 0
    assert tags(root)[-1] == "scale-it-v3.0"


def test_version_0_promises_nothing(root: Path) -> None:
    for path, old, new in (
        ("build.toml", "version = 2", "version = 0"),
        ("CARD.md", "version=2", "version=0"),
        ("../../README.md", '"acme/scale-it", version=2', '"acme/scale-it", version=0'),
        ("CHANGELOG.md", "## 2.0", "## 0.0"),
    ):
        edit(root / KERNEL / path, old, new)
    commit(root, "an experiment")
    assert release(root) == 0
    change(root, INIT, '"scale"]', "]")
    assert release(root) == 0
    assert tags(root) == ["scale-it-v0.0", "scale-it-v0.1"]


def skipped(root: Path) -> None:
    edit(root / KERNEL / "build.toml", "version = 2", "version = 5")
    commit(root, "far")


def dated(root: Path) -> None:
    edit(root / KERNEL / "kernel_src/scale_cpu.cpp", "#include", "// x\n#include")
    commit(root, "nothing said about it")


def empty(root: Path) -> None:
    dated(root)
    edit(root / CHANGELOG, "## 2.0", "## 2.1 (not yet published)\n\n## 2.0")
    commit(root, "a heading")


def unsound(root: Path) -> None:
    change(root, f"{KERNEL}/kernel_src/vendor/vec.cuh", "#pragma once", "// mine\n#pragma once")


REFUSED = {
    "nothing new": (lambda root: None, "kernels/scale-it is as it was at scale-it-v2.0; there is nothing"),
    "changed files": (lambda root: edit(root / INIT, "ops", "ops  "), "tracked files are changed; commit or"),
    "a branch": (
        lambda root: git(root, "checkout", "--quiet", "-b", "mine"),
        "releases are made on main, and this is mine; change to it, or insist with --allow-branch",
    ),
    "no branch": (lambda root: git(root, "checkout", "--quiet", "--detach"), "and no branch is checked out"),
    "a version too far": (skipped, "has version 5, but the last release is scale-it-v2.0; write 2, or 3"),
    "no section": (dated, "is 2.0, which was released on 20"),
    "an empty section": (empty, "CHANGELOG.md, 2.1, lists no change; write what changed"),
    "an unsound kernel": (unsound, "vendor/vec.cuh: "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(root: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    release(root)
    prepare, sentence = REFUSED[case]
    prepare(root)
    before = git(root, "rev-parse", "HEAD")
    capsys.readouterr()
    assert release(root) == 17
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.count("\n") == 1
    assert (git(root, "rev-parse", "HEAD"), tags(root)) == (before, ["scale-it-v2.0"])


def test_another_branch_can_be_insisted_on(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git(root, "checkout", "--quiet", "-b", "hotfix")
    assert release(root, "--allow-branch") == 0
    assert "git push origin hotfix scale-it-v2.0" in capsys.readouterr().out


def test_the_first_has_no_api_to_change(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert release(root, "--api-change") == 17
    assert "scale-it has no release yet, so there is no API to change" in capsys.readouterr().err


def test_without_git_there_is_one_sentence(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / ".git").rename(root.parent / "git")
    assert release(root) == 17
    assert "error: a release is a tag on a commit, and here the commit unknown" in capsys.readouterr().err
