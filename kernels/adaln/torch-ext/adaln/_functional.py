# SPDX-License-Identifier: Apache-2.0
"""The three functions: they choose the op, and explain a refusal."""

from __future__ import annotations

import torch

from ._ops import ops
from .vendor.refusal import REFUSED, refusal

# A gate, scale or shift: a tensor, a table and an embedding of the timestep that are to be added, or none.
Modulator = torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None

# Resolved once: looking an overload up at each call costs as much as a small launch.
_ada_norm = ops.ada_norm.default
_ada_norm_train = ops.ada_norm_train.default
_gate_residual = ops.gate_residual.default
_gate_residual_train = ops.gate_residual_train.default
_gate_residual_ada_norm = ops.gate_residual_ada_norm.default
_gate_residual_ada_norm_train = ops.gate_residual_ada_norm_train.default

_IS_LAYER = {"rms": False, "layer": True}


def ada_norm(
    x: torch.Tensor,
    scale: Modulator = None,
    shift: Modulator = None,
    eps: float = 1e-6,
    *,
    norm: str = "rms",
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """``(n * weight + bias) * (1 + scale) + shift``, n the norm of x over its last dimension.

    Peebles and Xie, "Scalable Diffusion Models with Transformers", 2023, section 3.2. Everything is fp32
    (fp64 for float64) until y is rounded, once. The result is new, contiguous, of x's shape and dtype.

    Args:
        x: ``(..., D)``, float16, bfloat16 or float32 (float64 too on CPU). Any strides; rows whose elements
            are neighbours are read in place.
        scale, shift: None, a tensor, or a pair ``(table, temb)`` of tensors that is added in fp32. Each of
            any of those dtypes, whatever x's is, any strides, and a shape that torch broadcasts to x's and
            whose last dimension is D. Beside an x of three or more dimensions ``(N, D)`` may also be a row
            for each sample, where N is x's first size and not its last but one.
        eps: added to the mean square, or to the variance.
        norm: ``"rms"``, of the mean square; or ``"layer"``, of the variance about the mean.
        weight, bias: ``(D,)``, any of those dtypes, or None for none.

    Raises:
        TypeError: an argument of the wrong type, dtype or layout.
        ValueError: an argument of the wrong shape, device or value; a modulator that could mean two things.
    """
    given_scale, given_shift = scale, shift
    scale_temb = shift_temb = None
    try:
        if isinstance(scale, (tuple, list)):
            scale, scale_temb = _pair(scale)
        if isinstance(shift, (tuple, list)):
            shift, shift_temb = _pair(shift)
        layer = _IS_LAYER[norm]
        if torch.is_grad_enabled() and _any_requires_grad(
            x, scale, scale_temb, shift, shift_temb, weight, bias
        ):
            return _ada_norm_train(x, scale, scale_temb, shift, shift_temb, weight, bias, eps, layer)[0]
        return _ada_norm(x, scale, scale_temb, shift, shift_temb, weight, bias, eps, layer)
    except REFUSED as error:
        modulators = {"scale": given_scale, "shift": given_shift}
        raise _refusal(
            "ada_norm", error, {"x": x}, modulators, {"weight": weight, "bias": bias}, eps=eps, norm=norm
        ) from None


def gate_residual(residual: torch.Tensor, x: torch.Tensor, gate: Modulator) -> torch.Tensor:
    """``residual + gate * x``, formed in fp32 (fp64 for float64) and rounded once; a gate of None is 1.

    Args:
        residual, x: ``(..., D)``, of one shape, dtype and device; any strides, each its own.
        gate: a modulator, as scale in :func:`ada_norm`.

    Raises:
        TypeError: an argument of the wrong type, dtype or layout.
        ValueError: an argument of the wrong shape or device; a gate that could mean two things.
    """
    given_gate = gate
    gate_temb = None
    try:
        if isinstance(gate, (tuple, list)):
            gate, gate_temb = _pair(gate)
        if torch.is_grad_enabled() and _any_requires_grad(residual, x, gate, gate_temb):
            return _gate_residual_train(residual, x, gate, gate_temb)
        return _gate_residual(residual, x, gate, gate_temb)
    except REFUSED as error:
        rows = {"residual": residual, "x": x}
        raise _refusal("gate_residual", error, rows, {"gate": given_gate}, {}) from None


def gate_residual_ada_norm(
    residual: torch.Tensor,
    x: torch.Tensor,
    gate: Modulator,
    scale: Modulator = None,
    shift: Modulator = None,
    eps: float = 1e-6,
    *,
    norm: str = "rms",
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``residual_out = residual + gate * x`` and y, its :func:`ada_norm`, in one pass: ``(y, residual_out)``.

    The sum is rounded to x's dtype, returned, and that rounded sum is what is normalised, as in a model that
    adds and then normalises.

    Args:
        residual, x, gate: as in :func:`gate_residual`.
        scale, shift, eps, norm, weight, bias: as in :func:`ada_norm`.

    Raises:
        TypeError: an argument of the wrong type, dtype or layout.
        ValueError: an argument of the wrong shape, device or value; a modulator that could mean two things.
    """
    given_gate, given_scale, given_shift = gate, scale, shift
    gate_temb = scale_temb = shift_temb = None
    try:
        if isinstance(gate, (tuple, list)):
            gate, gate_temb = _pair(gate)
        if isinstance(scale, (tuple, list)):
            scale, scale_temb = _pair(scale)
        if isinstance(shift, (tuple, list)):
            shift, shift_temb = _pair(shift)
        layer = _IS_LAYER[norm]
        if torch.is_grad_enabled() and _any_requires_grad(
            residual, x, gate, gate_temb, scale, scale_temb, shift, shift_temb, weight, bias
        ):
            return _gate_residual_ada_norm_train(
                residual, x, gate, gate_temb, scale, scale_temb, shift, shift_temb, weight, bias, eps, layer
            )[:2]
        return _gate_residual_ada_norm(
            residual, x, gate, gate_temb, scale, scale_temb, shift, shift_temb, weight, bias, eps, layer
        )
    except REFUSED as error:
        modulators = {"gate": given_gate, "scale": given_scale, "shift": given_shift}
        raise _refusal(
            "gate_residual_ada_norm",
            error,
            {"residual": residual, "x": x},
            modulators,
            {"weight": weight, "bias": bias},
            eps=eps,
            norm=norm,
        ) from None


def _pair(modulator):
    """The parts of a pair; what is none is for the refusal to explain."""
    if len(modulator) != 2 or modulator[0] is None or modulator[1] is None:
        raise TypeError("not a pair of tensors")
    return modulator


def _any_requires_grad(*tensors: torch.Tensor | None) -> bool:
    return any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _refusal(op, error, rows, modulators, columns, *, eps=0.0, norm="rms") -> Exception:
    pairs = {name: tuple(value) if isinstance(value, list) else value for name, value in modulators.items()}
    return refusal(
        op,
        error,
        tensors={**rows, **pairs, **columns},
        optional=(*modulators, *columns),
        pairs=tuple(modulators),
        numbers={"eps": eps},
        choices={"norm": (norm, _IS_LAYER)},
    )
