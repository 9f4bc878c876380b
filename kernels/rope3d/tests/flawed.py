# SPDX-License-Identifier: Apache-2.0
"""The functions in plain torch with one deliberate mistake: the tests are run on it, and must fail.

`flawed(rope3d, None)` makes no mistake and must pass, so a failure is due to the mistake alone. What is
wrong in backward only is a term that autograd does not see, or a rotation of its own.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch


def _packed(tensor):
    """The elements as if they lay one after the other."""
    strides = torch.empty(tensor.shape, device="meta").stride()
    return tensor.as_strided(tensor.shape, strides, tensor.storage_offset())


def _wide(x):
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _angle_tables(q, coords, inv_freq, axis, flaw):
    """The cosine and the sine of each pair, (..., T, P)."""
    wide = _wide(q)
    coords, inv_freq = coords.to(wide), inv_freq.to(wide)
    if flaw == "angle_in_dtype":
        coords, inv_freq = coords.to(q.dtype).to(wide), inv_freq.to(q.dtype).to(wide)
    if axis is None or flaw == "axis_ignored":
        axis = torch.zeros(inv_freq.shape, dtype=torch.int64)
    if flaw == "batch_stride" and coords.dim() == 3:
        coords = coords[:1].expand_as(coords)
    if flaw == "shifted_tokens":
        coords = coords + 1
    angle = coords[..., axis.long()] * inv_freq
    if flaw == "no_angle_of_its_own":
        angle = angle[..., :1].expand_as(angle)
    if flaw == "single_step_reduction":
        angle = angle - torch.round(angle / (2 * math.pi)) * torch.tensor(2 * math.pi, dtype=wide)
    return angle.cos(), angle.sin()


def _entries(q, cos, sin, interleaved, per_pair, flaw):
    """From tables as they are given to one entry for each pair."""
    if flaw == "batch_stride" and cos.dim() == 3:
        cos, sin = cos[:1].expand_as(cos), sin[:1].expand_as(sin)
    if flaw == "table_stride":
        cos, sin = _packed(cos), _packed(sin)
    if flaw == "table_in_dtype":
        cos, sin = cos.to(q.dtype), sin.to(q.dtype)
    if not per_pair:
        first = (
            slice(None, None, 2) if interleaved != (flaw == "entries_misread") else slice(cos.shape[-1] // 2)
        )
        cos, sin = cos[..., first], sin[..., first]
    return cos, sin


class _Turn(torch.autograd.Function):
    """The rotation of all pairs; its gradient is the rotation back."""

    @staticmethod
    def forward(ctx, x, cos, sin, interleaved, flaw):
        ctx.save_for_backward(cos, sin)
        ctx.interleaved, ctx.flaw = interleaved, flaw
        return _turn(x, cos, sin, interleaved, flaw)

    @staticmethod
    def backward(ctx, grad):
        cos, sin = ctx.saved_tensors
        sign = 1 if ctx.flaw == "turns_on" else -1
        back = _turn(grad, cos, sign * sin, ctx.interleaved, ctx.flaw)
        if ctx.flaw == "overwrites_grad":
            grad.zero_()
        return back, None, None, None, None


def _turn(x, cos, sin, interleaved, flaw):
    turned = 2 * cos.shape[-1]
    if not turned:
        return x.clone()
    cos, sin = cos.unsqueeze(-2).to(x.dtype), sin.unsqueeze(-2).to(x.dtype)
    shape, lane = ((-1, 2), -1) if interleaved else ((2, -1), -2)
    a, b = x[..., :turned].unflatten(-1, shape).unbind(lane)
    if flaw == "sign":
        sin = -sin
    first = a * cos - b * sin
    second = b * cos + (first if flaw == "reads_what_it_wrote" else a) * sin
    out = torch.stack([first, second], lane).flatten(-2)
    rest = x[..., turned:]
    return torch.cat([out, torch.zeros_like(rest) if flaw == "rest_is_lost" else rest], -1)


def _rotated(x, tables, interleaved, flaw, dtype):
    """x in the accumulator's type, or already normalised, to its own type."""
    if flaw == "one_head_is_skipped" and x.shape[2] == 1:
        return x.to(dtype)
    wide = x.to(dtype) if flaw == "products_in_dtype" else x
    if flaw == "batch_dependent" and x.shape[1] > 255:
        wide = wide * (1 + 1e-6)
    interleaved = interleaved != (flaw == "other_layout")
    return _Turn.apply(wide, *tables, interleaved, flaw).to(dtype)


