# SPDX-License-Identifier: Apache-2.0
"""For tests of the examples: kernels from their builds, what a call ran, and how near numbers must be."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernelworks import catalog, loader

ROOT = catalog.find_root(Path(__file__))
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # as `python -m` from there has it


def local_kernels(names: Iterable[str]) -> str:
    """LOCAL_KERNELS for these, which must have been built for the CPU."""
    kernels = [catalog.load(ROOT, name) for name in names]
    if missing := [kernel.name for kernel in kernels if not loader.loads(kernel, "cpu")]:
        pytest.skip(f"not built: {', '.join(missing)}; run `kernelworks build {' '.join(missing)}`")
    return ":".join(f"{kernel.repo_id}={kernel.directory}" for kernel in kernels)


def load(names: Iterable[str]) -> dict[str, ModuleType]:
    """They, by the loader of the examples."""
    from examples.loading import load_kernels

    names = list(names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_KERNELS", local_kernels(names))
        return load_kernels(names, "cpu")


class Ops(TorchDispatchMode):
    """Counts what runs: a kernel's ops by their name, torch's as ``aten::name``."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.shapes: list[tuple[str, list[tuple[int, ...]]]] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, _, name = op._schema.name.partition("::")
        name = f"aten::{name}" if space == "aten" else name
        self.counts[name] += 1
        self.shapes.append((name, [tuple(a.shape) for a in args if isinstance(a, torch.Tensor)]))
        return op(*args, **(kwargs or {}))

    def of_kernels(self) -> dict[str, int]:
        """Those that are no op of torch, as an injection counts them."""
        return {name: n for name, n in sorted(self.counts.items()) if "::" not in name}


def ops_of(call: Callable[[], object]) -> Ops:
    """What one call runs, without gradients."""
    with torch.no_grad(), Ops() as ops:
        call()
    return ops


def perturb(model: torch.nn.Module, by: float = 0.05) -> torch.nn.Module:
    """Norms have weights that matter then, and no linear map is zero."""
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        parameter.data += by * torch.randn(parameter.shape, generator=generator).to(parameter)
    return model


def assert_near(ours: torch.Tensor, theirs: torch.Tensor, truth: torch.Tensor | None = None) -> None:
    """In fp32 within 1e-5 of the largest; in half precision no further from fp32 than the model is.

    The kernels round where the model does and less often, so a quarter more is room for chance.
    """
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert bool(ours.isfinite().all())
    if truth is None:
        limit = 1e-5 * float(theirs.abs().max())
        torch.testing.assert_close(ours, theirs, rtol=0, atol=limit)
        return
    error, allowed = (float((t.float() - truth).square().mean().sqrt()) for t in (ours, theirs))
    assert 0 < error <= 1.25 * allowed


class OneThread:
    """Small tensors are not worth a second thread, which may have to wait for a core."""

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        torch.set_num_threads(self.before)
