# SPDX-License-Identifier: Apache-2.0
"""The functions: they choose the op, lay q and k out for it, and explain a refusal."""

from __future__ import annotations

import torch

from . import _layout
from ._ops import ops
from .vendor.refusal import REFUSED, refusal

# Resolved once: looking an overload up at each call costs as much as a small launch.
_rope3d = ops.rope3d.default
_rope3d_train = ops.rope3d_train.default
_rope3d_in_place = ops.rope3d_.default
_apply_rotary = ops.apply_rotary.default
_apply_rotary_train = ops.apply_rotary_train.default
_apply_rotary_in_place = ops.apply_rotary_.default
_rms_norm_rope3d = ops.rms_norm_rope3d.default
_rms_norm_rope3d_train = ops.rms_norm_rope3d_train.default

_NORMS = {"head": False, "full": True}

Result = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


def rope3d(
    q: torch.Tensor,
    k: torch.Tensor | None,
    coords: torch.Tensor,
    inv_freq: torch.Tensor,
    axis: torch.Tensor | None = None,
    *,
    interleaved: bool = True,
    heads_first: bool = False,
) -> Result:
    """q and k turned by ``coords[token, axis[j]] * inv_freq[j]``, with no table: ``(q_out, k_out)``.

    Results are new tensors of q's dtype; q_out alone where k is None.

    Args:
        q: ``(B, T, H, D)``, or ``(B, T, D)`` for one head; float16, bfloat16 or float32 (float64 too on CPU).
            Any strides; heads whose lanes are neighbours are read in place.
        k: None, or like q with any number of heads. A k of other tokens wants a call of its own.
        coords: ``(T, A)`` or ``(B, T, A)`` numbers, A from 1 to 4: where each token is.
        inv_freq: ``(P,)``, the inverse frequency of each pair, ``2 * P <= D``; lanes beyond are copied bit
        for
            bit. ``(H, P)`` where each head has its own; q and k then have H heads.
        axis: of inv_freq's shape, which coordinate a pair turns by. None where A is 1.
        interleaved: pair j is lanes ``(2j, 2j + 1)``; else ``(j, j + P)``.
        heads_first: q and k are ``(B, H, T, D)``, and so are the results (views of ``(B, T, H, D)``).

    The angle is rounded to float32 (float64 for float64 q), and its sine and cosine are within 1e-6.

    Raises:
        TypeError: an argument of the wrong type, dtype or layout.
        ValueError: an argument of the wrong shape, device or value.
    """
    tensors = {"q": q, "k": k, "coords": coords, "inv_freq": inv_freq, "axis": axis}
    try:
        angles = _layout.positions(q, coords, inv_freq, axis)
        op = _rope3d_train if _needs_grad("rope3d", (q, k), coords=coords, inv_freq=inv_freq) else _rope3d
        return _turn("rope3d", op, q, k, angles, interleaved, heads_first)
    except REFUSED as error:
        raise refusal(
            "rope3d", error, tensors=tensors, optional=("k", "axis"), numbers={}, choices={}
        ) from None


def rope3d_(
    q: torch.Tensor,
    k: torch.Tensor | None,
    coords: torch.Tensor,
    inv_freq: torch.Tensor,
    axis: torch.Tensor | None = None,
    *,
    interleaved: bool = True,
    heads_first: bool = False,
) -> Result:
    """:func:`rope3d` in place: q and k are written, and returned (q alone where k is None).

    Their elements must have a place in memory each, q's others than k's, and must not require a gradient.
    """
    tensors = {"q": q, "k": k, "coords": coords, "inv_freq": inv_freq, "axis": axis}
    try:
        _refuse_grad("rope3d_", q, k)
        angles = _layout.positions(q, coords, inv_freq, axis)
        _turn_in_place("rope3d_", _rope3d_in_place, q, k, angles, interleaved, heads_first)
    except REFUSED as error:
        raise refusal(
            "rope3d_", error, tensors=tensors, optional=("k", "axis"), numbers={}, choices={}
        ) from None
    return q if k is None else (q, k)


