# SPDX-License-Identifier: Apache-2.0
"""Coordinates and inverse frequencies of models, as their libraries compute them.

Each preset gives a ``Rotary`` for ``rope3d(q, k, *rotary.angles, interleaved=rotary.interleaved)``. Those of
diffusers turn neighbouring lanes, those of transformers the halves of a head. Where coordinates are a grid,
``offset`` and ``length`` choose the tokens of a shard of a longer sequence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ._grid import Rotary, check_shard, grid

__all__ = [
    "Rotary",
    "cogvideox",
    "flux",
    "grid",
    "hunyuan_video",
    "ltx2",
    "ltx_video",
    "qwen2_5_vl",
    "qwen3",
    "qwen3_vl",
    "wan",
]


def _powers(theta: float, dim: int, dtype: torch.dtype, device) -> torch.Tensor:
    """1 / theta**(2j / dim), rounded to float32 at the end.

    Worked out on the CPU, as models do when they are made: a GPU's powers differ in the last place, and far
    out in a sequence that is a thousandth of a radian.
    """
    exponents = torch.arange(0, dim, 2, dtype=dtype, device="cpu") / dim
    return (1.0 / theta**exponents).to(device, torch.float32)


def _by_axis(
    theta: float, dims: Sequence[int], dtype: torch.dtype, device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sections of `dims` lanes, one for each coordinate, beside each other: inv_freq and axis."""
    inv_freq = torch.cat([_powers(theta, dim, dtype, device) for dim in dims])
    return inv_freq, _sections([(i, dim // 2) for i, dim in enumerate(dims)], device)


def _sections(counts: Sequence[tuple[int, int]], device) -> torch.Tensor:
    """An axis of so many pairs each; made without asking a GPU how many there are."""
    return torch.cat([torch.full((count,), i, dtype=torch.int32, device=device) for i, count in counts])


def ltx_video(
    dim: int,
    video_coords: torch.Tensor | None = None,
    *,
    frames: int = 0,
    height: int = 0,
    width: int = 0,
    interpolation_scale: Sequence[float] | None = None,
    tokens: int | None = None,
    offset: int = 0,
    length: int | None = None,
    base_num_frames: int = 20,
    base_height: int = 2048,
    base_width: int = 2048,
    patch_size: int = 1,
    patch_size_t: int = 1,
    theta: float = 10000.0,
    device: torch.device | str | None = None,
) -> Rotary:
    """diffusers' ``LTXVideoRotaryPosEmbed``: over the full inner dim, before it is split into heads.

    Args:
        dim: the inner dimension. What 6 does not divide stands still, in the first lanes.
        video_coords: ``(B, 3, T)``, the pipeline's; else a grid of frames, height and width, times
            interpolation_scale if there is one.
    """
    bases = (base_num_frames, base_height, base_width)
    if video_coords is not None:
        coords = torch.stack([video_coords[:, i] / base for i, base in enumerate(bases)], -1)
        length = coords.shape[1] - offset if length is None else length
        check_shard("ltx_video", coords.shape[1], offset, length)
        coords = coords.narrow(1, offset, length)
    else:
        coords = grid(frames, height, width, tokens=tokens, offset=offset, length=length, device=device)
        if interpolation_scale is not None:
            patches = (patch_size_t, patch_size, patch_size)
            parts = zip(coords.unbind(-1), interpolation_scale, patches, bases, strict=True)
            coords = torch.stack([c * scale * patch / base for c, scale, patch, base in parts], -1)
    exponents = torch.linspace(
        math.log(1.0, theta), math.log(theta, theta), dim // 6, dtype=torch.float32, device=coords.device
    )
    inv_freq, axis = _fastest_last(theta**exponents * math.pi / 2.0, 3, dim)
    return Rotary(coords * 2 - 1, inv_freq, axis, True)


def _fastest_last(freqs: torch.Tensor, axes: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Each frequency for every coordinate in turn; pairs that stand still come first."""
    still = dim // 2 - len(freqs) * axes
    inv_freq = torch.cat([freqs.new_zeros(still), freqs.repeat_interleave(axes)])
    turning = torch.arange(axes, dtype=torch.int32, device=freqs.device).repeat(len(freqs))
    return inv_freq, torch.cat([turning.new_zeros(still), turning])


def ltx2(
    dim: int,
    coords: torch.Tensor,
    *,
    heads: int = 32,
    rope_type: str = "interleaved",
    double_precision: bool = True,
    max_positions: Sequence[int] = (20, 2048, 2048),
    theta: float = 10000.0,
) -> Rotary:
    """diffusers' ``LTX2AudioVideoRotaryPosEmbed``, of video or of audio.

    Args:
        dim: the inner dimension.
        coords: ``(B, A, T)``, or ``(B, A, T, 2)`` with the bounds of each patch, as its prepare_coords gives.
        rope_type: ``"interleaved"`` is for q and k of ``(B, T, dim)``, before the split into heads;
        ``"split"``
            for ``(B, T, heads, dim / heads)``, each head with frequencies of its own.
        max_positions: the base frames, height and width; the frames alone for audio.
    """
    if rope_type not in ("interleaved", "split"):
        raise ValueError(f"ltx2: rope_type is {rope_type!r}, wanted 'interleaved' or 'split'")
    if coords.dim() == 4:
        start, end = coords.chunk(2, dim=-1)
        coords = ((start + end) / 2.0).squeeze(-1)
    axes = coords.shape[1]
    places = torch.stack([coords[:, i] / max_positions[i] for i in range(axes)], -1)
    dtype = torch.float64 if double_precision else torch.float32
    steps = torch.linspace(0.0, 1.0, dim // (2 * axes), dtype=dtype, device=coords.device)
    freqs = (torch.pow(theta, steps) * math.pi / 2.0).to(torch.float32)
    inv_freq, axis = _fastest_last(freqs, axes, dim)
    interleaved = rope_type == "interleaved"
    if not interleaved:
        inv_freq, axis = inv_freq.view(heads, -1), axis.view(heads, -1)
    return Rotary(places * 2 - 1, inv_freq, axis, interleaved)


def wan(
    head_dim: int,
    frames: int,
    height: int,
    width: int,
    *,
    tokens: int | None = None,
    offset: int = 0,
    length: int | None = None,
    theta: float = 10000.0,
    device: torch.device | str | None = None,
) -> Rotary:
    """diffusers' ``WanRotaryPosEmbed``, of Wan 2.1 and 2.2; sizes in patches."""
    side = 2 * (head_dim // 6)
    inv_freq, axis = _by_axis(theta, (head_dim - 2 * side, side, side), torch.float64, device)
    coords = grid(frames, height, width, tokens=tokens, offset=offset, length=length, device=device)
    return Rotary(coords, inv_freq, axis, True)


def hunyuan_video(
    frames: int,
    height: int,
    width: int,
    *,
    rope_dim: Sequence[int] = (16, 56, 56),
    tokens: int | None = None,
    offset: int = 0,
    length: int | None = None,
    theta: float = 256.0,
    device: torch.device | str | None = None,
) -> Rotary:
    """diffusers' ``HunyuanVideoRotaryPosEmbed``; sizes in patches, tokens without those of the text."""
    inv_freq, axis = _by_axis(theta, rope_dim, torch.float32, device)
    coords = grid(frames, height, width, tokens=tokens, offset=offset, length=length, device=device)
    return Rotary(coords, inv_freq, axis, True)


def cogvideox(
    head_dim: int,
    frames: int,
    height: int,
    width: int,
    *,
    crops: tuple[tuple[int, int], tuple[int, int]] | None = None,
    tokens: int | None = None,
    offset: int = 0,
    length: int | None = None,
    theta: float = 10000.0,
    device: torch.device | str | None = None,
) -> Rotary:
    """diffusers' ``get_3d_rotary_pos_embed`` for CogVideoX; sizes in patches, tokens without those of the
    text.

    Args:
        crops: the corners that CogVideoX 1.0 stretches its grid between (``grid_type="linspace"``); None for
            1.5, which counts (``"slice"``).
    """
    inv_freq, axis = _by_axis(
        theta, (head_dim // 4, head_dim // 8 * 3, head_dim // 8 * 3), torch.float32, device
    )
    coords = grid(frames, height, width, tokens=tokens, offset=offset, length=length, device=device)
    if crops is not None:
        (top, left), (bottom, right) = crops
        spans = ((0, frames, frames), (top, bottom, height), (left, right, width))
        lines = [
            torch.linspace(first, last * (count - 1) / count, count, dtype=torch.float32, device=device)
            for first, last, count in spans
        ]
        coords = torch.stack([line[c.long()] for line, c in zip(lines, coords.unbind(-1), strict=True)], -1)
    return Rotary(coords, inv_freq, axis, True)


def flux(ids: torch.Tensor, *, axes_dim: Sequence[int] = (16, 56, 56), theta: float = 10000.0) -> Rotary:
    """diffusers' ``FluxPosEmbed``: ids ``(T, len(axes_dim))``, of the text and of the image."""
    inv_freq, axis = _by_axis(theta, axes_dim, torch.float64, ids.device)
    return Rotary(ids.to(torch.float32), inv_freq, axis, True)


def qwen3(
    positions: torch.Tensor, *, head_dim: int = 128, theta: float = 1e6, inv_freq: torch.Tensor | None = None
) -> Rotary:
    """Plain RoPE of transformers' Llama, Qwen2, Qwen3 and many more.

    Args:
        positions: ``(T,)`` or ``(B, T)``, the model's position_ids.
        inv_freq: that of a rotary embedding which scales it; then head_dim and theta are not read. Where a
            model scales cosines and sines besides (``attention_scaling``), use its tables.
    """
    if inv_freq is None:
        inv_freq = _powers(theta, head_dim, torch.float32, positions.device)
    return Rotary(positions.unsqueeze(-1).to(torch.float32), inv_freq, None, False)


def qwen2_5_vl(
    positions: torch.Tensor,
    *,
    sections: Sequence[int] = (16, 24, 24),
    theta: float = 1e6,
    inv_freq: torch.Tensor | None = None,
) -> Rotary:
    """M-RoPE of Qwen2-VL and Qwen2.5-VL: sections of pairs for time, height and width.

    Args:
        positions: ``(3, B, T)``, the model's position_ids.
        sections: pairs of each, together half a head (``mrope_section``).
    """
    rotary = _multimodal(positions, sum(sections), theta, inv_freq)
    return rotary._replace(axis=_sections([(i % 3, n) for i, n in enumerate(sections)], positions.device))


def qwen3_vl(
    positions: torch.Tensor,
    *,
    sections: Sequence[int] = (24, 20, 20),
    theta: float = 5e6,
    inv_freq: torch.Tensor | None = None,
) -> Rotary:
    """M-RoPE of Qwen3-VL: pairs for time, height and width by turns, as far as their sections go.

    Args:
        positions: ``(3, B, T)``, the model's position_ids.
        sections: as in :func:`qwen2_5_vl`.
    """
    rotary = _multimodal(positions, sum(sections), theta, inv_freq)
    axis = torch.zeros(sum(sections), dtype=torch.int32, device=positions.device)
    for which in (1, 2):
        axis[which : sections[which] * 3 : 3] = which
    return rotary._replace(axis=axis)


def _multimodal(positions: torch.Tensor, pairs: int, theta: float, inv_freq: torch.Tensor | None) -> Rotary:
    if inv_freq is None:
        inv_freq = _powers(theta, 2 * pairs, torch.float32, positions.device)
    return Rotary(positions.permute(1, 2, 0).to(torch.float32), inv_freq, None, False)
