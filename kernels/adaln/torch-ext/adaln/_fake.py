# SPDX-License-Identifier: Apache-2.0
"""Shapes and dtypes of the ops' results, for torch.compile and for meta tensors."""

from __future__ import annotations

import torch

from ._ops import add_op_namespace_prefix
from ._shapes import accumulator_dtype, group_shape, is_per_sample


def _like(x: torch.Tensor) -> torch.Tensor:
    # Contiguous whatever x's strides are, as the op returns it.
    return x.new_empty(x.shape)


def _statistics(x: torch.Tensor, layer: bool) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = accumulator_dtype(x.dtype)
    rstd = x.new_empty(x.shape[:-1], dtype=dtype)
    return torch.empty_like(rstd) if layer else x.new_empty((0,), dtype=dtype), rstd


def _accepted(x: torch.Tensor) -> str:
    width = x.shape[-1]
    shapes = [f"({width},)"]
    if x.dim() >= 3 and x.shape[0] > 1 and x.shape[0] != x.shape[-2]:
        shapes.append(f"({x.shape[0]}, {width})")
    aligned = str(width)
    for size in reversed(x.shape[:-1]):
        aligned = f"{size}, {aligned}" if size == 1 else f"{size} or 1, {aligned}"
        shapes.append(f"({aligned})")
    return shapes[0] if len(shapes) == 1 else f"{', '.join(shapes[:-1])} or {shapes[-1]}"


def _fits(part: torch.Tensor, x: torch.Tensor) -> bool:
    if not 1 <= part.dim() <= x.dim() or part.shape[-1] != x.shape[-1]:
        return False
    if is_per_sample(part, x):
        return part.shape[0] == x.shape[0]
    aligned = zip(reversed(part.shape[:-1]), reversed(x.shape[:-1]), strict=False)
    return all(size == 1 or size == wanted for size, wanted in aligned)


def _check_part(op: str, name: str, part: torch.Tensor, x: torch.Tensor) -> None:
    shape = tuple(part.shape)
    if part.dim() == 2 and x.dim() >= 3 and shape[0] != 1 and x.shape[0] == shape[0] == x.shape[-2] != 0:
        raise ValueError(
            f"{op}: {name} has shape {shape}, which fits two dimensions of x of shape {tuple(x.shape)}, "
            f"wanted ({shape[0]}, 1, {shape[1]}) or (1, {shape[0]}, {shape[1]})"
        )
    if not _fits(part, x):
        wanted = f"{_accepted(x)} for x of shape {tuple(x.shape)}"
        raise ValueError(f"{op}: {name} has shape {shape}, wanted {wanted}")


def _parts(**modulators: tuple[torch.Tensor | None, torch.Tensor | None]) -> dict[str, torch.Tensor]:
    """The parts that are there, by the names that a refusal gives them."""
    parts = {}
    for name, (first, second) in modulators.items():
        if first is not None:
            parts[name if second is None else f"{name}[0]"] = first
        if second is not None:
            parts[f"{name}[1]"] = second
    return parts


def _check(op, x, parts, weight=None, bias=None, **like_x) -> None:
    """Refuses, while tracing, what the op itself would refuse at run time."""
    if x.dim() < 1:
        raise ValueError(f"{op}: x has no dimension, wanted at least one")
    for name, tensor in like_x.items():
        if tensor.shape != x.shape:
            raise ValueError(f"{op}: {name} has shape {tuple(tensor.shape)}, wanted {tuple(x.shape)} as x")
        if tensor.dtype != x.dtype:
            raise TypeError(f"{op}: {name} is {tensor.dtype}, wanted {x.dtype} as x")
    columns = {name: tensor for name, tensor in (("weight", weight), ("bias", bias)) if tensor is not None}
    for name, tensor in {**like_x, **parts, **columns}.items():
        if tensor.device != x.device:
            raise ValueError(f"{op}: {name} is on {tensor.device}, wanted {x.device} as x")
    for name, part in parts.items():
        _check_part(op, name, part, x)
    for name, tensor in columns.items():
        if tensor.dim() != 1 or tensor.shape[0] != x.shape[-1]:
            wanted = f"({x.shape[-1]},), the last dimension of x"
            raise ValueError(f"{op}: {name} has shape {tuple(tensor.shape)}, wanted {wanted}")


