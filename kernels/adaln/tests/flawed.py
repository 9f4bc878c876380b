# SPDX-License-Identifier: Apache-2.0
"""Modulated normalisation in plain torch with one deliberate mistake: the tests are run on it, and must fail.

`flawed(adaln, None)` makes no mistake and must pass, so a failure is due to the mistake alone. What is wrong
in backward only is a term that autograd does not see, or a sum of its own.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from cases import expanded, parts


def _in_bf16(terms):
    """Adds up in bfloat16, as an accumulator of that type would."""
    total = torch.zeros_like(terms[0], dtype=torch.bfloat16)
    for term in terms:
        total = (total.float() + term.float()).bfloat16()
    return total


class _RowOverRows(torch.autograd.Function):
    """One row for all of x; its gradient is added up in bfloat16, 64 rows at a time."""

    @staticmethod
    def forward(ctx, row, x):
        ctx.row = row
        return expanded(row, x)

    @staticmethod
    def backward(ctx, grad):
        blocks = grad.reshape(-1, grad.shape[-1]).split(64)
        total = _in_bf16([block.float().sum(0) for block in blocks])
        return total.to(ctx.row.dtype).view(ctx.row.shape), None


class _Overwriting(torch.autograd.Function):
    """The identity, which leaves nothing of the upstream gradient."""

    @staticmethod
    def forward(ctx, y):
        return y.clone()

    @staticmethod
    def backward(ctx, grad):
        kept = grad.clone()
        grad.zero_()
        return kept


def _packed(tensor):
    """The rows as if they lay one after the other."""
    strides = torch.empty(tensor.shape, device="meta").stride()
    return tensor.as_strided(tensor.shape, strides, tensor.storage_offset())


def _broadcast(part, x, flaw):
    if flaw == "bf16_modulator_grad" and part.numel() == x.shape[-1]:
        return _RowOverRows.apply(part, x)
    if flaw == "modulator_stride" and part.dim() > 1:
        part = _packed(part)
    full = expanded(part, x)
    if flaw == "token_stride":
        full = full[..., :1, :].expand(x.shape)
    if flaw == "batch_stride":
        full = full[:1].expand(x.shape)
    return full


def _modulator(modulator, x, wide, flaw):
    broadcast = [_broadcast(part, x, flaw) for part in parts(modulator)]
    if flaw == "temb_lost":
        broadcast = broadcast[:1]
    if flaw == "pair_in_dtype" and len(broadcast) == 2:
        broadcast = [broadcast[0] + broadcast[1]]
    return sum(part.to(wide) for part in broadcast)


def _mean(values, flaw):
    """Over a row, in fp32."""
    if flaw == "no_tail":
        values = values[..., : max(1, values.shape[-1] // 8 * 8)]
    if flaw == "bf16_sum":
        blocks = values.split(max(1, values.shape[-1] // 32), dim=-1)
        return _in_bf16([b.sum(-1, keepdim=True) for b in blocks]).to(values.dtype) / values.shape[-1]
    if flaw == "batch_dependent" and values[..., 0].numel() > 255:
        return values.flip(-1).cumsum(-1)[..., -1:] / values.shape[-1]
    return values.mean(-1, keepdim=True)


def _normed(v, wide, norm, eps, flaw):
    eps = {"no_eps": 0.0, "fixed_eps": 1e-5}.get(flaw, eps)
    v = v.contiguous()  # or torch sums in another order
    value = v.to(wide)
    if norm == "layer":
        mean = _mean(value, flaw)
        if flaw == "naive_variance":
            variance = _mean(value.square(), flaw) - mean.square()
            return (value - mean) * torch.rsqrt(variance + eps)
        if flaw == "bf16_mean":
            mean = mean.bfloat16().to(wide)
        value = value - (mean.detach() if flaw == "no_mean_term" else mean)
    squares = v.square().to(wide) if flaw == "squares_in_dtype" else value.square()
    rstd = torch.rsqrt(_mean(squares, flaw) + eps)
    if flaw == "bf16_rstd":
        rstd = rstd.bfloat16().to(wide)
    return value * (rstd.detach() if flaw == "no_projection" else rstd)


def _norm(v, scale, shift, eps, norm, weight, bias, dtype, flaw):
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    y = _normed(_packed(v) if flaw == "row_stride" else v, wide, norm, eps, flaw)
    if flaw == "cast_order":
        y = y.to(dtype).to(wide)
    weight = weight.to(dtype) if flaw == "weight_in_x_dtype" and weight is not None else weight
    y = y if weight is None else y * weight.to(wide)
    y = y if bias is None else y + bias.to(wide)
    offset = 0 if shift is None else _modulator(shift, v, wide, flaw)
    if flaw == "shift_first":
        y, offset = y + offset, 0
    if scale is not None:
        factor = _modulator(scale, v, wide, flaw)
        if flaw == "scale_in_dtype":
            factor = factor.to(parts(scale)[0].dtype)
        y = y * (factor if flaw == "no_one" else (1 + factor).to(wide))
    y = (y + offset).to(dtype)
    return _Overwriting.apply(y) if flaw == "overwrites_grad" else y


def _gated(residual, x, gate, flaw):
    """The sum before and after its rounding, which autograd takes for the identity."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    term = x.to(wide)
    if gate is not None and flaw != "no_gate":
        term = _modulator(gate, x, wide, flaw) * term
    total = residual.to(wide) + term
    return total, total + (total.to(x.dtype).to(wide) - total).detach()


def flawed(adaln, flaw):
    """A stand-in for the kernel module, with the same reference beside it."""

    def ada_norm(x, scale=None, shift=None, eps=1e-6, *, norm="rms", weight=None, bias=None):
        return _norm(x, scale, shift, eps, norm, weight, bias, x.dtype, flaw)

    def gate_residual(residual, x, gate):
        return _gated(residual, x, gate, flaw)[1].to(x.dtype)

    def gate_residual_ada_norm(
        residual, x, gate, scale=None, shift=None, eps=1e-6, *, norm="rms", weight=None, bias=None
    ):
        unrounded, total = _gated(residual, x, gate, flaw)
        v = unrounded if flaw == "unrounded_sum" else x.to(total.dtype) if flaw == "no_residual" else total
        y = _norm(v, scale, shift, eps, norm, weight, bias, x.dtype, flaw)
        out = total.to(x.dtype)
        return y, out.detach().requires_grad_() if flaw == "no_grad_residual" else out

    return SimpleNamespace(
        ada_norm=ada_norm,
        gate_residual=gate_residual,
        gate_residual_ada_norm=gate_residual_ada_norm,
        reference=adaln.reference,
    )
