# SPDX-License-Identifier: Apache-2.0
"""The complete matrix of a kernel, in names that the loader reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kernels.variants import parse_variant

from kernelworks import catalog, loader, matrix


def test_every_backend_on_every_system(built_once: Path) -> None:
    kernel = catalog.load(built_once, "toy")
    names = matrix.complete(kernel)
    assert len(names) == (1 + len(matrix.CUDA)) * len(matrix.SYSTEMS)
    assert [parse_variant(name).variant_str for name in names] == list(names)
    assert "torch-stable-abi211-cu132-aarch64-linux" in names
    assert all("-cpu-" in name for name in matrix.complete(replace(kernel, backends=("cpu",))))


def test_this_machine_loads_one_of_them(built_once: Path) -> None:
    names = matrix.complete(catalog.load(built_once, "toy"))
    assert loader.fitting(["nonsense", *names]) in names
    assert loader.fitting(["torch-stable-abi299-cpu-x86_64-linux", "nonsense"]) is None
