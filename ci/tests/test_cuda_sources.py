# SPDX-License-Identifier: Apache-2.0
"""The CUDA sources under the macros that torch's own builds define."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kernelworks import toolchain
from kernelworks.errors import ToolchainError

SOURCE = Path(__file__).resolve().parents[2] / "kernels/rmsnorm/kernel_src/rmsnorm.cu"
WITHOUT_OPERATORS = (
    "-D__CUDA_NO_HALF_OPERATORS__",
    "-D__CUDA_NO_HALF_CONVERSIONS__",
    "-D__CUDA_NO_HALF2_OPERATORS__",
    "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
)


def test_half_operators_are_not_needed(tmp_path: Path) -> None:
    """Torch's flags take half's operators away: it compiles without them, to the same code (B08)."""
    try:
        nvcc = toolchain.cuda_toolkit().nvcc
    except ToolchainError as error:
        pytest.skip(str(error))

    def ptx(*macros: str) -> str:
        target = tmp_path / "rmsnorm.ptx"
        command = [nvcc, "-std=c++20", "--expt-relaxed-constexpr", "-arch=compute_90", *macros]
        subprocess.run([*map(str, command), "--ptx", str(SOURCE), "-o", str(target)], check=True, timeout=600)
        return target.read_text()

    assert ptx(*WITHOUT_OPERATORS) == ptx()
