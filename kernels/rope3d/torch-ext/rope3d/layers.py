# SPDX-License-Identifier: Apache-2.0
"""Layers that kernelize puts in place of a model's own, and a processor for the attention of LTX-Video.

A layer is a forward and no state of its own. Values are rounded where the functions round, once, where
models in half precision round oftener.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from ._functional import apply_rotary, rms_norm_rope3d
from ._grid import Rotary
from .presets import ltx_video

__all__ = ["LTXVideoAttnProcessor", "LTXVideoRotaryPosEmbed", "RotaryPosEmb"]


class RotaryPosEmb(nn.Module):
    """In place of the function ``apply_rotary_pos_emb`` of transformers' models, ``rotary_pos_emb`` to
    kernelize.

    For those that turn the halves of a head: Llama, Qwen2 and Qwen3, Mistral, Gemma and many more, M-RoPE
    included, whose tables are put together before. Results have q's and k's dtype, also beside fp32 tables.
    """

    can_torch_compile = True
    has_backward = True

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return apply_rotary(
            q,
            k,
            cos,
            sin,
            interleaved=False,
            heads_first=unsqueeze_dim in (1, -3),
            per_pair=2 * cos.shape[-1] == q.shape[-1],  # as gpt-oss has them
        )


class LTXVideoRotaryPosEmbed(nn.Module):
    """In place of diffusers' rotary embedding of LTX-Video: its result is a ``Rotary``, and there are no
    tables.

    For a model whose attention has :class:`LTXVideoAttnProcessor`. Reads ``dim``, ``base_num_frames``,
    ``base_height``, ``base_width``, ``patch_size``, ``patch_size_t`` and ``theta``.
    """

    can_torch_compile = True
    has_backward = True

    dim: int
    base_num_frames: int
    base_height: int
    base_width: int
    patch_size: int
    patch_size_t: int
    theta: float

    def forward(
        self,
        hidden_states: torch.Tensor,
        num_frames: int | None = None,
        height: int | None = None,
        width: int | None = None,
        rope_interpolation_scale: tuple[torch.Tensor, float, float] | None = None,
        video_coords: torch.Tensor | None = None,
    ) -> Rotary:
        return ltx_video(
            self.dim,
            video_coords,
            frames=num_frames,
            height=height,
            width=width,
            interpolation_scale=rope_interpolation_scale,
            tokens=hidden_states.shape[1],
            base_num_frames=self.base_num_frames,
            base_height=self.base_height,
            base_width=self.base_width,
            patch_size=self.patch_size,
            patch_size_t=self.patch_size_t,
            theta=self.theta,
            device=hidden_states.device,
        )


class LTXVideoAttnProcessor:
    """In place of diffusers' processor of that name: ``attn.set_processor(LTXVideoAttnProcessor())``.

    The norm and the rotation of q and k are one pass, from the tables that the model hands on or, with
    :class:`LTXVideoRotaryPosEmbed`, from none. Cross-attention, which gets no rotary embedding, is as it was.

    Args:
        attention: what attends, called as diffusers' ``dispatch_attention_fn`` is; None for torch's.
    """

    _attention_backend = None
    _parallel_config = None

    def __init__(self, attention: Callable[..., torch.Tensor] | None = None) -> None:
        self.attention = attention

    def __call__(
        self,
        attn: nn.Module,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: Rotary | tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        source = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        if attention_mask is not None:
            batch, tokens = source.shape[:2]
            attention_mask = attn.prepare_attention_mask(attention_mask, tokens, batch)
            attention_mask = attention_mask.view(batch, attn.heads, -1, attention_mask.shape[-1])

        query, key = attn.to_q(hidden_states), attn.to_k(source)
        query, key = _norm_and_turn(attn, query, key, image_rotary_emb)
        value = attn.to_v(source)
        query, key, value = (t.unflatten(2, (attn.heads, -1)) for t in (query, key, value))
        attended = self._attend(query, key, value, attention_mask).flatten(2, 3).to(query.dtype)
        return attn.to_out[1](attn.to_out[0](attended))

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        if self.attention is not None:
            return self.attention(
                query,
                key,
                value,
                attn_mask=mask,
                dropout_p=0.0,
                is_causal=False,
                backend=self._attention_backend,
                parallel_config=self._parallel_config,
            )
        heads_first = (t.transpose(1, 2) for t in (query, key, value))
        return scaled_dot_product_attention(*heads_first, attn_mask=mask).transpose(1, 2)


def _norm_and_turn(
    attn: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    rotary: Rotary | tuple[torch.Tensor, torch.Tensor] | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Over the inner dimension, as one head."""
    if rotary is None:
        return attn.norm_q(query), attn.norm_k(key)
    names = ("coords", "inv_freq", "axis") if isinstance(rotary, Rotary) else ("cos", "sin")
    angles = dict(zip(names, rotary, strict=False))
    weights = attn.norm_q.weight, attn.norm_k.weight
    return rms_norm_rope3d(query, key, *weights, eps=attn.norm_q.eps, **angles)
