# SPDX-License-Identifier: Apache-2.0
"""LTX-Video with random weights: the real classes and sizes, and nothing to download.

For measuring, and for trying things out: the video shows noise. What T5 would make of a prompt is random too.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
from diffusers import AutoencoderKLLTXVideo, FlowMatchEulerDiscreteScheduler, LTXPipeline
from diffusers.models.transformers.transformer_ltx import LTXVideoTransformer3DModel
from torch import nn

PIXELS, FRAMES = 32, 8  # what one latent covers: a square of pixels that wide, so many frames
TEXT_TOKENS = 128

# As Lightricks/LTX-Video 0.9, 2B, has them; the tiny one keeps its kinds of layers and what a latent covers.
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "full": {
        "in_channels": 128,
        "out_channels": 128,
        "num_attention_heads": 32,
        "attention_head_dim": 64,
        "cross_attention_dim": 2048,
        "num_layers": 28,
        "caption_channels": 4096,
    },
    "tiny": {
        "in_channels": 8,
        "out_channels": 8,
        "num_attention_heads": 2,
        "attention_head_dim": 32,
        "cross_attention_dim": 64,
        "num_layers": 2,
        "caption_channels": 32,
    },
}
VAES: dict[str, dict[str, Any]] = {
    "full": {
        "latent_channels": 128,
        "block_out_channels": (128, 256, 512, 512),
        "decoder_block_out_channels": (128, 256, 512, 512),
        "layers_per_block": (4, 3, 3, 3, 4),
        "decoder_layers_per_block": (4, 3, 3, 3, 4),
    },
    "tiny": {
        "latent_channels": 8,
        "block_out_channels": (8, 8, 16, 16),
        "decoder_block_out_channels": (8, 8, 16, 16),
        "layers_per_block": (1, 1, 1, 1, 1),
        "decoder_layers_per_block": (1, 1, 1, 1, 1),
    },
}
SCHEDULER = {
    "use_dynamic_shifting": True,
    "base_shift": 0.95,
    "max_shift": 2.05,
    "base_image_seq_len": 1024,
    "max_image_seq_len": 4096,
    "shift_terminal": 0.1,
}


def random_transformer(
    size: str = "full",
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **config: Any,
) -> LTXVideoTransformer3DModel:
    """The transformer alone, in eval mode.

    Args:
        size: ``"full"`` or ``"tiny"``.
        device: where the weights are drawn and stay; another device draws others.
        dtype: of all parameters.
        seed: of the weights. Torch's generators are left as they were.
        config: what is to differ from that size, such as ``num_layers=4``.
    """
    settings = {**_of(TRANSFORMERS, size), **config}
    made: LTXVideoTransformer3DModel = _random(LTXVideoTransformer3DModel, settings, device, dtype, seed)
    return made


def random_pipeline(
    size: str = "full",
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> LTXPipeline:
    """Transformer, decoder and scheduler; no text encoder: call it with :func:`prompt_embeds`.

    Args:
        size, device, dtype, seed: as in :func:`random_transformer`.
    """
    transformer = random_transformer(size, device, dtype, seed)
    vae = _random(AutoencoderKLLTXVideo, _of(VAES, size), device, dtype, seed + 1)
    scheduler = FlowMatchEulerDiscreteScheduler(**SCHEDULER)  # type: ignore[no-untyped-call]
    return LTXPipeline(scheduler, vae, None, None, transformer)  # type: ignore[no-untyped-call]


def prompt_embeds(
    pipeline: Any, prompt: str = "", negative_prompt: str = "", tokens: int = TEXT_TOKENS
) -> dict[str, torch.Tensor]:
    """What the pipeline takes in place of a prompt: numbers that are the text's own, but mean nothing.

    Returns:
        ``prompt_embeds`` and ``negative_prompt_embeds``, ``(1, tokens, caption_channels)`` of the
        transformer's dtype; their attention masks, ``(1, tokens)``: a token for each word, one for the end.
    """
    transformer = pipeline.transformer
    embeds = {}
    for name, text in (("prompt", prompt), ("negative_prompt", negative_prompt)):
        generator = torch.Generator().manual_seed(zlib.crc32(text.encode()))
        values = torch.randn(1, tokens, transformer.config.caption_channels, generator=generator)
        length = min(len(text.split()) + 1, tokens)
        embeds[f"{name}_embeds"] = values.to(transformer.device, transformer.dtype)
        embeds[f"{name}_attention_mask"] = (torch.arange(tokens) < length).long()[None].to(transformer.device)
    return embeds


def latent_sizes(frames: int, height: int, width: int) -> tuple[int, int, int]:
    """Of a video in frames and pixels the latent's frames, height and width; their product is the tokens."""
    return (frames - 1) // FRAMES + 1, height // PIXELS, width // PIXELS


def transformer_inputs(
    transformer: LTXVideoTransformer3DModel,
    *,
    frames: int,
    height: int,
    width: int,
    batch: int = 2,
    text_tokens: int = TEXT_TOKENS,
    frame_rate: int = 25,
    seed: int = 0,
) -> dict[str, Any]:
    """The arguments of one pass, as the pipeline gives them in a step; random, on the transformer's device.

    Args:
        frames, height, width: of the video, in frames and pixels.
        batch: 2 is one video with guidance.
    """
    sizes = latent_sizes(frames, height, width)
    device, dtype = transformer.device, transformer.dtype
    config: Any = transformer.config
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    return {
        "hidden_states": randn(batch, sizes[0] * sizes[1] * sizes[2], config.in_channels),
        "encoder_hidden_states": randn(batch, text_tokens, config.caption_channels),
        "timestep": torch.full((batch,), 500.0, device=device, dtype=dtype),
        "encoder_attention_mask": torch.ones(batch, text_tokens, device=device, dtype=torch.long),
        "num_frames": sizes[0],
        "height": sizes[1],
        "width": sizes[2],
        "rope_interpolation_scale": (FRAMES / frame_rate, PIXELS, PIXELS),
        "return_dict": False,
    }


def _of(configs: dict[str, dict[str, Any]], size: str) -> dict[str, Any]:
    if size not in configs:
        raise ValueError(f"size is {size!r}, wanted {' or '.join(map(repr, configs))}")
    return configs[size]


def _random(
    kind: Any, config: dict[str, Any], device: torch.device | str, dtype: torch.dtype, seed: int
) -> Any:
    place = torch.device(device)
    with torch.random.fork_rng([place] if place.type == "cuda" else []), place, torch.no_grad():
        torch.manual_seed(seed)
        model: nn.Module = kind(**config)
        for name, parameter in model.named_parameters():
            if "norm" in name:  # all ones would hide a weight that is not read
                parameter.add_(0.2 * torch.randn_like(parameter))
    for parameter in model.parameters():  # in place of to(), which diffusers comments on
        parameter.data = parameter.data.to(dtype)
    return model.eval()
