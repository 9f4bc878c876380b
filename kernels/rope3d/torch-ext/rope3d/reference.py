# SPDX-License-Identifier: Apache-2.0
"""The rotary embedding in plain torch: the truth that tests and benchmarks compare with.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, equation 34. Tensors are
laid out as the ops have them: (B, T, H, D).
"""

from __future__ import annotations

import torch


def angles(
    coords: torch.Tensor,
    inv_freq: torch.Tensor,
    axis: torch.Tensor | None = None,
    *,
    rounded: torch.dtype = torch.float32,
    compute: torch.dtype = torch.float64,
) -> torch.Tensor:
    """``(..., T, P)``, or ``(..., T, H, P)`` of an inv_freq for each head: rounded once, in ``compute``."""
    if axis is None:
        axis = torch.zeros(inv_freq.shape, dtype=torch.int64, device=inv_freq.device)
    return (coords.to(rounded)[..., axis.long()] * inv_freq.to(rounded)).to(compute)


def rotate(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool,
    compute: torch.dtype = torch.float64,
) -> torch.Tensor:
    """x turned by an entry for each pair, ``(..., T, P)`` or ``(..., T, H, P)``, not rounded."""
    cos, sin = (t.to(compute) if t.dim() == 4 else t.to(compute).unsqueeze(-2) for t in (cos, sin))
    turned = 2 * cos.shape[-1]
    wide = x.to(compute)
    pairs = (-1, 2) if interleaved else (2, -1)
    lane = -1 if interleaved else -2
    a, b = wide[..., :turned].unflatten(-1, pairs if turned else (0, 2)).unbind(lane if turned else -1)
    out = torch.stack([a * cos - b * sin, b * cos + a * sin], lane if turned else -1).flatten(-2)
    return torch.cat([out, wide[..., turned:]], -1)


def rope3d(
    x: torch.Tensor,
    coords: torch.Tensor,
    inv_freq: torch.Tensor,
    axis: torch.Tensor | None = None,
    *,
    interleaved: bool = True,
    compute: torch.dtype = torch.float64,
) -> torch.Tensor:
    """x turned by the sine and cosine, in ``compute``, of the angle as the kernel rounds it."""
    rounded = torch.float64 if x.dtype == torch.float64 else torch.float32
    angle = angles(coords, inv_freq, axis, rounded=rounded, compute=compute)
    if angle.dim() == 3 and inv_freq.dim() == 2:
        angle = angle.unsqueeze(0)
    return rotate(x, angle.cos(), angle.sin(), interleaved=interleaved, compute=compute)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float = 1e-6,
    *,
    norm: str = "head",
    compute: torch.dtype = torch.float64,
) -> torch.Tensor:
    """``x / sqrt(mean(x**2) + eps) * weight`` over a head, or over all heads of a token; in ``compute``."""
    wide = x.to(compute)
    dims = (-1,) if norm == "head" else (-2, -1)
    normed = wide * torch.rsqrt(wide.square().mean(dims, keepdim=True) + eps)
    if weight is None:
        return normed
    return normed * weight.to(compute).view(x.shape[-1:] if norm == "head" else x.shape[-2:])