class _Weight(torch.autograd.Function):
    """normed * weight, its gradient added up in bfloat16, 16 rows at a time; or none at all."""

    @staticmethod
    def forward(ctx, normed, weight, flaw):
        ctx.save_for_backward(normed, weight)
        ctx.flaw = flaw
        return normed * weight.to(normed.dtype)

    @staticmethod
    def backward(ctx, grad):
        normed, weight = ctx.saved_tensors
        rows = (grad * normed).reshape(-1, weight.shape[-1])
        total = torch.zeros_like(rows[0], dtype=torch.bfloat16)
        for part in rows.split(16):
            total = (total.float() + part.float().sum(0)).bfloat16()
        return (
            grad * weight.to(grad.dtype),
            None if ctx.flaw == "no_weight_grad" else total.to(weight.dtype),
            None,
        )


def _normed(x, weight, eps, norm, flaw):
    value = x.to(_wide(x))
    if flaw == "norm_of_each_head":
        norm = "head"
    full = norm == "full"
    dims = (-2, -1) if full else (-1,)
    squares = x.square().to(value.dtype) if flaw == "squares_in_dtype" else value.square()
    eps = {"no_eps": 0.0, "fixed_eps": 1e-5}.get(flaw, eps)
    rstd = torch.rsqrt(squares.mean(dims, keepdim=True) + eps)
    if flaw == "bf16_rstd":
        rstd = rstd.bfloat16().to(value.dtype)
    value = value * (rstd.detach() if flaw == "no_mean_term" else rstd)
    if flaw == "rounds_before_weight":
        value = value.to(x.dtype).to(value.dtype)
    if weight is None or flaw == "no_weight":
        return value
    if weight.numel() != x.shape[-1]:
        value = value.flatten(-2)
    if flaw in ("bf16_weight_grad", "no_weight_grad"):
        return _Weight.apply(value, weight, flaw).view(x.shape)
    return (value * weight.to(value.dtype)).view(x.shape)


def flawed(rope3d, flaw):
    """A stand-in for the kernel module, with the same reference and presets beside it; no heads_first."""

    def both(q, k, turn):
        return turn(q) if k is None else (turn(q), turn(k))

    def plain(q, k, tables, interleaved):
        if flaw == "row_stride":
            q, k = _packed(q), None if k is None else _packed(k)
        return both(q, k, lambda x: _rotated(x.to(_wide(x)), tables, interleaved, flaw, x.dtype))

    def by_coords(q, k, coords, inv_freq, axis=None, *, interleaved=True):
        if flaw == "first_heads_frequencies":
            inv_freq = inv_freq[:1].expand_as(inv_freq)
        if inv_freq.dim() == 1:
            return plain(q, k, _angle_tables(q, coords, inv_freq, axis, flaw), interleaved)
        heads = [
            by_coords(x, None, coords, freq, which, interleaved=interleaved)
            for x, freq, which in zip(q.split(1, 2), inv_freq, axis, strict=True)
        ]
        return torch.cat(heads, 2)

    def by_tables(q, k, cos, sin, *, interleaved, per_pair=False):
        return plain(q, k, _entries(q, cos, sin, interleaved, per_pair, flaw), interleaved)

    def with_norm(
        q, k, q_weight, k_weight, coords=None, inv_freq=None, axis=None, *, cos=None, sin=None, eps=1e-6,
        norm="head", interleaved=True, per_pair=False,
    ):  # fmt: skip
        if coords is None:
            tables = _entries(q, cos, sin, interleaved, per_pair, flaw)
        else:
            tables = _angle_tables(q, coords, inv_freq, axis, flaw)
        weights = iter((q_weight, q_weight if flaw == "weight_of_q" else k_weight))

        def turn(x):
            return _rotated(_normed(x, next(weights), eps, norm, flaw), tables, interleaved, flaw, x.dtype)

        return both(q, k, turn)

    def in_place(q, k, *angles, interleaved=True):
        out = by_coords(q, k, *angles, interleaved=interleaved)
        q.copy_(out if k is None else out[0])
        if k is not None and flaw != "k_is_not_written":
            k.copy_(out[1])
        return q if k is None else (q, k)

    return SimpleNamespace(
        rope3d=by_coords,
        rope3d_=in_place,
        apply_rotary=by_tables,
        rms_norm_rope3d=with_norm,
        reference=rope3d.reference,
        presets=rope3d.presets,
    )
