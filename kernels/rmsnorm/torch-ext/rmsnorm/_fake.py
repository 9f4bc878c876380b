# SPDX-License-Identifier: Apache-2.0
"""Shapes and dtypes of the ops' results, for torch.compile and for meta tensors."""

from __future__ import annotations

import torch

from ._ops import add_op_namespace_prefix


def _like(x: torch.Tensor) -> torch.Tensor:
    # Contiguous whatever x's strides are, as the op returns it.
    return x.new_empty(x.shape)


def _rstd(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[:-1], dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)


def _check(op: str, x: torch.Tensor, weight: torch.Tensor | None, **like_x: torch.Tensor) -> None:
    """Refuses, while tracing, what the op itself would refuse at run time."""
    if x.dim() < 1:
        raise ValueError(f"{op}: x has no dimension, wanted at least one")
    if weight is not None and tuple(weight.shape) != tuple(x.shape[-1:]):
        raise ValueError(
            f"{op}: weight has shape {tuple(weight.shape)}, wanted ({x.shape[-1]},), the last dimension of x"
        )
    for name, tensor in like_x.items():
        if tensor.shape != x.shape:
            raise ValueError(f"{op}: {name} has shape {tuple(tensor.shape)}, wanted {tuple(x.shape)} as x")
        if tensor.dtype != x.dtype:
            raise TypeError(f"{op}: {name} is {tensor.dtype}, wanted {x.dtype} as x")
    for name, tensor in {"weight": weight, **like_x}.items():
        if tensor is not None and tensor.device != x.device:
            raise ValueError(f"{op}: {name} is on {tensor.device}, wanted {x.device} as x")


@torch.library.register_fake(add_op_namespace_prefix("rms_norm"))
def _rms_norm(x, weight, eps, weight_offset, round_before_weight):
    _check("rms_norm", x, weight)
    return _like(x)


@torch.library.register_fake(add_op_namespace_prefix("rms_norm_train"))
def _rms_norm_train(x, weight, eps, weight_offset, round_before_weight):
    _check("rms_norm", x, weight)
    return _like(x), _rstd(x)


@torch.library.register_fake(add_op_namespace_prefix("add_rms_norm"))
def _add_rms_norm(x, residual, weight, eps, weight_offset, round_before_weight):
    _check("add_rms_norm", x, weight, residual=residual)
    return _like(x), _like(x)


@torch.library.register_fake(add_op_namespace_prefix("add_rms_norm_train"))
def _add_rms_norm_train(x, residual, weight, eps, weight_offset, round_before_weight):
    _check("add_rms_norm", x, weight, residual=residual)
    return _like(x), _like(x), _rstd(x)


@torch.library.register_fake(add_op_namespace_prefix("rms_norm_backward"))
def _rms_norm_backward(grad, grad_residual, x, weight, rstd, weight_offset, round_before_weight, weight_grad):
    like = weight if weight is not None else x
    return _like(x), like.new_empty((x.shape[-1] if weight_grad else 0,))
