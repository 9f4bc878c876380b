# SPDX-License-Identifier: Apache-2.0
"""Each check of a kernel's files and manifest, proven by breaking a small kernel in just one way."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_kernel
from small_kernel import KERNEL, PACKAGE, replaced

CHANGES = [
    pytest.param(
        replaced(f"{KERNEL}/build.toml", 'repo-id = "acme/scale-it"', 'repo-id = "acme/scaler"'),
        "kernels/scale-it/build.toml: repo-id 'acme/scaler' does not end in the kernel's name; write "
        "acme/scale-it",
        id="repo-id",
    ),
    pytest.param(
        {f"{KERNEL}/kernel_src/extra.h": "#pragma once\n"},
        "kernels/scale-it/kernel_src/extra.h: is in no `src` of build.toml, so kernel-builder leaves it out; "
        "list it, or remove it",
        id="unlisted-header",
    ),
    pytest.param(
        replaced(
            f"{KERNEL}/build.toml", '"kernel_src/scale.cu"', '"kernel_src/scale.cu", "kernel_src/gone.h"'
        ),
        "kernels/scale-it/build.toml: lists kernel_src/gone.h, which does not exist; create it or remove "
        "the entry",
        id="missing-source",
    ),
    pytest.param(
        {f"{KERNEL}/kernel_src/vendor/vec.cuh": "#pragma once\n// patched\n"},
        "kernels/scale-it/kernel_src/vendor/vec.cuh: differs from its original in common/; run "
        "`kernelworks vendor`",
        id="vendor",
    ),
    pytest.param(
        replaced(
            f"{KERNEL}/build.toml",
            '"kernel_src/vendor/vec.cuh",',
            '"kernel_src/vendor/vec.cuh", "kernel_src/vendor/nowhere.cuh"',
        ),
        "kernels/scale-it/build.toml: lists kernel_src/vendor/nowhere.cuh, but there is no "
        "common/nowhere.cuh to copy; "
        "add the header to common/, or unlist it",
        id="vendor-without-original",
    ),
    pytest.param(
        {f"{PACKAGE}/vendor/old.py": ""},
        "kernels/scale-it/torch-ext/scale_it/vendor/old.py: has no original in common/; run "
        "`kernelworks vendor`",
        id="python-without-original",
    ),
]


@pytest.mark.parametrize(("changes", "line"), CHANGES)
def test_each_broken_rule_is_one_line(tmp_path: Path, changes: dict[str, str], line: str) -> None:
    root = small_kernel.write(small_kernel.make(tmp_path), changes)
    (found,) = small_kernel.findings(root)
    assert found.startswith(line)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("CARD.md", "CARD.md: is missing; write it: it becomes the README of the kernel on the Hub"),
        ("CHANGELOG.md", "CHANGELOG.md: is missing; write it: it says what each version changed"),
        (
            "tests/test_scale.py",
            "tests/test_*.py: is missing; write it: a kernel without tests is not published",
        ),
        (
            "benchmarks/benchmark_scale.py",
            "benchmarks/benchmark_*.py: is missing; write it: it shows what the kernel is worth",
        ),
        ("kernel_src/vendor/vec.cuh", "kernel_src/vendor/vec.cuh: is missing; run `kernelworks vendor`"),
        (
            "torch-ext/scale_it/__init__.py",
            "torch-ext: has no package 'scale_it'; put the Python files in torch-ext/scale_it/",
        ),
    ],
)
def test_a_missing_file_is_found(tmp_path: Path, name: str, line: str) -> None:
    root = small_kernel.make(tmp_path)
    (root / KERNEL / name).unlink()
    assert f"{KERNEL}/{line}" in small_kernel.findings(root)


def test_a_package_of_another_name_is_found(tmp_path: Path) -> None:
    root = small_kernel.make(tmp_path)
    (root / PACKAGE).rename(root / KERNEL / "torch-ext" / "scaler")
    assert small_kernel.findings(root) == [
        "kernels/scale-it/torch-ext: has no package 'scale_it', only scaler; "
        "put the Python files in torch-ext/scale_it/"
    ]


def test_a_package_inside_itself_is_found(tmp_path: Path) -> None:
    root = small_kernel.make(tmp_path)
    (root / PACKAGE / "scale_it").mkdir()
    assert small_kernel.findings(root) == [
        f"{PACKAGE}/scale_it: has the package's own name, which the builder refuses; rename it"
    ]


@pytest.mark.parametrize("name", ["kernel_src/scale.h", "kernel_src"])
def test_a_link_is_found(tmp_path: Path, name: str) -> None:
    root = small_kernel.make(tmp_path)
    path = root / KERNEL / name
    path.rename(root / "moved")
    path.symlink_to(root / "moved")
    assert (
        f"{KERNEL}/kernel_src/scale.h: is a symbolic link or behind one, which dangles in kernel-builder's "
        "copy; "
        "put the file itself here; a shared header goes to common/ and is vendored"
    ) in small_kernel.findings(root)
