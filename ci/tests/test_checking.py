# SPDX-License-Identifier: Apache-2.0
"""The command as a whole: a sound kernel, a broken manifest, the shared headers."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import small_kernel
from small_kernel import FILES, KERNEL, replaced

from kernelworks import checking

CHANGES = [
    pytest.param(
        replaced(f"{KERNEL}/build.toml", 'license = "Apache-2.0"', ""),
        "kernels/scale-it/build.toml: [general] license: missing; it must be a string",
        id="manifest",
    ),
    pytest.param(
        replaced(f"{KERNEL}/build.toml", '"kernel_src/scale.cu"', '"../scale.cu"'),
        "kernels/scale-it/build.toml: [kernel.scale_cuda] src: '../scale.cu' must be a plain path inside the "
        "kernel's directory; a shared header goes to common/ and is listed as kernel_src/vendor/NAME",
        id="path-outside",
    ),
    pytest.param(
        {name: "#pragma once\n#define VEC 4\n" for name in FILES if name.endswith("vec.cuh")},
        "common/vec.cuh: defines the macro VEC; use constexpr, a template, or #pragma once instead",
        id="macro-in-common",
    ),
]


@pytest.mark.parametrize(("changes", "line"), CHANGES)
def test_each_broken_rule_is_one_line(tmp_path: Path, changes: dict[str, str], line: str) -> None:
    root = small_kernel.write(small_kernel.make(tmp_path), changes)
    (found,) = small_kernel.findings(root)
    assert found.startswith(line)


def test_a_sound_kernel_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = argparse.Namespace(root=small_kernel.make(tmp_path), names=[])
    assert checking.run(arguments) == 0
    assert capsys.readouterr().out == (
        "scale-it version 2: 9 listed sources, 3 Python files, 0 built variants; nothing to say\n"
    )


def test_a_finding_fails_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = small_kernel.make(tmp_path)
    (root / KERNEL / "CARD.md").unlink()
    assert checking.run(argparse.Namespace(root=root, names=["scale-it"])) == checking.FOUND
    output = capsys.readouterr()
    assert (
        output.out
        == f"{KERNEL}/CARD.md: is missing; write it: it becomes the README of the kernel on the Hub\n"
    )
    assert output.err == "error: 1 finding\n"
