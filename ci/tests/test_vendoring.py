# SPDX-License-Identifier: Apache-2.0
"""Vendored files: written, checked, removed, and left alone when equal."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_kernel
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


def shared_python(root: Path) -> list[Path]:
    """Adds Python files to common/ and returns where their copies belong."""
    for name in ("package/__init__.py", "package/words.py", "tests/checks.py"):
        original = root / "common" / name
        original.parent.mkdir(exist_ok=True)
        original.write_text(f'"""{name}"""\n')
    kernel = root / "kernels/toy"
    return [
        kernel / "torch-ext/toy/vendor/__init__.py",
        kernel / "torch-ext/toy/vendor/words.py",
        kernel / "tests/vendor/checks.py",
    ]


def test_python_files_need_no_list(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copies = shared_python(repository)
    assert vendor(repository, "--check") != 0
    names = [str(copy.relative_to(repository)) for copy in copies]
    assert capsys.readouterr().out.splitlines() == [f"{name} is missing" for name in names]
    assert vendor(repository) == 0
    assert [copy.read_text() for copy in copies] == [
        '"""package/__init__.py"""\n',
        '"""package/words.py"""\n',
        '"""tests/checks.py"""\n',
    ]
    assert vendor(repository, "--check") == 0


def test_a_python_file_without_an_original(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Python's own cache beside the copies is nobody's business."""
    _, copy, _ = shared_python(repository)
    assert vendor(repository) == 0
    cache = copy.parent / "__pycache__/words.pyc"
    cache.parent.mkdir()
    cache.touch()
    (repository / "common/package/words.py").unlink()
    capsys.readouterr()
    assert vendor(repository, "--check") != 0
    what = "kernels/toy/torch-ext/toy/vendor/words.py has no original in common/"
    assert capsys.readouterr().out.splitlines() == [what]
    assert vendor(repository) == 0
    assert not copy.exists()
    assert cache.exists()


def test_the_package_is_that_of_the_kernel(tmp_path: Path) -> None:
    """A kernel's name may have a dash, which its package has not."""
    root = small_kernel.make(tmp_path / "repository")
    small_kernel.write(root, {"common/package/words.py": ""})
    assert vendor(root) == 0
    assert (root / small_kernel.PACKAGE / "vendor/words.py").is_file()
