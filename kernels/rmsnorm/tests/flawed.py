# SPDX-License-Identifier: Apache-2.0
"""RMSNorm in plain torch with one deliberate mistake: the tests are run on it, and must fail.

`flawed(rmsnorm, None)` makes no mistake and must pass, so a failure is due to the mistake alone.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch


def _in_bf16(parts):
    """Adds up in bfloat16, as an accumulator of that type would."""
    total = torch.zeros_like(parts[0], dtype=torch.bfloat16)
    for part in parts:
        total = (total.float() + part.float()).bfloat16()
    return total


def _mean_of_squares(x, wide, flaw):
    squares = wide.square()
    if flaw == "squares_in_dtype":
        squares = x.square().to(wide.dtype)
    if flaw == "bf16_sum":
        parts = [part.sum(-1, keepdim=True) for part in squares.split(max(1, x.shape[-1] // 32), dim=-1)]
        return _in_bf16(parts).to(wide.dtype) / x.shape[-1]
    if flaw == "no_tail":
        squares = squares[..., : max(1, x.shape[-1] // 8 * 8)]
    if flaw == "batch_dependent" and x[..., 0].numel() > 255:
        return squares.flip(-1).cumsum(-1)[..., -1:] / x.shape[-1]
    return squares.sum(-1, keepdim=True) / x.shape[-1]


def _scale(weight, offset, wide, flaw):
    if flaw == "offset_in_dtype":
        return (weight + offset).to(wide.dtype)
    if flaw == "no_offset":
        return weight.to(wide.dtype)
    return weight.to(wide.dtype) + offset


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps, offset, before, flaw):
        if flaw == "row_stride":  # reads the rows as if they were packed
            packed = torch.empty(x.shape, device="meta").stride()
            x = x.detach().as_strided(x.shape, packed, x.storage_offset())
        wide = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
        eps = {"no_eps": 0.0, "fixed_eps": 1e-5}.get(flaw, eps)
        rstd = torch.rsqrt(_mean_of_squares(x, wide, flaw) + eps)
        y = wide * rstd
        if before != (flaw == "cast_order"):
            y = y.to(x.dtype).to(wide.dtype)
        if weight is not None:
            ctx.weight_dtype = weight.dtype
            weight = weight.to(x.dtype) if flaw == "weight_in_x_dtype" else weight
            y = y * _scale(weight, offset, wide, flaw)
        ctx.save_for_backward(x, weight, rstd.bfloat16() if flaw == "bf16_rstd" else rstd)
        ctx.options = offset, before, flaw
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        x, weight, rstd = ctx.saved_tensors
        offset, before, flaw = ctx.options
        wide, dy = x.to(rstd.dtype).float() if flaw == "bf16_rstd" else x.to(rstd.dtype), grad.to(rstd.dtype)
        normed = wide * rstd
        scaled = dy if weight is None else dy * _scale(weight, offset, wide, flaw)
        mean = 0 if flaw == "no_mean_term" else (scaled * normed).mean(-1, keepdim=True)
        dx = (rstd * (scaled - normed * mean)).to(x.dtype)
        if flaw == "overwrites_grad":
            grad.zero_()
        if weight is None or flaw == "no_weight_grad":
            return dx, None, None, None, None, None
        if before:
            normed = normed.to(x.dtype).to(normed.dtype)
        rows = (dy * normed).reshape(-1, x.shape[-1])
        dw = _in_bf16([part.sum(0) for part in rows.split(64)]) if flaw == "bf16_weight_grad" else rows.sum(0)
        return dx, dw.to(ctx.weight_dtype), None, None, None, None


def flawed(rmsnorm, flaw):
    """A stand-in for the kernel module, with the same reference beside it."""

    def rms_norm(x, weight=None, eps=1e-6, *, weight_offset=0.0, rounding="once"):
        return _Norm.apply(x, weight, eps, weight_offset, rounding == "before_weight", flaw)

    def add_rms_norm(x, residual, weight=None, eps=1e-6, *, weight_offset=0.0, rounding="once"):
        total = x + residual
        normed = {"no_residual": x, "unrounded_sum": x.float() + residual.float()}.get(flaw, total)
        y = rms_norm(normed, weight, eps, weight_offset=weight_offset, rounding=rounding)
        return y.to(x.dtype), total.detach().requires_grad_() if flaw == "no_grad_residual" else total

    return SimpleNamespace(rms_norm=rms_norm, add_rms_norm=add_rms_norm, reference=rmsnorm.reference)
