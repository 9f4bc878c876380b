# SPDX-License-Identifier: Apache-2.0
"""Gradients of the ops that training calls.

A rotation is turned back, which is a rotation again and may be differentiated as often as one likes. The
backward op of the norm has no gradient, and says so.
"""

from __future__ import annotations

import torch

from ._ops import add_op_namespace_prefix, ops


def _turn_back(ctx, name, grad_q, grad_k):
    """The gradients of q and k, in one call where both are wanted and given."""
    angles = ctx.saved_tensors
    grads = [g if needed else None for g, needed in zip((grad_q, grad_k), ctx.needs_input_grad, strict=False)]
    first, *others = [g for g in grads if g is not None] or [None]
    if first is None:
        return None, None
    # Asked for with create_graph, a gradient of its own is on record.
    again = torch.is_grad_enabled() and any(g is not None and g.requires_grad for g in grads)
    op = getattr(ops, f"{name}_train" if again else name).default
    turned = op(first, *(others or (None,)), *angles, ctx.interleaved, not ctx.inverse)
    if others:
        return turned
    return (turned[0], None) if grads[0] is not None else (None, turned[0])


def _remember(ctx, angles, interleaved, inverse):
    ctx.save_for_backward(*angles)
    ctx.set_materialize_grads(False)
    ctx.interleaved = interleaved
    ctx.inverse = inverse


def _setup_rope3d(ctx, inputs, output):
    _, _, coords, inv_freq, axis, interleaved, inverse = inputs
    _remember(ctx, (coords, inv_freq, axis), interleaved, inverse)


def _backward_rope3d(ctx, grad_q, grad_k):
    return *_turn_back(ctx, "rope3d", grad_q, grad_k), None, None, None, None, None


def _setup_apply_rotary(ctx, inputs, output):
    _, _, cos, sin, interleaved, inverse = inputs
    _remember(ctx, (cos, sin), interleaved, inverse)


def _backward_apply_rotary(ctx, grad_q, grad_k):
    return *_turn_back(ctx, "apply_rotary", grad_q, grad_k), None, None, None, None


def _setup_rms_norm_rope3d(ctx, inputs, output):
    q, k, q_weight, k_weight, *angles, _, full, interleaved = inputs
    *_, q_rstd, k_rstd = output
    ctx.save_for_backward(q, k, q_weight, k_weight, q_rstd, k_rstd, *angles)
    ctx.mark_non_differentiable(q_rstd, k_rstd)
    ctx.set_materialize_grads(False)
    ctx.full = full
    ctx.interleaved = interleaved


def _backward_rms_norm_rope3d(ctx, grad_q, grad_k, _grad_q_rstd, _grad_k_rstd):
    q, k, q_weight, k_weight, q_rstd, k_rstd, *angles = ctx.saved_tensors
    needs = ctx.needs_input_grad
    sides = {
        "q": (grad_q, q, q_weight, q_rstd, q_weight is not None and needs[2]),
        "k": (grad_k, k, k_weight, k_rstd, k_weight is not None and needs[3]),
    }
    # Without a gradient of its own, a tensor takes no part.
    sides = {name: side for name, side in sides.items() if side[0] is not None and side[1] is not None}
    found = dict.fromkeys(("q", "k", "q_weight", "k_weight"))
    if sides:
        nothing = (None, None, None, None, False)
        grads, xs, weights, rstds, wanted = zip(*sides.values(), *[nothing] * (2 - len(sides)), strict=True)
        outputs = ops.rms_norm_rope3d_backward.default(
            *grads, *xs, *weights, *rstds, *angles, ctx.full, ctx.interleaved, *wanted
        )
        for i, name in enumerate(sides):
            found[name] = outputs[i]
            found[f"{name}_weight"] = outputs[2 + i] if wanted[i] else None
    return *found.values(), *[None] * 8


def _refuse_second_derivative(ctx, *grads):
    raise RuntimeError(
        "rms_norm_rope3d is not differentiable twice: its second derivative is not implemented"
    )


for _name, _backward, _setup in (
    ("rope3d_train", _backward_rope3d, _setup_rope3d),
    ("apply_rotary_train", _backward_apply_rotary, _setup_apply_rotary),
    ("rms_norm_rope3d_train", _backward_rms_norm_rope3d, _setup_rms_norm_rope3d),
):
    torch.library.register_autograd(add_op_namespace_prefix(_name), _backward, setup_context=_setup)
torch.library.register_autograd(
    add_op_namespace_prefix("rms_norm_rope3d_backward"), _refuse_second_derivative
)
