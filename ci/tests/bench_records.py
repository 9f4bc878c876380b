# SPDX-License-Identifier: Apache-2.0
"""Makes the records and cases that the tests of the benchmark look at."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from kernelworks.bench_record import Error, Machine, Measurement, Record

RMSNORM = Path(__file__).resolve().parents[2] / "kernels/rmsnorm"
ADALN = RMSNORM.parent / "adaln"
MACHINE = Machine(
    gpu=None,
    driver=None,
    clocks={},
    l2_bytes=None,
    cpu="a CPU",
    cores=2,
    python="3.11",
    torch="2.13",
    cuda=None,
    triton=None,
    system="Linux",
)


def error(**changes: Any) -> Error:
    values = {"output": "y", "ulps": 0.5, "relative": 1e-3, "absolute": 1e-2, "overall": 1e-3, "rows": 4}
    return Error(**{**values, **changes})


def measurement(ours: float = 10.0, complaint: str | None = None, **changes: Any) -> Measurement:
    """A row in which torch takes 20 microseconds and the other peer 30."""
    values: dict[str, Any] = {
        "suite": "seed",
        "name": "a model",
        "shape": (4, 1024),
        "dtype": "bfloat16",
        "threads": 1,
        "bytes": 1_000_000,
        "copy_rate": 200e9,
        "buffers": 2,
        "calls": None,
        "errors": {"ours": (error(complaint=complaint),), "torch": (error(),)},
        "samples": {} if complaint else {"ours": (ours,) * 3, "torch": (20.0,) * 3, "slow": (30.0,) * 3},
    }
    return Measurement(**{**values, **changes})


def record(*rows: Measurement, **changes: Any) -> Record:
    values: dict[str, Any] = {
        "kernel": "toy",
        "version": 1,
        "device": "cpu",
        "commit": "0123456789abcdef",
        "dirty": True,
        "command": "kernelworks bench toy",
        "date": "2026-01-01T00:00:00+00:00",
        "build": {"variant": "a-variant", "profile": "dev", "commit": None, "dirty": None},
        "machine": MACHINE,
        "suites": ("seed",),
        "repeats": 20,
        "measurements": rows,
        "host": (),
        "missing": {},
        "notes": {},
    }
    return Record(**{**values, **changes})


def module(path: Path) -> ModuleType:
    """A file, imported under its own name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def rmsnorm(change: Any = lambda y, calls: y) -> Any:
    """A stand-in for the kernel: torch's own, with a change planted in each y."""
    calls = [0]

    def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        calls[0] += 1
        wide = torch.nn.functional.rms_norm(x.float(), weight.shape, weight.float(), eps)
        return change(wide, calls[0]).to(x.dtype)

    def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Any:
        total = x + residual
        return rms_norm(total, weight, eps), total

    reference = module(RMSNORM / "torch-ext/rmsnorm/reference.py")
    return SimpleNamespace(rms_norm=rms_norm, add_rms_norm=add_rms_norm, reference=reference)


def adaln(**changes: Any) -> Any:
    """A stand-in for the kernel: its reference in fp32, with functions replaced."""
    reference = module(ADALN / "torch-ext/adaln/reference.py")
    wide = torch.float32

    def ada_norm(x: torch.Tensor, *others: Any, **choices: Any) -> torch.Tensor:
        return reference.ada_norm(x, *others, **choices, compute=wide).to(x.dtype)

    def gate_residual(*tensors: torch.Tensor) -> torch.Tensor:
        return reference.gate_residual(*tensors, compute=wide)

    def gate_residual_ada_norm(
        residual: torch.Tensor, x: torch.Tensor, gate: torch.Tensor, *others: Any, **choices: Any
    ) -> Any:
        total = stand_in.gate_residual(residual, x, gate)
        return stand_in.ada_norm(total, *others, **choices), total

    functions = {
        "ada_norm": ada_norm,
        "gate_residual": gate_residual,
        "gate_residual_ada_norm": gate_residual_ada_norm,
    }
    stand_in = SimpleNamespace(**functions, reference=reference)
    for name, change in changes.items():
        setattr(stand_in, name, change(getattr(stand_in, name)))
    return stand_in
