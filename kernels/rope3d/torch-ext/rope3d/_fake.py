# SPDX-License-Identifier: Apache-2.0
"""Shapes and dtypes of the ops' results, for torch.compile and for meta tensors."""

from __future__ import annotations

import torch

from ._layout import accumulator
from ._ops import add_op_namespace_prefix


def _like(x: torch.Tensor | None, other: torch.Tensor) -> torch.Tensor:
    # Contiguous whatever x's strides are, as the op returns it.
    return other.new_empty((0,)) if x is None else x.new_empty(x.shape)


def _check(op: str, q: torch.Tensor, k: torch.Tensor | None, **others: torch.Tensor | None) -> None:
    """Refuses, while tracing, what the op itself would refuse at run time."""
    if q.dim() != 4:
        raise ValueError(f"{op}: q has shape {tuple(q.shape)}, wanted (B, T, H, D)")
    if k is not None:
        if k.dtype != q.dtype:
            raise TypeError(f"{op}: k is {k.dtype}, wanted {q.dtype} as q")
        if k.dim() != 4 or (*k.shape[:2], k.shape[3]) != (*q.shape[:2], q.shape[3]):
            raise ValueError(
                f"{op}: k has shape {tuple(k.shape)}, wanted ({q.shape[0]}, {q.shape[1]}, any, {q.shape[3]}) "
                "to go with q; a k of other tokens can be turned in a call of its own"
            )
    for name in ("coords", "cos", "sin"):
        tensor = others.get(name)
        if tensor is not None and (tensor.dim() not in (2, 3) or tensor.shape[-2] != q.shape[1]):
            raise ValueError(
                f"{op}: {name} has shape {tuple(tensor.shape)}, wanted ({q.shape[1]}, n) or "
                f"({q.shape[0]}, {q.shape[1]}, n) for the tokens of q"
            )
    for name in ("inv_freq", "cos"):
        tensor = others.get(name)
        if tensor is not None and 2 * tensor.shape[-1] > q.shape[-1]:
            pairs = tensor.shape[-1]
            raise ValueError(
                f"{op}: {name} has {pairs} pairs, which turn {2 * pairs} lanes, and q is {q.shape[-1]} wide"
            )
    for name, tensor in {"k": k, **others}.items():
        if tensor is not None and tensor.device != q.device:
            raise ValueError(f"{op}: {name} is on {tensor.device}, wanted {q.device} as q")


def _rope3d(q, k, coords, inv_freq, axis, interleaved, inverse):
    _check("rope3d", q, k, coords=coords, inv_freq=inv_freq, axis=axis)
    return _like(q, q), _like(k, q)


def _rope3d_in_place(q, k, coords, inv_freq, axis, interleaved, inverse):
    _check("rope3d_", q, k, coords=coords, inv_freq=inv_freq, axis=axis)


def _apply_rotary(q, k, cos, sin, interleaved, inverse):
    _check("apply_rotary", q, k, cos=cos, sin=sin)
    return _like(q, q), _like(k, q)


def _apply_rotary_in_place(q, k, cos, sin, interleaved, inverse):
    _check("apply_rotary_", q, k, cos=cos, sin=sin)


def _check_norm(q, k, q_weight, k_weight, coords, inv_freq, axis, cos, sin, full):
    op = "rms_norm_rope3d"
    angles = {"coords": coords, "inv_freq": inv_freq, "axis": axis, "cos": cos, "sin": sin}
    _check(op, q, k, q_weight=q_weight, k_weight=k_weight, **angles)
    for name, x, weight in (("q_weight", q, q_weight), ("k_weight", k, k_weight)):
        if x is None or weight is None:
            continue
        wanted = x.shape[2] * x.shape[3] if full else x.shape[3]
        if tuple(weight.shape) != (wanted,):
            raise ValueError(f"{op}: {name} has shape {tuple(weight.shape)}, wanted ({wanted},)")


def _rms_norm_rope3d(q, k, q_weight, k_weight, coords, inv_freq, axis, cos, sin, eps, full, interleaved):
    _check_norm(q, k, q_weight, k_weight, coords, inv_freq, axis, cos, sin, full)
    return _like(q, q), _like(k, q)


def _rms_norm_rope3d_train(
    q, k, q_weight, k_weight, coords, inv_freq, axis, cos, sin, eps, full, interleaved
):
    _check_norm(q, k, q_weight, k_weight, coords, inv_freq, axis, cos, sin, full)

    def rstd(x):
        if x is None:
            return q.new_empty((0,))
        return x.new_empty(x.shape[:2] if full else x.shape[:3], dtype=accumulator(x))

    return _like(q, q), _like(k, q), rstd(q), rstd(k)


def _rms_norm_rope3d_backward(
    grad_q, grad_k, q, k, q_weight, k_weight, q_rstd, k_rstd, coords, inv_freq, axis, cos, sin, full,
    interleaved, q_weight_grad, k_weight_grad,
):  # fmt: skip
    def like_weight(weight, x, wanted):
        like = weight if weight is not None else x if x is not None else q
        return like.new_empty(like.shape if wanted else (0,))

    grad_q_weight = like_weight(q_weight, q, q_weight_grad)
    grad_k_weight = like_weight(k_weight, k, k_weight_grad)
    return _like(q, q), _like(k, q), grad_q_weight, grad_k_weight


for _name, _fake in {
    "rope3d": _rope3d,
    "rope3d_train": _rope3d,
    "rope3d_": _rope3d_in_place,
    "apply_rotary": _apply_rotary,
    "apply_rotary_train": _apply_rotary,
    "apply_rotary_": _apply_rotary_in_place,
    "rms_norm_rope3d": _rms_norm_rope3d,
    "rms_norm_rope3d_train": _rms_norm_rope3d_train,
    "rms_norm_rope3d_backward": _rms_norm_rope3d_backward,
}.items():
    torch.library.register_fake(add_op_namespace_prefix(_name), _fake)
