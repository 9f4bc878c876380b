# SPDX-License-Identifier: Apache-2.0
"""The forwards of LTX-Video's modules with kernels in them, each for the class of diffusers that it names.

Each does what the forward of the class does, and calls the same submodules, save for norms that a kernel
takes in. Where such a norm has hooks, or a call asks for something rare, the forward of the class runs.

Made once for each kernel: that a module has one of them already is seen by identity.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.models.transformers.transformer_ltx import LTXVideoAttnProcessor

from examples.rebinding import Forward, is_plain


@functools.cache
def of_model(adaln: ModuleType) -> Forward:
    """For ``LTXVideoTransformer3DModel``: the last norm and its modulation are one pass."""
    ada_norm = adaln.ada_norm

    def forward(
        self: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        encoder_attention_mask: torch.Tensor | None,
        num_frames: int | None = None,
        height: int | None = None,
        width: int | None = None,
        rope_interpolation_scale: tuple[float, float, float] | torch.Tensor | None = None,
        video_coords: torch.Tensor | None = None,
        attention_kwargs: dict[str, Any] | None = None,
        return_dict: bool = True,
    ) -> Any:
        checkpoints = self.gradient_checkpointing and torch.is_grad_enabled()
        if checkpoints or attention_kwargs is not None or not is_plain(self.norm_out):
            return type(self).forward(
                self,
                hidden_states,
                encoder_hidden_states,
                timestep,
                encoder_attention_mask,
                num_frames,
                height,
                width,
                rope_interpolation_scale,
                video_coords,
                attention_kwargs,
                return_dict,
            )
        rotary = self.rope(hidden_states, num_frames, height, width, rope_interpolation_scale, video_coords)
        bias = encoder_attention_mask
        if bias is not None and bias.ndim == 2:
            bias = ((1 - bias.to(hidden_states.dtype)) * -10000.0).unsqueeze(1)

        hidden_states = self.proj_in(hidden_states)
        batch, _, width_of_token = hidden_states.shape
        temb, embedded = self.time_embed(
            timestep.flatten(), batch_size=batch, hidden_dtype=hidden_states.dtype
        )
        temb, embedded = temb.view(batch, -1, temb.size(-1)), embedded.view(batch, -1, embedded.size(-1))
        text = self.caption_projection(encoder_hidden_states).view(batch, -1, width_of_token)

        for block in self.transformer_blocks:
            hidden_states = block(
                hidden_states=hidden_states,
                encoder_hidden_states=text,
                temb=temb,
                image_rotary_emb=rotary,
                encoder_attention_mask=bias,
            )

        shift, scale = self.scale_shift_table.unbind(0)
        norm = self.norm_out
        normed = ada_norm(
            hidden_states,
            (scale, embedded),
            (shift, embedded),
            norm.eps,
            norm="layer",
            weight=norm.weight,
            bias=norm.bias,
        )
        output = self.proj_out(normed)
        return Transformer2DModelOutput(sample=output) if return_dict else (output,)

    return forward


@functools.cache
def of_block(adaln: ModuleType) -> Forward:
    """For ``LTXVideoTransformerBlock``: norms, modulation, gates and residual additions, in four passes."""
    fused = adaln.layers.LTXVideoTransformerBlock.forward

    def forward(
        self: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        temb: torch.Tensor,
        image_rotary_emb: Any = None,
        encoder_attention_mask: torch.Tensor | None = None,
    ) -> Any:
        run = fused if is_plain(self.norm1) and is_plain(self.norm2) else type(self).forward
        return run(self, hidden_states, encoder_hidden_states, temb, image_rotary_emb, encoder_attention_mask)

    return forward


@functools.cache
def of_attention(rope3d: ModuleType) -> Forward:
    """For ``LTXAttention``: norm and rotation of q and k are one pass; what attends stays diffusers'.

    The rotary embedding is a ``Rotary``, or the tables of diffusers. A processor that is not diffusers' own
    is called as ever, with tables.
    """
    norm_and_turn = rope3d.rms_norm_rope3d

    def forward(
        self: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: Any = None,
        **kwargs: Any,
    ) -> Any:
        processor, turns = self.processor, image_rotary_emb is not None
        without_tables = turns and len(image_rotary_emb) == 4  # a Rotary
        is_ours = type(processor) is LTXVideoAttnProcessor and not kwargs
        if not is_ours or (turns and not (is_plain(self.norm_q) and is_plain(self.norm_k))):
            if without_tables:
                image_rotary_emb = _tables(image_rotary_emb)
            return type(self).forward(
                self, hidden_states, encoder_hidden_states, attention_mask, image_rotary_emb, **kwargs
            )

        source = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        query, key, value = self.to_q(hidden_states), self.to_k(source), self.to_v(source)
        if not turns:
            query, key = self.norm_q(query), self.norm_k(key)
        else:
            norm_q, norm_k = self.norm_q, self.norm_k
            if without_tables:
                coords, inv_freq, axis, _ = image_rotary_emb
                query, key = norm_and_turn(
                    query, key, norm_q.weight, norm_k.weight, coords, inv_freq, axis, eps=norm_q.eps
                )
            else:
                cos, sin = image_rotary_emb
                query, key = norm_and_turn(
                    query, key, norm_q.weight, norm_k.weight, cos=cos, sin=sin, eps=norm_q.eps
                )

        batch, tokens, width = query.shape
        if attention_mask is not None:
            attention_mask = _mask(self, attention_mask, key.shape[1], batch)
        heads = (self.heads, width // self.heads)
        attended = dispatch_attention_fn(
            query.view(batch, tokens, *heads),
            key.view(batch, -1, *heads),
            value.view(batch, -1, *heads),
            attn_mask=attention_mask,
            dropout_p=0.0,
            is_causal=False,
            backend=processor._attention_backend,
            parallel_config=processor._parallel_config,
        )
        project, dropout = self.to_out
        return dropout(project(attended.flatten(2, 3).to(query.dtype)))

    return forward


@functools.cache
def of_rope(rope3d: ModuleType) -> Forward:
    """For ``LTXVideoRotaryPosEmbed``: coordinates and frequencies in place of tables as large as q and k.

    What hooks on it get is tables, as from diffusers.
    """
    fused = rope3d.layers.LTXVideoRotaryPosEmbed.forward

    def forward(self: Any, hidden_states: torch.Tensor, *sizes: Any, **named: Any) -> Any:
        run = fused if is_plain(self, forward) else type(self).forward
        return run(self, hidden_states, *sizes, **named)

    return forward


@functools.cache
def of_rms_norm(rmsnorm: ModuleType) -> Forward:
    """For ``torch.nn.RMSNorm`` and the ``RMSNorm`` of diffusers."""
    forward: Forward = rmsnorm.layers.RMSNorm.forward
    return forward


@functools.cache
def of_gelu() -> Forward:
    """For the ``GELU`` of diffusers on a GPU, where nothing trains: it ends the product in front of it.

    No kernel of this repository, but one of cuBLAS, which torch reaches by a function of its own.
    """

    def forward(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        proj = self.proj
        trains = torch.is_grad_enabled() and (hidden_states.requires_grad or proj.weight.requires_grad)
        is_linear = type(proj) is torch.nn.Linear and is_plain(proj)
        if trains or not is_linear or not hidden_states.is_cuda or torch.is_autocast_enabled("cuda"):
            own: torch.Tensor = type(self).forward(self, hidden_states)
            return own
        run = _linear_gelu if torch.compiler.is_compiling() else _cublas_linear_gelu
        result: torch.Tensor = run(hidden_states, proj.weight, proj.bias)
        return result

    return forward


def _cublas_linear_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """``gelu(x @ weight.T + bias, approximate="tanh")``, rounded once, in one kernel where cuBLAS has one."""
    made = torch._addmm_activation(bias, x.flatten(0, -2), weight.t(), use_gelu=True)
    return made.view(*x.shape[:-1], -1)


# torch.compile would take that function apart again.
_linear_gelu: Any = torch.library.custom_op(
    "kernelworks_ltx::linear_gelu", _cublas_linear_gelu, mutates_args=()
)


@_linear_gelu.register_fake  # type: ignore[untyped-decorator]
def _(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def _tables(rotary: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The cosines and sines ``(B, T, D)`` that diffusers makes, from a ``Rotary``."""
    coords, inv_freq, axis, _ = rotary
    angles = (coords[..., axis.long()] * inv_freq).repeat_interleave(2, dim=-1)
    if angles.dim() == 2:
        angles = angles.unsqueeze(0)
    return angles.cos(), angles.sin()


def _mask(attn: Any, mask: torch.Tensor, tokens: int, batch: int) -> Any:
    """``(B, heads or 1, T or 1, S)``: one mask for all heads is not copied for each of them."""
    if mask.ndim == 3 and mask.shape[0] == batch and mask.shape[-1] == tokens:
        return mask.unsqueeze(1)
    prepared = attn.prepare_attention_mask(mask, tokens, batch)
    return prepared.view(batch, attn.heads, -1, prepared.shape[-1])
