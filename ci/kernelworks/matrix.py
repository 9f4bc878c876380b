# SPDX-License-Identifier: Apache-2.0
"""Which variants a complete release of a kernel has."""

from __future__ import annotations

from kernelworks.catalog import Kernel

# What kernel-builder builds with torch 2.13, the newest that it knows (build-variants/versions.nix of
# huggingface/kernels at 8ac69fc5, August 2026). Under the stable ABI a variant serves later versions of torch
# too, so there is one for each version of a backend and each system.
TORCH = "2.13"
CUDA = ("12.6", "13.0", "13.2")
SYSTEMS = ("x86_64-linux", "aarch64-linux")


def complete(kernel: Kernel) -> tuple[str, ...]:
    """The names of all variants, in the order of backends, CUDA versions and systems."""
    abi = "".join(map(str, kernel.stable_abi))
    backends: list[str] = []
    if "cpu" in kernel.backends:
        backends.append("cpu")
    if "cuda" in kernel.backends:
        backends += [f"cu{version.replace('.', '')}" for version in CUDA]
    return tuple(f"torch-stable-abi{abi}-{backend}-{system}" for backend in backends for system in SYSTEMS)
