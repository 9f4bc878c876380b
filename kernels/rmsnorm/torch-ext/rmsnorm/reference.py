# SPDX-License-Identifier: Apache-2.0
"""RMSNorm in plain torch: the truth that tests and benchmarks compare with.

Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, equation 4.
"""

from __future__ import annotations

import torch


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    eps: float = 1e-6,
    *,
    weight_offset: float = 0.0,
    rounding: str = "once",
    compute: torch.dtype = torch.float64,
) -> torch.Tensor:
    """``x / sqrt(mean(x**2) + eps) * (weight + weight_offset)`` over the last dimension, in ``compute``.

    The result is returned in ``compute``, not rounded to ``x.dtype``, so that an error can be measured in
    units of the output's last place. With ``rounding="before_weight"`` the normalised value is rounded to
    ``x.dtype`` before the weight multiplies it, as transformers' ``LlamaRMSNorm`` does.
    """
    wide = x.to(compute)
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if rounding == "before_weight":
        normed = normed.to(x.dtype).to(compute)
    return normed if weight is None else normed * (weight.to(compute) + weight_offset)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None = None,
    eps: float = 1e-6,
    *,
    weight_offset: float = 0.0,
    rounding: str = "once",
    compute: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``residual_out = x + residual``, rounded to ``x.dtype``, and the norm of that rounded sum."""
    total = x + residual
    normed = rms_norm(total, weight, eps, weight_offset=weight_offset, rounding=rounding, compute=compute)
    return normed, total
