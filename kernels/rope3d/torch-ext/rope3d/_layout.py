# SPDX-License-Identifier: Apache-2.0
"""From the layouts of models to that of the ops, (B, T, H, D), by views; and back."""

from __future__ import annotations

import torch


def to_op(op: str, name: str, x: torch.Tensor, heads_first: bool) -> torch.Tensor:
    """``(B, T, H, D)``, ``(B, H, T, D)`` or ``(B, T, D)`` as the first of them."""
    if x.dim() == 4:
        return x.transpose(1, 2) if heads_first else x
    if x.dim() == 3:
        return x.unsqueeze(2)
    wanted = "(B, H, T, D)" if heads_first else "(B, T, H, D)"
    raise ValueError(f"{op}: {name} has shape {tuple(x.shape)}, wanted {wanted} or (B, T, D)")


def from_op(x: torch.Tensor, dims: int, heads_first: bool) -> torch.Tensor:
    """The op's result in the layout that its input of `dims` dimensions had."""
    if dims == 3:
        return x.squeeze(2)
    return x.transpose(1, 2) if heads_first else x


def accumulator(x: torch.Tensor) -> torch.dtype:
    """Of what is computed from x: angles and statistics."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def positions(
    q: torch.Tensor, coords: torch.Tensor, inv_freq: torch.Tensor, axis: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The three in the dtypes that the ops take; integers count as numbers."""
    wide = accumulator(q)
    if coords.dtype != wide:
        coords = coords.to(wide)
    if inv_freq.dtype != wide:
        inv_freq = inv_freq.to(wide)
    if axis is not None and axis.dtype != torch.int32 and not axis.dtype.is_floating_point:
        axis = axis.to(torch.int32)
    return coords, inv_freq, axis


def table(
    op: str, name: str, entries: torch.Tensor, interleaved: bool, heads_first: bool, per_lane: bool
) -> torch.Tensor:
    """A table with one entry for each pair: ``(..., T, pairs)``, or ``(B, T, H, pairs)`` of several heads."""
    if entries.dim() == 4:
        if heads_first:
            entries = entries.transpose(1, 2)
        if entries.shape[2] == 1:
            entries = entries.squeeze(2)
    if not per_lane:
        return entries
    width = entries.shape[-1]
    if width % 2:
        raise ValueError(
            f"{op}: {name} has {width} entries for each token, wanted an even number: one for each lane"
        )
    return entries[..., ::2] if interleaved else entries[..., : width // 2]
