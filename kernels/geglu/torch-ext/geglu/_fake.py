# SPDX-License-Identifier: Apache-2.0
"""Shapes and dtypes of the ops' results, for torch.compile and for meta tensors.

They refuse, while tracing, what the ops themselves would refuse at run time.
"""

from __future__ import annotations

import torch

from ._ops import add_op_namespace_prefix


def _like(tensor: torch.Tensor) -> torch.Tensor:
    # Contiguous whatever the strides are, as the op returns it.
    return tensor.new_empty(tensor.shape)


def _half_of(x: torch.Tensor) -> torch.Tensor:
    if x.dim() < 1:
        raise ValueError("geglu: x has no dimension, wanted at least one")
    if x.shape[-1] % 2 != 0:
        raise ValueError(
            f"geglu: x has shape {tuple(x.shape)}, wanted an even last dimension, which is two halves"
        )
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def _check_split(value: torch.Tensor, gate: torch.Tensor) -> None:
    if value.dim() < 1:
        raise ValueError("geglu_split: value has no dimension, wanted at least one")
    if gate.shape != value.shape:
        raise ValueError(
            f"geglu_split: gate has shape {tuple(gate.shape)}, wanted {tuple(value.shape)} as value"
        )
    if gate.dtype != value.dtype:
        raise TypeError(f"geglu_split: gate is {gate.dtype}, wanted {value.dtype} as value")
    if gate.device != value.device:
        raise ValueError(f"geglu_split: gate is on {gate.device}, wanted {value.device} as value")


@torch.library.register_fake(add_op_namespace_prefix("geglu"))
def _geglu(x, tanh, gate_first):
    return _half_of(x)


@torch.library.register_fake(add_op_namespace_prefix("geglu_train"))
def _geglu_train(x, tanh, gate_first):
    return _half_of(x)


@torch.library.register_fake(add_op_namespace_prefix("geglu_backward"))
def _geglu_backward(grad, x, tanh, gate_first):
    return _like(x)


@torch.library.register_fake(add_op_namespace_prefix("geglu_split"))
def _geglu_split(value, gate, tanh):
    _check_split(value, gate)
    return _like(value)


@torch.library.register_fake(add_op_namespace_prefix("geglu_split_train"))
def _geglu_split_train(value, gate, tanh):
    _check_split(value, gate)
    return _like(value)


@torch.library.register_fake(add_op_namespace_prefix("geglu_split_backward"))
def _geglu_split_backward(grad, value, gate, tanh):
    return _like(value), _like(value)