def apply_rotary(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool,
    heads_first: bool = False,
    per_pair: bool = False,
) -> Result:
    """q and k turned by tables, as diffusers and transformers make them: ``(q_out, k_out)``.

    Args:
        q, k, interleaved, heads_first: as in :func:`rope3d`; so are the results.
        cos, sin: ``(T, W)`` or ``(B, T, W)``, where B may be 1; or with a dimension of heads where q has
        it, 1
            or, for tables of each head's own, as long as q's and k's. float16, bfloat16, float32 or float64,
            any strides. W is ``2 * P``, an entry for each lane that turns: both of a pair are equal, and the
            first lane's is read. Lanes from W on are copied bit for bit.
        per_pair: W is P instead, an entry for each pair.

    Raises:
        TypeError: an argument of the wrong type, dtype or layout.
        ValueError: an argument of the wrong shape, device or value.
    """
    tensors = {"q": q, "k": k, "cos": cos, "sin": sin}
    try:
        op = _apply_rotary_train if _needs_grad("apply_rotary", (q, k), cos=cos, sin=sin) else _apply_rotary
        tables = _tables("apply_rotary", cos, sin, interleaved, heads_first, per_pair)
        if tables[0].dim() == 4:
            return _turn_each_head(op, q, k, tables, interleaved, heads_first)
        return _turn("apply_rotary", op, q, k, tables, interleaved, heads_first)
    except REFUSED as error:
        raise refusal(
            "apply_rotary", error, tensors=tensors, optional=("k",), numbers={}, choices={}
        ) from None


def apply_rotary_(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool,
    heads_first: bool = False,
    per_pair: bool = False,
) -> Result:
    """:func:`apply_rotary` in place, under the conditions of :func:`rope3d_`; all heads share the tables."""
    tensors = {"q": q, "k": k, "cos": cos, "sin": sin}
    try:
        _refuse_grad("apply_rotary_", q, k)
        tables = _tables("apply_rotary_", cos, sin, interleaved, heads_first, per_pair)
        _turn_in_place("apply_rotary_", _apply_rotary_in_place, q, k, tables, interleaved, heads_first)
    except REFUSED as error:
        raise refusal(
            "apply_rotary_", error, tensors=tensors, optional=("k",), numbers={}, choices={}
        ) from None
    return q if k is None else (q, k)


def rms_norm_rope3d(
    q: torch.Tensor,
    k: torch.Tensor | None,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    coords: torch.Tensor | None = None,
    inv_freq: torch.Tensor | None = None,
    axis: torch.Tensor | None = None,
    *,
    cos: torch.Tensor | None = None,
    sin: torch.Tensor | None = None,
    eps: float | None = 1e-6,
    norm: str = "head",
    interleaved: bool = True,
    heads_first: bool = False,
    per_pair: bool = False,
) -> Result:
    """RMSNorm of q and k, times their weights, then the rotation, rounded once: ``(q_out, k_out)``.

    Args:
        q, k, interleaved, heads_first: as in :func:`rope3d`; so are the results.
        q_weight, k_weight: as long as what is normalised, of any of q's dtypes, or None for none.
        coords, inv_freq, axis: as in :func:`rope3d`, one inv_freq for all heads; or instead of them
        cos, sin, per_pair: as in :func:`apply_rotary`, one table for all heads.
        eps: added to the mean square. None means the machine epsilon of float32 (float64 for float64).
        norm: ``"head"``, over the D lanes of each head; or ``"full"``, over all ``H * D`` of a token.

    Raises:
        TypeError: an argument of the wrong type, dtype or layout.
        ValueError: an argument of the wrong shape, device or value.
    """
    op = "rms_norm_rope3d"
    given = {"coords": coords, "inv_freq": inv_freq, "axis": axis, "cos": cos, "sin": sin}
    tensors = {"q": q, "k": k, "q_weight": q_weight, "k_weight": k_weight, **given}
    try:
        if eps is None:
            eps = torch.finfo(_layout.accumulator(q)).eps
        full = _NORMS[norm]
        train = _needs_grad(op, (q, k, q_weight, k_weight), **given)
        if coords is not None and inv_freq is not None:
            coords, inv_freq, axis = _layout.positions(q, coords, inv_freq, axis)
        if cos is not None and sin is not None:
            cos, sin = _tables(op, cos, sin, interleaved, heads_first, per_pair)
        laid_q = _layout.to_op(op, "q", q, heads_first)
        laid_k = None if k is None else _layout.to_op(op, "k", k, heads_first)
        run = _rms_norm_rope3d_train if train else _rms_norm_rope3d
        angles = (coords, inv_freq, axis, cos, sin)
        out = run(laid_q, laid_k, q_weight, k_weight, *angles, eps, full, interleaved)
        return _results(out, q, k, heads_first)
    except REFUSED as error:
        raise refusal(
            op,
            error,
            tensors=tensors,
            optional=tensors.keys() - {"q"},
            numbers={"eps": eps},
            choices={"norm": (norm, _NORMS)},
        ) from None


