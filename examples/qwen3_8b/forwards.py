# SPDX-License-Identifier: Apache-2.0
"""The forwards of Qwen3's modules with kernels in them, each for the class of transformers that it names.

Each does what the forward of the class does, and calls the same submodules, save for those that a kernel
has taken in. Where such a module has hooks, or runs something else, it is called as ever.

Made once for each kernel: that a module has one of them already is seen by identity.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import DynamicCache
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, eager_attention_forward
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from examples.rebinding import Forward, is_plain

Pair = tuple[torch.Tensor, torch.Tensor]


def of_norm(rmsnorm: ModuleType) -> Forward:
    """For ``Qwen3RMSNorm``."""
    forward: Forward = rmsnorm.layers.LlamaRMSNorm.forward
    return forward


@functools.cache
def of_layer(rmsnorm: ModuleType) -> Forward:
    """For ``Qwen3DecoderLayer``: the sum behind attention and the norm of it are one pass."""
    attend_and_feed = _attend_and_feed(rmsnorm)

    def forward(self: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        normed = self.input_layernorm(hidden_states)
        fed, residual = attend_and_feed(self, normed, hidden_states, *args, **kwargs)
        total: torch.Tensor = residual + fed
        return total

    return forward


@functools.cache
def of_model(rmsnorm: ModuleType) -> Forward:
    """For ``Qwen3Model``: the sum at the end of a layer and the norm at the start of the next are one pass.

    For that, layers are taken apart, and not called; but one with hooks is, and so is one that is
    checkpointed.
    """
    add_norm, attend_and_feed, ours = _add_norm(rmsnorm), _attend_and_feed(rmsnorm), of_layer(rmsnorm)

    @merge_with_config_defaults  # type: ignore[untyped-decorator]
    @capture_outputs  # type: ignore[untyped-decorator]
    def forward(
        self: Any,
        input_ids: torch.Tensor | None = None,
        attention_mask: Any = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("You must specify exactly one of input_ids or inputs_embeds")
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        if position_ids is None:
            seen = 0 if past_key_values is None else past_key_values.get_seq_length()
            position_ids = torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device) + seen
            position_ids = position_ids.unsqueeze(0)
        masks = _masks(self, inputs_embeds, attention_mask, past_key_values, position_ids)
        shared = {
            "position_ids": position_ids,
            "past_key_values": past_key_values,
            "use_cache": use_cache,
            "position_embeddings": self.rotary_emb(inputs_embeds, position_ids),
            **kwargs,
        }

        x, residual = inputs_embeds, None  # the hidden states are x, or the sum of both
        layer_types = self.config.layer_types
        for index, layer in enumerate(list(self.layers)[: self.config.num_hidden_layers]):
            mask = masks[layer_types[index]]
            if _runs_plainly(layer, ours) and not (layer.gradient_checkpointing and layer.training):
                normed, residual = add_norm(layer.input_layernorm, x, residual)
                x, residual = attend_and_feed(layer, normed, residual, attention_mask=mask, **shared)
            else:
                hidden_states = x if residual is None else residual + x
                x, residual = layer(hidden_states, attention_mask=mask, **shared), None
        hidden_states, _ = add_norm(self.norm, x, residual)
        return BaseModelOutputWithPast(
            last_hidden_state=hidden_states, past_key_values=past_key_values if use_cache else None
        )

    wrapped: Forward = forward
    return wrapped


@functools.cache
def of_attention(rope3d: ModuleType, rmsnorm: ModuleType | None) -> Forward:
    """For ``Qwen3Attention``: the norms of q and k and their rotation are one pass, by the model's tables."""
    rms_norm_rope3d = rope3d.rms_norm_rope3d
    norm = None if rmsnorm is None else of_norm(rmsnorm)

    def forward(
        self: Any,
        hidden_states: torch.Tensor,
        position_embeddings: Pair,
        attention_mask: torch.Tensor | None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        q_norm, k_norm = self.q_norm, self.k_norm
        if not (_is_rms_norm(q_norm, norm) and _is_rms_norm(k_norm, norm)):
            run = type(self).forward
            return run(  # type: ignore[no-any-return]
                self, hidden_states, position_embeddings, attention_mask, past_key_values, **kwargs
            )
        before = hidden_states.shape[:-1]
        heads = (*before, -1, self.head_dim)
        cos, sin = position_embeddings
        query, key = rms_norm_rope3d(
            self.q_proj(hidden_states).view(heads),
            self.k_proj(hidden_states).view(heads),
            q_norm.weight,
            k_norm.weight,
            cos=cos,
            sin=sin,
            eps=q_norm.variance_epsilon,
            interleaved=False,
        )
        query, key = query.transpose(1, 2), key.transpose(1, 2)
        value = self.v_proj(hidden_states).view(heads).transpose(1, 2)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        attended, weights = attend(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            sliding_window=self.sliding_window,
            **kwargs,
        )
        return self.o_proj(attended.reshape(*before, -1).contiguous()), weights

    return forward


@functools.cache
def _add_norm(rmsnorm: ModuleType) -> Any:
    add_rms_norm, ours = rmsnorm.add_rms_norm, of_norm(rmsnorm)

    def add_norm(norm: Any, x: torch.Tensor, residual: torch.Tensor | None) -> Pair:
        """The norm of a sum, and the sum; a residual of None is nothing to add.

        Under autocast both have types of their own, and torch's sum has the wider one.
        """
        if residual is not None and x.dtype == residual.dtype and _runs_plainly(norm, ours):
            pair: Pair = add_rms_norm(
                x, residual, norm.weight, norm.variance_epsilon, rounding="before_weight"
            )
            return pair
        total = x if residual is None else residual + x
        return norm(total), total

    return add_norm


@functools.cache
def _attend_and_feed(rmsnorm: ModuleType) -> Any:
    add_norm = _add_norm(rmsnorm)

    def attend_and_feed(
        layer: Any,
        normed: torch.Tensor,
        residual: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = False,
        position_embeddings: Pair | None = None,
        **kwargs: Any,
    ) -> Pair:
        """A layer from behind its first norm to before its last sum: the two that are to be added."""
        attended, _ = layer.self_attn(
            hidden_states=normed,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
            position_embeddings=position_embeddings,
            **kwargs,
        )
        normed, residual = add_norm(layer.post_attention_layernorm, attended, residual)
        return layer.mlp(normed), residual

    return attend_and_feed


def _is_rms_norm(module: nn.Module, ours: Forward | None) -> bool:
    """Whether a call would run Qwen3's own norm, or ours of it, and nothing besides."""
    if module.__dict__.get("forward") is None:
        return type(module).forward == Qwen3RMSNorm.forward and is_plain(module)
    return ours is not None and is_plain(module, ours)


def _runs_plainly(module: nn.Module, ours: Forward) -> bool:
    """Whether a call would run this forward of ours and nothing besides."""
    return module.__dict__.get("forward") is not None and is_plain(module, ours)


def _masks(
    model: Any,
    inputs_embeds: torch.Tensor,
    attention_mask: Any,
    past_key_values: Any,
    position_ids: torch.Tensor,
) -> dict[str, Any]:
    """The mask of each type of layer; ``generate`` may have made them already."""
    if isinstance(attention_mask, dict):
        return attention_mask
    arguments = {
        "config": model.config,
        "inputs_embeds": inputs_embeds,
        "attention_mask": attention_mask,
        "past_key_values": past_key_values,
        "position_ids": position_ids,
    }
    masks = {"full_attention": create_causal_mask(**arguments)}
    if model.has_sliding_layers:
        masks["sliding_attention"] = create_sliding_window_causal_mask(**arguments)
    return masks
