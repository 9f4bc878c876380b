# SPDX-License-Identifier: Apache-2.0
"""Which variants a complete release of a kernel has, and the systems that they are for."""

from __future__ import annotations

import itertools

from kernelworks import manifest
from kernelworks.catalog import Kernel
from kernelworks.loader import System

# What kernel-builder builds with torch 2.13, the newest that it knows: nix-builder/versions.nix at the
# revision that flake.lock names. Under the stable ABI a variant serves later versions of torch too, so there
# is one for each version of a backend and each system.
BUILDER = "8ac69fc542a4306eade0759ef7c45b4f2ae57df0"
TORCH = "2.13"
CUDA = ("12.6", "13.0", "13.2")
MACHINES = ("x86_64", "aarch64")
SYSTEMS = tuple(f"{machine}-linux" for machine in MACHINES)

# The systems that users may have: of CUDA also the versions that no variant is built with, of Python also the
# first that the extension would load in.
USED_TORCH = ((2, 11), (2, 12), (2, 13), (2, 14), (2, 15))
USED_CUDA = (None, (12, 6), (12, 8), (12, 9), (13, 0), (13, 1), (13, 2))
USED_PYTHON = ((3, 9), (3, 10), (3, 11), (3, 12), (3, 13), (3, 14))


def complete(kernel: Kernel) -> tuple[str, ...]:
    """The names of all variants, in the order of backends, CUDA versions and systems."""
    abi = "".join(map(str, kernel.stable_abi))
    backends: list[str] = []
    if "cpu" in kernel.backends:
        backends.append("cpu")
    if "cuda" in kernel.backends:
        backends += [f"cu{version.replace('.', '')}" for version in CUDA if _is_within(kernel, version)]
    return tuple(f"torch-stable-abi{abi}-{backend}-{system}" for backend in backends for system in SYSTEMS)


def _is_within(kernel: Kernel, version: str) -> bool:
    """Whether `[general.cuda]` of build.toml, which only kernel-builder reads, has this version built."""
    bounds = manifest.read(kernel.directory)["general"].get("cuda", {})
    low, high = (str(bounds.get(key, default)) for key, default in (("minver", "0.0"), ("maxver", "99.9")))
    return _numbers(low) <= _numbers(version) <= _numbers(high)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def used_systems() -> list[System]:
    """Every combination, the version of Python changing first."""
    return [
        System(torch, cuda, machine, python)
        for machine, cuda, torch, python in itertools.product(MACHINES, USED_CUDA, USED_TORCH, USED_PYTHON)
    ]