def _needs_grad(op: str, trained: tuple[torch.Tensor | None, ...], **angles: torch.Tensor | None) -> bool:
    if not torch.is_grad_enabled():
        return False
    for name, tensor in angles.items():
        if tensor is not None and tensor.requires_grad:
            raise ValueError(f"{op}: {name} requires grad, and no gradient of angles is offered; detach it")
    return any(tensor is not None and tensor.requires_grad for tensor in trained)


def _refuse_grad(op: str, q: torch.Tensor, k: torch.Tensor | None) -> None:
    for name, tensor in (("q", q), ("k", k)):
        if tensor is not None and tensor.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{op}: {name} requires grad, and is not written in place; call {op.removesuffix('_')}"
            )


def _tables(
    op: str, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool, heads_first: bool, per_pair: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    cos = _layout.table(op, "cos", cos, interleaved, heads_first, not per_pair)
    return cos, _layout.table(op, "sin", sin, interleaved, heads_first, not per_pair)


def _turn(op, run, q, k, angles, interleaved, heads_first) -> Result:
    laid_q = _layout.to_op(op, "q", q, heads_first)
    laid_k = None if k is None else _layout.to_op(op, "k", k, heads_first)
    return _results(run(laid_q, laid_k, *angles, interleaved, False), q, k, heads_first)


def _results(out, q, k, heads_first) -> Result:
    q_out = _layout.from_op(out[0], q.dim(), heads_first)
    return q_out if k is None else (q_out, _layout.from_op(out[1], k.dim(), heads_first))


def _turn_in_place(op, run, q, k, angles, interleaved, heads_first) -> None:
    laid_q = _layout.to_op(op, "q", q, heads_first)
    laid_k = None if k is None else _layout.to_op(op, "k", k, heads_first)
    run(laid_q, laid_k, *angles, interleaved, False)


def _turn_each_head(run, q, k, tables, interleaved, heads_first) -> Result:
    """By tables of ``(B, T, H, pairs)``: to the op, a token's heads are tokens of one head each."""
    heads = tables[0].shape[2]
    flat = []
    for name, x in (("q", q), ("k", k)):
        if x is None:
            flat.append(None)
            continue
        laid = _layout.to_op("apply_rotary", name, x, heads_first)
        if laid.shape[2] != heads:
            raise ValueError(f"apply_rotary: {name} has {laid.shape[2]} heads, and cos those of {heads}")
        flat.append(laid.flatten(1, 2).unsqueeze(2))
    out = run(*flat, *(t.flatten(1, 2) for t in tables), interleaved, False)
    return _results(
        [t.unflatten(1, (-1, heads)).squeeze(3) for t in out[: 2 if k is not None else 1]], q, k, heads_first
    )
