# SPDX-License-Identifier: Apache-2.0
"""Gated GELU in plain torch: the truth that tests and benchmarks compare with.

Shazeer, "GLU Variants Improve Transformer", 2020, equation 6; Hendrycks and Gimpel, "Gaussian Error Linear
Units", 2016, for gelu and its approximation.
"""

from __future__ import annotations

import math

import torch


def gelu(x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """``x * cdf(x)``, of the normal distribution, or what tanh makes of it, in the dtype of x.

    Written so that nothing cancels: ``1 + erf`` and ``1 + tanh`` lose every digit where x is negative.
    """
    if approximate == "tanh":
        u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return x * torch.sigmoid(2 * u)
    return x * (0.5 * torch.special.erfc(-x / math.sqrt(2)))


def geglu(
    x: torch.Tensor,
    *,
    approximate: str = "none",
    gate: str = "last",
    compute: torch.dtype = torch.float64,
) -> torch.Tensor:
    """``value * gelu(gate)`` of the halves of the last dimension, in ``compute``.

    The result is returned in ``compute``, not rounded to ``x.dtype``, so that an error can be measured in
    units of the output's last place.
    """
    first, last = x.chunk(2, -1)
    halves = (first, last) if gate == "last" else (last, first)
    return geglu_split(*halves, approximate=approximate, compute=compute)


def geglu_split(
    value: torch.Tensor,
    gate: torch.Tensor,
    *,
    approximate: str = "none",
    compute: torch.dtype = torch.float64,
) -> torch.Tensor:
    """``value * gelu(gate)`` in ``compute``."""
    return value.to(compute) * gelu(gate.to(compute), approximate=approximate)
