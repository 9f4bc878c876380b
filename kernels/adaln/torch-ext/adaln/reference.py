# SPDX-License-Identifier: Apache-2.0
"""Modulated normalisation in plain torch: the truth that tests and benchmarks compare with.

Peebles and Xie, "Scalable Diffusion Models with Transformers", 2023, section 3.2 (adaLN-Zero); Ba, Kiros and
Hinton, "Layer Normalization", 2016; Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
"""

from __future__ import annotations

import torch


def _wide(modulator, x: torch.Tensor, compute: torch.dtype, absent: float) -> torch.Tensor:
    """The modulator in ``compute``, of a shape that torch broadcasts over ``x``; a pair's parts added up."""
    if modulator is None:
        return torch.full((), absent, dtype=compute, device=x.device)
    if isinstance(modulator, (tuple, list)):
        table, temb = modulator
        return _wide(table, x, compute, absent) + _wide(temb, x, compute, absent)
    wide = modulator.to(compute)
    if wide.dim() == 2 and x.dim() >= 3 and wide.shape[0] not in (1, x.shape[-2]):
        # A row for each sample.
        wide = wide.reshape(wide.shape[0], *[1] * (x.dim() - 2), wide.shape[1])
    return wide


def ada_norm(
    x: torch.Tensor,
    scale: object = None,
    shift: object = None,
    eps: float = 1e-6,
    *,
    norm: str = "rms",
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    compute: torch.dtype = torch.float64,
) -> torch.Tensor:
    """``(n * weight + bias) * (1 + scale) + shift`` in ``compute``, n the norm of x over its last dimension.

    The result is returned in ``compute``, not rounded to ``x.dtype``, so that an error can be measured in
    units of the output's last place.
    """
    wide = x.to(compute)
    if norm == "layer":
        wide = wide - wide.mean(-1, keepdim=True)
    result = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        result = result * weight.to(compute)
    if bias is not None:
        result = result + bias.to(compute)
    return result * (1 + _wide(scale, x, compute, 0.0)) + _wide(shift, x, compute, 0.0)


def gate_residual(
    residual: torch.Tensor,
    x: torch.Tensor,
    gate: object,
    *,
    compute: torch.dtype = torch.float64,
) -> torch.Tensor:
    """``residual + gate * x``, formed in ``compute`` and rounded, to ``x.dtype``; a gate of None is 1."""
    total = residual.to(compute) + _wide(gate, x, compute, 1.0) * x.to(compute)
    return total.to(x.dtype)


def gate_residual_ada_norm(
    residual: torch.Tensor,
    x: torch.Tensor,
    gate: object,
    scale: object = None,
    shift: object = None,
    eps: float = 1e-6,
    *,
    norm: str = "rms",
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    compute: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(y, residual_out)``: the gated sum of :func:`gate_residual`, and the norm of that rounded sum.

    An op that forms the sum in fp32 may round it to the neighbouring value. To judge its y alone, normalise
    the op's own sum: ``ada_norm(residual_out, scale, shift, ...)``.
    """
    total = gate_residual(residual, x, gate, compute=compute)
    y = ada_norm(total, scale, shift, eps, norm=norm, weight=weight, bias=bias, compute=compute)
    return y, total
