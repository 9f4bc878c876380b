# SPDX-License-Identifier: Apache-2.0
"""How a modulator lies over x, as the ops see it: what fake ops and gradients must know of it."""

from __future__ import annotations

import torch


def is_per_sample(part: torch.Tensor, x: torch.Tensor) -> bool:
    """Whether a ``(N, D)`` modulator is a row for each sample, which torch's alignment would not make of it.

    It is where N is not 1, nor the last but one of three or more dimensions of x.
    """
    return part.dim() == 2 and x.dim() >= 3 and part.shape[0] != 1 and part.shape[0] != x.shape[-2]


def leading(x: torch.Tensor, parts: list[torch.Tensor]) -> int:
    """How many outer dimensions of x there are up to the last one over which a modulator varies."""
    most = 0
    for part in parts:
        if is_per_sample(part, x):
            most = max(most, 1)
            continue
        skipped = x.dim() - part.dim()
        for d in range(part.dim() - 2, -1, -1):
            if skipped + d < most:
                break
            if part.shape[d] != 1:
                most = skipped + d + 1
                break
    return most


def group_shape(x: torch.Tensor, parts: list[torch.Tensor]) -> list[int]:
    """Of a modulator's gradient as the op returns it: a row for each group of rows that share theirs."""
    count = leading(x, parts)
    return [*x.shape[:count], *[1] * (x.dim() - 1 - count), x.shape[-1]]


def accumulator_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def to_part(
    grad: torch.Tensor | None, part: torch.Tensor | None, x: torch.Tensor, *, copy: bool = False
) -> torch.Tensor | None:
    """A group's gradient, reduced to the shape and rounded to the dtype of one part of its modulator.

    The result may be ``grad`` itself, unless ``copy`` is set: the parts of a pair must not share memory.
    """
    if grad is None or part is None:
        return None
    if is_per_sample(part, x):
        rows = [part.shape[0], *[1] * (x.dim() - 2), part.shape[1]]
        return grad.sum_to_size(rows).reshape(part.shape).to(part.dtype, copy=copy)
    if grad.numel() == part.numel():
        return grad.reshape(part.shape).to(part.dtype, copy=copy)
    return grad.sum_to_size(part.shape).to(part.dtype, copy=copy)
