# SPDX-License-Identifier: Apache-2.0
"""The two functions: they choose the op, and explain a refusal."""

from __future__ import annotations

import torch

from ._ops import ops
from .vendor.refusal import REFUSED, refusal

# Resolved once: looking an overload up at each call costs as much as a small launch.
_rms_norm = ops.rms_norm.default
_rms_norm_train = ops.rms_norm_train.default
_add_rms_norm = ops.add_rms_norm.default
_add_rms_norm_train = ops.add_rms_norm_train.default

_ROUNDS_BEFORE_WEIGHT = {"once": False, "before_weight": True}


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    eps: float | None = 1e-6,
    *,
    weight_offset: float = 0.0,
    rounding: str = "once",
) -> torch.Tensor:
    """The RMSNorm of ``x`` over its last dimension, a new contiguous tensor of x's shape and dtype.

    Args:
        x: ``(..., D)``, float16, bfloat16 or float32 (float64 too on CPU). Any strides; rows whose elements
            are neighbours are read in place.
        weight: ``(D,)``, any of those dtypes, or None for none.
        eps: added to the mean square. None means what ``torch.nn.functional.rms_norm`` means by it: the
            machine epsilon of float32 (float64 for float64).
        weight_offset: added to the weight in fp32. Gemma's weights want 1.
        rounding: ``"once"``, at the end, as ``torch.nn.functional.rms_norm``; or ``"before_weight"``: the
            normalised value is rounded to x's dtype, then multiplied and rounded again, as transformers'
            Llama and Qwen layers do.

    Raises:
        TypeError: an argument of the wrong type, dtype or layout.
        ValueError: an argument of the wrong shape, device or value.
    """
    try:
        if eps is None:
            eps = _default_eps(x)
        before_weight = _ROUNDS_BEFORE_WEIGHT[rounding]
        if torch.is_grad_enabled() and (x.requires_grad or (weight is not None and weight.requires_grad)):
            return _rms_norm_train(x, weight, eps, weight_offset, before_weight)[0]
        return _rms_norm(x, weight, eps, weight_offset, before_weight)
    except REFUSED as error:
        raise _refusal("rms_norm", error, eps, weight_offset, rounding, x=x, weight=weight) from None


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None = None,
    eps: float | None = 1e-6,
    *,
    weight_offset: float = 0.0,
    rounding: str = "once",
) -> tuple[torch.Tensor, torch.Tensor]:
    """``residual_out = x + residual`` and its RMSNorm ``y``, in one pass: ``(y, residual_out)``.

    The sum is rounded to x's dtype, returned, and that rounded sum is what is normalised, as in a model that
    adds and then normalises.

    Args:
        x, residual: ``(..., D)``, of one shape and dtype; strides as in :func:`rms_norm`, each its own.
        weight, eps, weight_offset, rounding: as in :func:`rms_norm`.

    Raises:
        TypeError: an argument of the wrong type, dtype or layout.
        ValueError: an argument of the wrong shape, device or value.
    """
    try:
        if eps is None:
            eps = _default_eps(x)
        before_weight = _ROUNDS_BEFORE_WEIGHT[rounding]
        if torch.is_grad_enabled() and (
            x.requires_grad or residual.requires_grad or (weight is not None and weight.requires_grad)
        ):
            return _add_rms_norm_train(x, residual, weight, eps, weight_offset, before_weight)[:2]
        return _add_rms_norm(x, residual, weight, eps, weight_offset, before_weight)
    except REFUSED as error:
        raise _refusal(
            "add_rms_norm", error, eps, weight_offset, rounding, x=x, residual=residual, weight=weight
        ) from None


def _default_eps(x: torch.Tensor) -> float:
    return torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps


def _refusal(
    op: str, error: Exception, eps: object, weight_offset: object, rounding: object, **tensors: object
) -> Exception:
    numbers = {"eps": eps, "weight_offset": weight_offset}
    choices = {"rounding": (rounding, _ROUNDS_BEFORE_WEIGHT)}
    return refusal(op, error, tensors=tensors, optional=("weight",), numbers=numbers, choices=choices)
