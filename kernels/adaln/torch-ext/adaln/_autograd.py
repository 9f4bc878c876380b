# SPDX-License-Identifier: Apache-2.0
"""Gradients of the three ops that training calls; the backward op has none, and says so."""

from __future__ import annotations

import torch

from ._ops import add_op_namespace_prefix, ops
from ._shapes import to_part

_MODULATORS = ("gate", "gate_temb", "scale", "scale_temb", "shift", "shift_temb")
_COLUMNS = ("weight", "bias")
_SAVED = ("v", "x", *_MODULATORS, *_COLUMNS, "mean", "rstd")

_ADA_NORM = ("x", "scale", "scale_temb", "shift", "shift_temb", "weight", "bias", "eps", "layer")
_GATE_RESIDUAL = ("residual", "x", "gate", "gate_temb")
_GATE_RESIDUAL_ADA_NORM = (*_GATE_RESIDUAL, *_ADA_NORM[1:])


def _remember(ctx, names, inputs, layer, **outputs):
    """Keeps what backward will read: no x, and no shift, where no gradient of a modulator needs it."""
    # torch adds an argument of its own to those of the op.
    ctx.needs = dict(zip(names, ctx.needs_input_grad, strict=False))
    ctx.wants_modulators = any(ctx.needs.get(name) for name in _MODULATORS)
    ctx.wants_columns = any(ctx.needs.get(name) for name in _COLUMNS)
    given = {name: value for name, value in zip(names, inputs, strict=True) if name in _SAVED}
    unread = ("x", "shift", "shift_temb")
    if not ctx.wants_modulators:
        given.update(dict.fromkeys(unread))
    elif given.get("gate") is None:
        given["x"] = None
    given.update(outputs)
    ctx.save_for_backward(*[given.get(name) for name in _SAVED])
    ctx.mark_non_differentiable(*[outputs[name] for name in ("mean", "rstd") if name in outputs])
    ctx.set_materialize_grads(False)
    ctx.layer = layer


def _gradients(ctx, grad, grad_residual):
    """The gradients of the op's inputs, in their order. grad is that of y; None: the result was not used."""
    if grad is None and grad_residual is None:
        return (None,) * len(ctx.needs)
    saved = dict(zip(_SAVED, ctx.saved_tensors, strict=True))
    gated = saved["gate"] is not None
    lead = grad_residual if grad is None else grad
    if grad is None and not gated:
        return tuple(lead if name in ("residual", "x") else None for name in ctx.needs)
    grad_v, grad_x, grad_shift, grad_scale, grad_gate, grad_weight, grad_bias = ops.ada_norm_backward.default(
        grad, grad_residual, *saved.values(), ctx.layer, ctx.wants_modulators, ctx.wants_columns
    )
    found = {"residual": grad_residual if grad is None else grad_v, "x": grad_x if gated else grad_v}
    sums = {"gate": grad_gate}
    if grad is not None:
        found.update(weight=grad_weight, bias=grad_bias)
        sums.update(scale=grad_scale, shift=grad_shift)
    for name, total in sums.items():
        for part in (name, f"{name}_temb"):
            if ctx.needs.get(part):
                found[part] = to_part(total, saved[part], lead, copy=name in found)
    return tuple(found.get(name) if needed else None for name, needed in ctx.needs.items())


def _setup_ada_norm(ctx, inputs, output):
    _, mean, rstd = output
    _remember(ctx, _ADA_NORM, inputs, inputs[-1], v=inputs[0], mean=mean, rstd=rstd)


def _backward_ada_norm(ctx, grad, _grad_mean, _grad_rstd):
    return _gradients(ctx, grad, None)


def _setup_gate_residual(ctx, inputs, output):
    _remember(ctx, _GATE_RESIDUAL, inputs, False)


def _backward_gate_residual(ctx, grad):
    return _gradients(ctx, None, grad)


def _setup_gate_residual_ada_norm(ctx, inputs, output):
    _, total, mean, rstd = output
    _remember(ctx, _GATE_RESIDUAL_ADA_NORM, inputs, inputs[-1], v=total, mean=mean, rstd=rstd)


def _backward_gate_residual_ada_norm(ctx, grad, grad_residual, _grad_mean, _grad_rstd):
    return _gradients(ctx, grad, grad_residual)


def _refuse_second_derivative(ctx, *grads):
    raise RuntimeError("adaln is not differentiable twice: its second derivative is not implemented")


for _name, _backward, _setup in (
    ("ada_norm_train", _backward_ada_norm, _setup_ada_norm),
    ("gate_residual_train", _backward_gate_residual, _setup_gate_residual),
    ("gate_residual_ada_norm_train", _backward_gate_residual_ada_norm, _setup_gate_residual_ada_norm),
):
    torch.library.register_autograd(add_op_namespace_prefix(_name), _backward, setup_context=_setup)
torch.library.register_autograd(add_op_namespace_prefix("ada_norm_backward"), _refuse_second_derivative)
