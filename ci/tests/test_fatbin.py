# SPDX-License-Identifier: Apache-2.0
"""The architectures of a fat binary, read back from what nvcc was told to make."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kernelworks import fatbin

NVCC = shutil.which("nvcc")


def linked(folder: Path, *flags: str, compiler: str) -> Path:
    source = folder / "tiny.cu"
    source.write_text(
        "int host() { return 0; }\n#ifdef __CUDACC__\n__global__ void twice(float* x) { *x *= 2; }\n#endif\n"
    )
    subprocess.run(
        [compiler, "-shared", *flags, str(source), "-o", str(folder / "tiny.so")], check=True, timeout=120
    )
    return folder / "tiny.so"


@pytest.mark.skipif(NVCC is None, reason="no nvcc on PATH")
def test_every_kind_of_architecture_is_read(tmp_path: Path) -> None:
    codes = ("75,code=sm_75", "90a,code=sm_90a", "100f,code=sm_100f", "120,code=[sm_120,compute_120]")
    flags = [f"-gencode=arch=compute_{code}" for code in codes]
    library = linked(tmp_path, "-Xcompiler=-fPIC", "-cudart=shared", *flags, compiler=str(NVCC))
    assert fatbin.archs(library) == {"7.5", "9.0a", "10.0f", "12.0+PTX"}


def test_a_library_without_cuda_has_none(tmp_path: Path) -> None:
    assert fatbin.archs(linked(tmp_path, "-fPIC", "-xc++", compiler="g++")) == frozenset()
