# SPDX-License-Identifier: Apache-2.0
"""The complete matrix of a kernel, in names that the loader reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from kernels.variants import parse_variant
from repositories import edit

from kernelworks import catalog, loader, matrix

ROOT = Path(__file__).resolve().parents[2]


def test_every_backend_on_every_system(built_once: Path) -> None:
    kernel = catalog.load(built_once, "toy")
    names = matrix.complete(kernel)
    assert len(names) == (1 + len(matrix.CUDA)) * len(matrix.SYSTEMS)
    assert [parse_variant(name).variant_str for name in names] == list(names)
    assert "torch-stable-abi211-cu132-aarch64-linux" in names
    assert all("-cpu-" in name for name in matrix.complete(replace(kernel, backends=("cpu",))))


@pytest.mark.parametrize("name", catalog.names(ROOT))
def test_a_release_of_each_kernel(name: str) -> None:
    """What kernel-builder's own evaluation of the flake gave for Linux."""
    assert set(matrix.complete(catalog.load(ROOT, name))) == {
        f"torch-stable-abi211-{compute}-{machine}-linux"
        for compute in ("cpu", "cu126", "cu130", "cu132")
        for machine in ("x86_64", "aarch64")
    }


@pytest.mark.parametrize(
    ("bounds", "left"),
    [
        ('minver = "13.0"', {"cpu", "cu130", "cu132"}),
        ('maxver = "13.0"', {"cpu", "cu126", "cu130"}),
        ('minver = "13.2"\nmaxver = "13.2"', {"cpu", "cu132"}),
    ],
)
def test_bounds_on_cuda(repository: Path, bounds: str, left: set[str]) -> None:
    edit(repository / "kernels/toy/build.toml", "[general.hub]", f"[general.cuda]\n{bounds}\n\n[general.hub]")
    names = matrix.complete(catalog.load(repository, "toy"))
    assert {name.split("-")[3] for name in names} == left


def test_the_rules_are_those_of_the_locked_builder() -> None:
    locked = json.loads((ROOT / "flake.lock").read_text())["nodes"]["kernel-builder"]["locked"]
    assert locked["rev"] == matrix.BUILDER, (
        "look into its nix-builder/versions.nix, and bring matrix.py up to it"
    )


def test_this_machine_loads_one_of_them(built_once: Path) -> None:
    names = matrix.complete(catalog.load(built_once, "toy"))
    assert loader.fitting(["nonsense", *names]) in names
    assert loader.fitting(["torch-stable-abi299-cpu-x86_64-linux", "nonsense"]) is None
