# SPDX-License-Identifier: Apache-2.0
"""Vendored headers: written, checked, removed, and left alone when equal."""

from __future__ import annotations

from pathlib import Path

import pytest
from repositories import edit, git

from kernelworks.cli import main

COPY = "kernels/toy/kernel_src/vendor/factor.h"


def vendor(root: Path, *arguments: str) -> int:
    return main(["vendor", *arguments, "--root", str(root)])


def test_in_sync_is_silent(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert vendor(repository, "--check") == 0
    assert vendor(repository) == 0
    assert capsys.readouterr() == ("", "")


def test_each_difference_is_one_line_and_nothing_is_changed(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(repository / "common/factor.h", "2.0f", "3.0f")
    stray = repository / "kernels/toy/torch-ext/vendor/deep/old.h"
    stray.parent.mkdir(parents=True)
    stray.touch()
    before = git(repository, "status", "--porcelain")
    assert vendor(repository, "--check", "toy") != 0
    output = capsys.readouterr()
    assert output.out.splitlines() == [
        f"{COPY} differs from its original in common/",
        "kernels/toy/torch-ext/vendor/deep/old.h is not in a `src` list of build.toml",
    ]
    assert "run `kernelworks vendor`" in output.err
    assert git(repository, "status", "--porcelain") == before


def test_vendor_writes_and_removes(repository: Path) -> None:
    (repository / "common/factor.h").write_bytes(b"bytes, not text: \r\n\xff")
    (repository / COPY).with_name("stray.h").touch()
    assert vendor(repository) == 0
    assert (repository / COPY).read_bytes() == b"bytes, not text: \r\n\xff"
    assert not (repository / COPY).with_name("stray.h").exists()
    assert vendor(repository, "--check") == 0


def test_a_missing_copy_is_written(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / COPY).unlink()
    assert vendor(repository, "--check") != 0
    assert f"{COPY} is missing" in capsys.readouterr().out
    assert vendor(repository) == 0
    assert (repository / COPY).is_file()


def test_a_link_is_replaced_by_a_copy(repository: Path) -> None:
    (repository / COPY).unlink()
    (repository / COPY).symlink_to(repository / "common/factor.h")
    assert vendor(repository, "--check") != 0
    assert vendor(repository) == 0
    assert not (repository / COPY).is_symlink()
    assert (repository / COPY).read_bytes() == (repository / "common/factor.h").read_bytes()


def test_equal_files_keep_their_dates(repository: Path) -> None:
    before = (repository / COPY).stat().st_mtime_ns
    assert vendor(repository) == 0
    assert (repository / COPY).stat().st_mtime_ns == before


def test_a_header_that_common_does_not_have(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "common/factor.h").unlink()
    assert vendor(repository, "--check") != 0
    assert capsys.readouterr().err == (
        "error: kernels/toy/build.toml lists kernel_src/vendor/factor.h, "
        "but there is no common/factor.h to copy\n"
    )
