# SPDX-License-Identifier: Apache-2.0
"""Describes the machine that a benchmark ran on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import torch

from kernelworks.bench_record import Machine
from kernelworks.errors import ToolchainError
from kernelworks.process import run

DRIVER = "driver_version"
CLOCKS = (
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "clocks.max.mem",
    "power.draw",
    "power.limit",
    "temperature.gpu",
)


def describe(device: str) -> Machine:
    """The machine as it is now."""
    on_gpu = device == "cuda"
    asked = nvidia_smi() if on_gpu else {}
    return Machine(
        gpu=torch.cuda.get_device_name() if on_gpu else None,
        driver=asked.pop(DRIVER, None),
        clocks=asked,
        l2_bytes=torch.cuda.get_device_properties().L2_cache_size if on_gpu else None,
        cpu=cpu_model(),
        cores=cores(),
        python=platform.python_version(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        triton=installed(["triton"]).get("triton"),
        system=f"{platform.system()} {platform.machine()}",
    )


def cores() -> int:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_model(info: Path = Path("/proc/cpuinfo")) -> str:
    """The name that the CPU gives itself, and the widest vectors that torch uses on it."""
    names = (
        [
            line.split(":", 1)[1].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        if info.is_file()
        else []
    )
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name} ({torch.backends.cpu.get_cpu_capability()})"


def nvidia_smi() -> dict[str, str]:
    """Driver and clocks of the current GPU, or nothing where that program is missing."""
    keys = (DRIVER, *CLOCKS)
    argv = [
        "nvidia-smi",
        f"--id=GPU-{str(torch.cuda.get_device_properties().uuid).removeprefix('GPU-')}",
        f"--query-gpu={','.join(keys)}",
        "--format=csv,noheader",
    ]
    try:
        done = run(argv)
    except ToolchainError:
        return {}
    values = [value.strip() for value in done.stdout.strip().split(",")]
    return dict(zip(keys, values, strict=True)) if done.returncode == 0 and len(values) == len(keys) else {}


def installed(packages: Iterable[str]) -> dict[str, str]:
    """The versions of those of the packages that are there."""
    found = {}
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
