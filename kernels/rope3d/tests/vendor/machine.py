# SPDX-License-Identifier: Apache-2.0
"""What this machine has, and fresh processes on it: memory, instruction sets, another Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from .checks import ulp_distance

TESTS = Path(__file__).resolve().parents[1]
NEEDS = {  # by the names of KERNELWORKS_CPU_ISA
    "portable": set(),
    "avx2": {"avx2", "fma", "f16c"},
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
}


def free_bytes(device):
    if device.type == "cuda":
        return torch.cuda.mem_get_info()[0]
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1024


def need_memory(device, gibibytes):
    """Skips the test where less is free."""
    if free_bytes(device) < gibibytes * 2**30:
        pytest.skip(f"needs {gibibytes} GiB of free memory")


def need_cpu(device):
    if device.type != "cpu":
        pytest.skip("only with --device cpu")


def need_cuda(device):
    if device.type != "cuda":
        pytest.skip("only with --device cuda")


def child_environment(**extra):
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **extra}


def run_python(code, *args, timeout=300, **environment):
    """Runs `code` in a fresh Python, far from the repository."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True, text=True, timeout=timeout, cwd="/", env=child_environment(**environment),
    )  # fmt: skip


def cpu_flags():
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return set(next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), []))


def assert_instruction_set_agrees(code, isa, folder):
    """What `code` computes on the portable path and on that of `isa` is the same but for the order of sums.

    It is a program; sys.argv has the file that it saves a list of tensors to, and the tests' directory.
    """
    if not NEEDS[isa] <= cpu_flags():
        pytest.skip(f"this CPU has no {isa}")
    results = {}
    for name in ("portable", isa):
        file = folder / f"{name}.pt"
        done = run_python(code, file, TESTS, KERNELWORKS_CPU_ISA=name)
        assert done.returncode == 0, done.stderr
        results[name] = torch.load(file)
    for a, b in zip(results["portable"], results[isa], strict=True):
        # Sums in another order: an ulp in the result, or as much of the row where terms cancel.
        close = (a.double() - b.double()).abs() <= 4e-7 * b.double().abs().amax()
        assert bool(((ulp_distance(a, b) <= 1) | close).all())
