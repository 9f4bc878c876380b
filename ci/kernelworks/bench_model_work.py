# SPDX-License-Identifier: Apache-2.0
"""A model prepared for measuring: its variants, which share their weights, and the work that each does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kernelworks.bench_model_record import BOTH, COMPILE, EAGER, KERNELS, Distance

# torch.compile as it comes: no CUDA graphs, no autotuning; a graph break is no error.
COMPILE_OPTIONS: dict[str, Any] = {"backend": "inductor", "mode": "default", "fullgraph": False}
WITH_KERNELS = (KERNELS, BOTH)
COMPILED = (COMPILE, BOTH)


@dataclass(frozen=True)
class Work:
    """One thing that users wait for."""

    name: str
    unit: str  # what a time is for
    units: int  # in one timed call
    samples: int  # timed calls of each variant
    profiled_units: int  # in the profiled call; 0 for none
    run: Callable[[str, int, Callable[[], None]], Any]  # (variant, units, begin); begin where time starts
    judge: Callable[[Any, Any], Distance]  # (output, eager's output, None for eager itself)


@dataclass(frozen=True)
class Prepared:
    """All that is to be measured of one model."""

    works: tuple[Work, ...]
    settings: Mapping[str, Any]
    replaced: Mapping[str, int]
    left: Mapping[str, int]
    weight_bytes: int
    forget_truth: Callable[[], None]  # gives its memory back, once all is judged


def twin(model: Any) -> Any:
    """A copy with hooks and forwards of its own, on the same parameters and buffers."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def widened(model: Any) -> Any:
    """The same weights in a wider type: fp64 for fp32, else fp32, whose rounding is far below theirs."""
    wide = copy.deepcopy(model)
    for tensor in (*wide.parameters(), *wide.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(wider(next(model.parameters()).dtype))
    return wide


def wider(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float32 else torch.float32


def as_wide(value: Any, dtype: torch.dtype) -> Any:
    """A floating tensor in a wider type, anything else as it is."""
    if isinstance(value, torch.Tensor) and value.dtype == dtype:
        return value.to(wider(dtype))
    return value


def variants_of(model: Any, wanted: tuple[str, ...], put_in: Callable[[Any], Any]) -> dict[str, Any]:
    """The model as each variant, none of them compiled yet; eager is the model itself."""
    with_kernels = None
    found = {EAGER: model}
    for name in wanted:
        if name in WITH_KERNELS and with_kernels is None:
            with_kernels = twin(model)
            put_in(with_kernels)
        if name != EAGER:
            found[name] = twin(with_kernels if name in WITH_KERNELS else model)
    return found


def bytes_of(model: Any) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())
