# SPDX-License-Identifier: Apache-2.0
"""Gradients of the two ops that training calls; the backward ops have none, and say so.

Nothing but the input is kept for backward, which computes the rest again.
"""

from __future__ import annotations

import torch

from ._ops import add_op_namespace_prefix, ops


def _setup_geglu(ctx, inputs, output):
    x, ctx.tanh, ctx.gate_first = inputs
    ctx.save_for_backward(x)


def _backward_geglu(ctx, grad):
    return ops.geglu_backward.default(grad, *ctx.saved_tensors, ctx.tanh, ctx.gate_first), None, None


def _setup_geglu_split(ctx, inputs, output):
    value, gate, ctx.tanh = inputs
    ctx.save_for_backward(value, gate)


def _backward_geglu_split(ctx, grad):
    return *ops.geglu_split_backward.default(grad, *ctx.saved_tensors, ctx.tanh), None


def _refuse_second_derivative(ctx, *grads):
    raise RuntimeError("geglu is not differentiable twice: its second derivative is not implemented")


torch.library.register_autograd(
    add_op_namespace_prefix("geglu_train"), _backward_geglu, setup_context=_setup_geglu
)
torch.library.register_autograd(
    add_op_namespace_prefix("geglu_split_train"), _backward_geglu_split, setup_context=_setup_geglu_split
)
for _name in ("geglu_backward", "geglu_split_backward"):
    torch.library.register_autograd(add_op_namespace_prefix(_name), _refuse_second_derivative)
