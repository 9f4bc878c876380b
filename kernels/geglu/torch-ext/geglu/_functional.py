# SPDX-License-Identifier: Apache-2.0
"""The two functions: they choose the op, and explain a refusal."""

from __future__ import annotations

import torch

from ._ops import ops
from .vendor.refusal import REFUSED, refusal

# Resolved once: looking an overload up at each call costs as much as a small launch.
_geglu = ops.geglu.default
_geglu_train = ops.geglu_train.default
_geglu_split = ops.geglu_split.default
_geglu_split_train = ops.geglu_split_train.default

_IS_TANH = {"none": False, "tanh": True}
_IS_FIRST = {"last": False, "first": True}


def geglu(x: torch.Tensor, *, approximate: str = "none", gate: str = "last") -> torch.Tensor:
    """``value * gelu(gate)`` of the two halves of x's last dimension, a new contiguous tensor.

    Args:
        x: ``(..., 2D)``, float16, bfloat16 or float32 (float64 too on CPU). Any strides; rows whose elements
            are neighbours are read in place, both halves of them.
        approximate: ``"none"``, GELU by the error function; or ``"tanh"``, its approximation. The words are
            those of ``torch.nn.functional.gelu``.
        gate: which half gelu is applied to: ``"last"``, as in diffusers' ``GEGLU``; or ``"first"``, as in
            vLLM's ``gelu_and_mul`` and in the packed projection of ModernBERT.

    Returns:
        ``(..., D)``, of x's dtype.

    Raises:
        TypeError: an argument of the wrong type, dtype or layout.
        ValueError: an argument of the wrong shape, device or value.
    """
    try:
        tanh, first = _IS_TANH[approximate], _IS_FIRST[gate]
        if torch.is_grad_enabled() and x.requires_grad:
            return _geglu_train(x, tanh, first)
        return _geglu(x, tanh, first)
    except REFUSED as error:
        choices = {"approximate": (approximate, _IS_TANH), "gate": (gate, _IS_FIRST)}
        raise refusal("geglu", error, tensors={"x": x}, numbers={}, choices=choices) from None


def geglu_split(value: torch.Tensor, gate: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """``value * gelu(gate)``, a new contiguous tensor.

    Args:
        value, gate: ``(..., D)``, of one shape, dtype and device; dtypes and strides as in :func:`geglu`, the
            strides each its own.
        approximate: as in :func:`geglu`.

    Raises:
        TypeError: an argument of the wrong type, dtype or layout.
        ValueError: an argument of the wrong shape, device or value.
    """
    try:
        tanh = _IS_TANH[approximate]
        if torch.is_grad_enabled() and (value.requires_grad or gate.requires_grad):
            return _geglu_split_train(value, gate, tanh)
        return _geglu_split(value, gate, tanh)
    except REFUSED as error:
        tensors, choices = {"value": value, "gate": gate}, {"approximate": (approximate, _IS_TANH)}
        raise refusal("geglu_split", error, tensors=tensors, numbers={}, choices=choices) from None
