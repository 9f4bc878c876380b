# SPDX-License-Identifier: Apache-2.0
"""Gradients of the two ops that training calls; the backward op has none, and says so."""

from __future__ import annotations

import torch

from ._ops import add_op_namespace_prefix, ops


def _backward(ctx, grad_y, grad_residual):
    """Gradients of x (and so of the residual) and of the weight; the former alone when y was not used."""
    x, weight, rstd = ctx.saved_tensors
    if grad_y is None:
        return grad_residual, None
    wants_weight = weight is not None and ctx.wants_weight
    grad_x, grad_weight = ops.rms_norm_backward.default(
        grad_y, grad_residual, x, weight, rstd, ctx.weight_offset, ctx.round_before_weight, wants_weight
    )
    return grad_x, grad_weight if wants_weight else None


def _remember(ctx, x, weight, rstd, weight_offset, round_before_weight, wants_weight):
    ctx.save_for_backward(x, weight, rstd)
    ctx.mark_non_differentiable(rstd)
    ctx.set_materialize_grads(False)
    ctx.weight_offset = weight_offset
    ctx.round_before_weight = round_before_weight
    ctx.wants_weight = wants_weight


def _setup_rms_norm(ctx, inputs, output):
    x, weight, _, weight_offset, round_before_weight = inputs
    _remember(ctx, x, weight, output[1], weight_offset, round_before_weight, ctx.needs_input_grad[1])


def _backward_rms_norm(ctx, grad_y, _grad_rstd):
    grad_x, grad_weight = _backward(ctx, grad_y, None)
    return grad_x, grad_weight, None, None, None


def _setup_add_rms_norm(ctx, inputs, output):
    _, _, weight, _, weight_offset, round_before_weight = inputs
    _, total, rstd = output
    _remember(ctx, total, weight, rstd, weight_offset, round_before_weight, ctx.needs_input_grad[2])


def _backward_add_rms_norm(ctx, grad_y, grad_residual, _grad_rstd):
    grad_x, grad_weight = _backward(ctx, grad_y, grad_residual)
    return grad_x, grad_x, grad_weight, None, None, None


def _refuse_second_derivative(ctx, *grads):
    raise RuntimeError("rms_norm is not differentiable twice: its second derivative is not implemented")


torch.library.register_autograd(
    add_op_namespace_prefix("rms_norm_train"), _backward_rms_norm, setup_context=_setup_rms_norm
)
torch.library.register_autograd(
    add_op_namespace_prefix("add_rms_norm_train"), _backward_add_rms_norm, setup_context=_setup_add_rms_norm
)
torch.library.register_autograd(add_op_namespace_prefix("rms_norm_backward"), _refuse_second_derivative)