@torch.library.register_fake(add_op_namespace_prefix("ada_norm"))
def _ada_norm(x, scale, scale_temb, shift, shift_temb, weight, bias, eps, layer):
    _check("ada_norm", x, _parts(scale=(scale, scale_temb), shift=(shift, shift_temb)), weight, bias)
    return _like(x)


@torch.library.register_fake(add_op_namespace_prefix("ada_norm_train"))
def _ada_norm_train(x, scale, scale_temb, shift, shift_temb, weight, bias, eps, layer):
    _check("ada_norm", x, _parts(scale=(scale, scale_temb), shift=(shift, shift_temb)), weight, bias)
    return _like(x), *_statistics(x, layer)


@torch.library.register_fake(add_op_namespace_prefix("gate_residual"))
def _gate_residual(residual, x, gate, gate_temb):
    _check("gate_residual", x, _parts(gate=(gate, gate_temb)), residual=residual)
    return _like(x)


@torch.library.register_fake(add_op_namespace_prefix("gate_residual_train"))
def _gate_residual_train(residual, x, gate, gate_temb):
    return _gate_residual(residual, x, gate, gate_temb)


def _both(residual, x, gate, gate_temb, scale, scale_temb, shift, shift_temb, weight, bias):
    parts = _parts(gate=(gate, gate_temb), scale=(scale, scale_temb), shift=(shift, shift_temb))
    _check("gate_residual_ada_norm", x, parts, weight, bias, residual=residual)
    return _like(x), _like(x)


@torch.library.register_fake(add_op_namespace_prefix("gate_residual_ada_norm"))
def _gate_residual_ada_norm(*arguments):
    return _both(*arguments[:10])


@torch.library.register_fake(add_op_namespace_prefix("gate_residual_ada_norm_train"))
def _gate_residual_ada_norm_train(*arguments):
    x, layer = arguments[1], arguments[11]
    return *_both(*arguments[:10]), *_statistics(x, layer)


@torch.library.register_fake(add_op_namespace_prefix("ada_norm_backward"))
def _ada_norm_backward(
    grad,
    grad_residual,
    v,
    x,
    gate,
    gate_temb,
    scale,
    scale_temb,
    shift,
    shift_temb,
    weight,
    bias,
    mean,
    rstd,
    layer,
    modulator_grads,
    affine_grads,
):
    has_grad = grad is not None
    lead = grad if has_grad else grad_residual
    given = [t for t in (gate, gate_temb, scale, scale_temb, shift, shift_temb) if t is not None]
    shape = group_shape(lead, given)
    wide = accumulator_dtype(lead.dtype)

    def rows(wanted):
        return lead.new_empty(lead.shape if wanted else (0,))

    def of_group(first, second, wanted):
        whole = first is not None and second is None and first.numel() == lead.new_empty(shape).numel()
        dtype = first.dtype if whole else wide
        return lead.new_empty(shape if wanted and first is not None else (0,), dtype=dtype)

    def of_columns(columns):
        like = lead if columns is None else columns
        wanted = columns is not None and affine_grads and has_grad
        return like.new_empty((lead.shape[-1] if wanted else 0,))

    return (
        rows(has_grad),
        rows(gate is not None),
        of_group(shift, shift_temb, modulator_grads and has_grad),
        of_group(scale, scale_temb, modulator_grads and has_grad),
        of_group(gate, gate_temb, modulator_grads),
        of_columns(weight),
        of_columns(bias),
    )
