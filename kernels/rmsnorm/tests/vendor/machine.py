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


WITHOUT_CODE = """
import sys
from pathlib import Path
import torch
from kernels import get_local_kernel
kernel = get_local_kernel(Path(sys.argv[1]))
for call in sys.argv[2:]:
    try:
        eval(call)
    except RuntimeError as error:
        print("REFUSED", error)
assert torch.ones(3, device="cuda").sum().item() == 3
major, minor = torch.cuda.get_device_capability()
print("ALIVE", f"{major}.{minor}")
"""


def assert_refused_without_code(**calls):
    """Where a build has no code for this GPU each op says so, and the process lives on.

    `calls` has a call of each op, an expression on `kernel`. KERNELWORKS_WRONG_ARCH_BUILD names the variant.
    """
    build = os.environ.get("KERNELWORKS_WRONG_ARCH_BUILD")
    if not build:
        pytest.skip("KERNELWORKS_WRONG_ARCH_BUILD names no variant that was built for another GPU")
    done = run_python(WITHOUT_CODE, Path(build).resolve(), *calls.values())
    assert done.returncode == 0, done.stderr
    refusals = [line for line in done.stdout.splitlines() if line.startswith("REFUSED")]
    capability = done.stdout.split("ALIVE ")[1].strip()
    for op, refusal in zip(calls, refusals, strict=True):
        assert f"{op}: " in refusal
        assert capability in refusal


MISSPELT = """
import sys
import torch
from kernels import get_kernel
kernel = get_kernel(sys.argv[1], version=1, backend="cpu")
try:
    eval(sys.argv[2])
except (RuntimeError, ValueError) as error:
    assert "KERNELWORKS_CPU_ISA" in str(error)
"""


def assert_misspelt_instruction_set(repository, call):
    """One that nobody knows is refused or ignored in `call`, an expression on `kernel`."""
    done = run_python(MISSPELT, repository, call, KERNELWORKS_CPU_ISA="sse9")
    assert done.returncode == 0, done.stderr
