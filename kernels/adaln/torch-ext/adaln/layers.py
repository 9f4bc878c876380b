# SPDX-License-Identifier: Apache-2.0
"""Layers that kernelize puts in place of a model's own: a forward each, and no state of their own.

They keep the dtype of their hidden states, and round where the functions do: y once, where diffusers in half
precision rounds after the norm, the product and the sum.
"""

from __future__ import annotations

import torch
from torch import nn

from ._functional import ada_norm, gate_residual, gate_residual_ada_norm

__all__ = [
    "AdaLayerNormContinuous",
    "AdaLayerNormZero",
    "AdaLayerNormZeroSingle",
    "LTXVideoTransformerBlock",
    "WanTransformerBlock",
]


def _norm_arguments(norm: nn.Module) -> dict:
    """What a norm layer of the model, LayerNorm or diffusers' RMSNorm, is to the functions."""
    return {
        "eps": norm.eps,
        "norm": "layer" if isinstance(norm, nn.LayerNorm) else "rms",
        "weight": norm.weight,
        "bias": getattr(norm, "bias", None),
    }


def _modulators(table: torch.Tensor, temb: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of a table ``(N, D)`` and embeddings ``(B, T, N, D)`` the N pairs, which the ops add up."""
    return list(zip(table.to(temb.device).unbind(0), temb.unbind(2), strict=True))


class LTXVideoTransformerBlock(nn.Module):
    """In place of diffusers' block of LTX-Video (models/transformers/transformer_ltx.py).

    Reads ``norm1``, ``attn1``, ``norm2``, ``attn2``, ``ff`` and ``scale_shift_table``.
    """

    can_torch_compile = True
    has_backward = True

    scale_shift_table: torch.Tensor
    norm1: nn.Module
    norm2: nn.Module
    attn1: nn.Module
    attn2: nn.Module
    ff: nn.Module

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        temb: torch.Tensor,
        image_rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        dtype = hidden_states.dtype
        table = self.scale_shift_table
        temb = temb.reshape(hidden_states.size(0), temb.size(1), table.shape[0], -1)
        if temb.size(1) == 1:  # few enough to be added here, once, as the model does
            modulators = (table.to(temb.device) + temb).unbind(2)
        else:
            modulators = _modulators(table, temb)
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = modulators

        normed = ada_norm(hidden_states, scale_msa, shift_msa, **_norm_arguments(self.norm1))
        attended = self.attn1(
            hidden_states=normed, encoder_hidden_states=None, image_rotary_emb=image_rotary_emb
        )
        hidden_states = gate_residual(hidden_states, attended.to(dtype), gate_msa)

        attended = self.attn2(
            hidden_states,
            encoder_hidden_states=encoder_hidden_states,
            image_rotary_emb=None,
            attention_mask=encoder_attention_mask,
        )
        normed, hidden_states = gate_residual_ada_norm(
            hidden_states, attended.to(dtype), None, scale_mlp, shift_mlp, **_norm_arguments(self.norm2)
        )
        return gate_residual(hidden_states, self.ff(normed).to(dtype), gate_mlp)


class WanTransformerBlock(nn.Module):
    """In place of diffusers' block of Wan (models/transformers/transformer_wan.py), 2.1 and 2.2.

    Reads ``norm1``, ``attn1``, ``norm2`` (a norm or an identity), ``attn2``, ``norm3``, ``ffn`` and
    ``scale_shift_table``. ``temb`` is ``(B, 6, D)``, or ``(B, T, 6, D)`` with a timestep for each token.
    """

    can_torch_compile = True
    has_backward = True

    scale_shift_table: torch.Tensor
    norm1: nn.Module
    norm2: nn.Module
    norm3: nn.Module
    attn1: nn.Module
    attn2: nn.Module
    ffn: nn.Module

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        temb: torch.Tensor,
        rotary_emb: torch.Tensor,
    ) -> torch.Tensor:
        dtype = hidden_states.dtype
        if temb.ndim == 3:
            temb = temb.unsqueeze(1)
        pairs = _modulators(self.scale_shift_table.squeeze(0), temb)
        shift_msa, scale_msa, gate_msa, shift_ffn, scale_ffn, gate_ffn = pairs

        normed = ada_norm(hidden_states, scale_msa, shift_msa, **_norm_arguments(self.norm1))
        attended = self.attn1(normed, None, None, rotary_emb).to(dtype)
        if isinstance(self.norm2, nn.LayerNorm):
            normed, hidden_states = gate_residual_ada_norm(
                hidden_states, attended, gate_msa, **_norm_arguments(self.norm2)
            )
        else:
            hidden_states = gate_residual(hidden_states, attended, gate_msa)
            normed = self.norm2(hidden_states)

        attended = self.attn2(normed, encoder_hidden_states, None, None).to(dtype)
        normed, hidden_states = gate_residual_ada_norm(
            hidden_states, attended, None, scale_ffn, shift_ffn, **_norm_arguments(self.norm3)
        )
        return gate_residual(hidden_states, self.ffn(normed).to(dtype), gate_ffn)


class AdaLayerNormZero(nn.Module):
    """In place of diffusers' ``AdaLayerNormZero`` (models/normalization.py), of DiT, SD3 and Flux.

    Reads ``emb`` (may be None), ``silu``, ``linear`` and ``norm``.
    """

    can_torch_compile = True
    has_backward = True

    emb: nn.Module | None
    silu: nn.Module
    linear: nn.Module
    norm: nn.Module

    def forward(
        self,
        x: torch.Tensor,
        timestep: torch.Tensor | None = None,
        class_labels: torch.LongTensor | None = None,
        hidden_dtype: torch.dtype | None = None,
        emb: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        if self.emb is not None:
            emb = self.emb(timestep, class_labels, hidden_dtype=hidden_dtype)
        emb = self.linear(self.silu(emb))
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = emb.chunk(6, dim=1)
        y = ada_norm(x, scale_msa[:, None], shift_msa[:, None], **_norm_arguments(self.norm))
        return y, gate_msa, shift_mlp, scale_mlp, gate_mlp


class AdaLayerNormZeroSingle(nn.Module):
    """In place of diffusers' ``AdaLayerNormZeroSingle`` (models/normalization.py), of Flux.

    Reads ``silu``, ``linear`` and ``norm``.
    """

    can_torch_compile = True
    has_backward = True

    silu: nn.Module
    linear: nn.Module
    norm: nn.Module

    def forward(
        self,
        x: torch.Tensor,
        emb: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        shift_msa, scale_msa, gate_msa = self.linear(self.silu(emb)).chunk(3, dim=1)
        return ada_norm(x, scale_msa[:, None], shift_msa[:, None], **_norm_arguments(self.norm)), gate_msa


class AdaLayerNormContinuous(nn.Module):
    """In place of diffusers' ``AdaLayerNormContinuous`` (models/normalization.py), of SD3 and Flux.

    Reads ``silu``, ``linear`` and ``norm``, a layer norm or an RMS norm, with or without a weight.
    """

    can_torch_compile = True
    has_backward = True

    silu: nn.Module
    linear: nn.Module
    norm: nn.Module

    def forward(self, x: torch.Tensor, conditioning_embedding: torch.Tensor) -> torch.Tensor:
        scale, shift = self.linear(self.silu(conditioning_embedding).to(x.dtype)).chunk(2, dim=1)
        return ada_norm(x, scale[:, None], shift[:, None], **_norm_arguments(self.norm))
