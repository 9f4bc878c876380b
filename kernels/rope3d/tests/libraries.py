# SPDX-License-Identifier: Apache-2.0
"""The rotary embeddings of diffusers and transformers, each beside the preset that stands for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from unittest import mock

import torch
from vendor.layers import imported

DIFFUSERS, TRANSFORMERS = "diffusers.models.transformers", "transformers.models"
BATCH = 2
# How far the sines and cosines of the fp32 angle may be from the library's tables. Most compute the very same
# angle; two have it in fp64, where an fp32 angle is half an ulp of itself off, and so is its frequency.
SAME_ANGLE = 3e-7


@dataclass(frozen=True)
class Model:
    """A preset's Rotary, the library's tables, and the library's own rotation of (B, T, heads, width)."""

    rotary: tuple
    heads: int
    width: int
    tokens: int
    turn: Callable  # x -> the library's result, in the layout of x
    distance: float = SAME_ANGLE
    shards: Callable | None = None  # (offset, length) -> the preset of some tokens


def flat(x):
    return x.flatten(2)


def heads_first(turn):
    return lambda x: turn(x.transpose(1, 2)).transpose(1, 2)


def like(x):
    """What a rotary embedding reads of its input: dtype and device."""
    return torch.empty(0, dtype=x.dtype, device=x.device)


def ltx_video(presets, device, dim=2048, with_coords=False):
    embed = imported(f"{DIFFUSERS}.transformer_ltx", "LTXVideoRotaryPosEmbed")(dim)
    apply = imported(f"{DIFFUSERS}.transformer_ltx", "apply_rotary_emb")
    sizes, scale, tokens = {"num_frames": 3, "height": 4, "width": 5}, (8 / 25, 32.0, 32.0), 60
    coords = None
    if with_coords:
        coords = torch.rand(BATCH, 3, tokens, generator=torch.Generator().manual_seed(0)).to(device) * 100
        sizes, scale = {}, None
    hidden = torch.empty(BATCH, tokens, 1, device=device)
    tables = embed(hidden, **sizes, rope_interpolation_scale=scale, video_coords=coords)
    grid = {} if with_coords else {"frames": 3, "height": 4, "width": 5, "interpolation_scale": scale}

    def preset(**shard):
        return presets.ltx_video(dim, coords, **grid, device=device, **shard)

    return Model(preset(), 1, dim, tokens, lambda x: apply(flat(x), tables).unsqueeze(2), shards=preset)


def ltx2(presets, device, rope_type="interleaved", modality="video", dim=128, **options):
    names = ("LTX2AudioVideoRotaryPosEmbed", "apply_interleaved_rotary_emb", "apply_split_rotary_emb")
    embed, interleaved, split = (imported(f"{DIFFUSERS}.transformer_ltx2", name) for name in names)
    heads = 4
    module = embed(dim, rope_type=rope_type, modality=modality, num_attention_heads=heads, **options)
    sizes = (3, 4, 5) if modality == "video" else (60,)
    coords = module.prepare_coords(BATCH, *sizes, device=device)
    tables = module(coords)
    positions = {} if modality == "video" else {"max_positions": (20,)}
    rotary = presets.ltx2(dim, coords, heads=heads, rope_type=rope_type, **options, **positions)
    if rope_type == "interleaved":
        return Model(rotary, 1, dim, 60, lambda x: interleaved(flat(x), tables).unsqueeze(2))
    return Model(rotary, heads, dim // heads, 60, lambda x: split(flat(x), tables).unflatten(2, (heads, -1)))


def wan(presets, device, width=128, sizes=(5, 12, 20)):
    module = imported(f"{DIFFUSERS}.transformer_wan", "WanRotaryPosEmbed")(width, (1, 2, 2), 1024).to(device)
    attention, processor = (
        imported(f"{DIFFUSERS}.transformer_wan", name) for name in ("WanAttention", "WanAttnProcessor")
    )
    frames, height, width_ = sizes
    tables = module(torch.empty(1, 1, frames, 2 * height, 2 * width_, device=device))

    def turn(x):  # its processor's own function, on its way to the attention
        heads = x.shape[2]
        attn = attention(heads * width, heads=heads, dim_head=width, processor=processor())
        for name in ("to_q", "to_k", "to_v", "norm_q", "norm_k"):
            setattr(attn, name, torch.nn.Identity())
        attn.to_out = torch.nn.ModuleList([torch.nn.Identity(), torch.nn.Identity()])
        with mock.patch(
            f"{DIFFUSERS}.transformer_wan.dispatch_attention_fn", side_effect=lambda q, *_, **__: q
        ):
            return attn(flat(x), None, None, tables).unflatten(2, (heads, -1))

    def preset(**shard):
        return presets.wan(width, *sizes, tokens=frames * height * width_, device=device, **shard)

    return Model(preset(), 3, width, frames * height * width_, turn, 2e-6, preset)


def by_embeddings(tables, dim=1):
    apply = imported("diffusers.models.embeddings", "apply_rotary_emb")
    return lambda x: apply(x, tables, sequence_dim=dim)


def hunyuan_video(presets, device, sizes=(3, 4, 5), rope_dim=(16, 56, 56)):
    module = imported(f"{DIFFUSERS}.transformer_hunyuan_video", "HunyuanVideoRotaryPosEmbed")(
        2, 1, list(rope_dim)
    )
    frames, height, width = sizes
    tables = module(torch.empty(1, 1, frames, 2 * height, 2 * width, device=device))

    def preset(**shard):
        return presets.hunyuan_video(*sizes, rope_dim=rope_dim, tokens=60, device=device, **shard)

    return Model(preset(), 3, sum(rope_dim), 60, by_embeddings(tables), shards=preset)


def cogvideox(presets, device, crops=None, sizes=(3, 4, 5), width=64):
    make = imported("diffusers.models.embeddings", "get_3d_rotary_pos_embed")
    frames, height, columns = sizes
    given = {"grid_type": "slice", "max_size": (9, 9)} if crops is None else {}
    tables = make(width, crops, (height, columns), frames, device=device, **given)

    def preset(**shard):
        return presets.cogvideox(width, *sizes, crops=crops, tokens=60, device=device, **shard)

    return Model(preset(), 3, width, 60, heads_first(by_embeddings(tables, 2)), shards=preset)


def flux(presets, device):
    module = imported(f"{DIFFUSERS}.transformer_flux", "FluxPosEmbed")(10000, [16, 56, 56])
    ids = torch.zeros(7 + 64 * 8, 3, device=device)
    ids[7:, 1:] = torch.cartesian_prod(torch.arange(64), torch.arange(8)).to(device)
    return Model(presets.flux(ids), 3, 128, len(ids), by_embeddings(module(ids)), 5e-6)


def by_transformers(module, name, module_of, positions):
    apply = imported(f"{TRANSFORMERS}.{module}.modeling_{module}", "apply_rotary_pos_emb")

    def turn(x):
        return apply(x, x, *module_of(like(x), positions))[0]

    return heads_first(turn)


def rotary_of(module, name, config_name, device, **parameters):
    config = imported(f"{TRANSFORMERS}.{module}.configuration_{module}", config_name)(
        hidden_size=512,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=128,
        rope_parameters=parameters,
    )
    return imported(f"{TRANSFORMERS}.{module}.modeling_{module}", name)(config).to(device)


def qwen3(presets, device, first=0, theta=1e6):
    module = rotary_of(
        "qwen3", "Qwen3RotaryEmbedding", "Qwen3Config", device, rope_type="default", rope_theta=theta
    )
    positions = torch.stack([torch.arange(60) + first, torch.arange(60) * 7]).to(device)
    turn = by_transformers("qwen3", "apply_rotary_pos_emb", module, positions)
    return Model(presets.qwen3(positions, theta=theta), 3, 128, 60, turn)


def multimodal_positions(device):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 500, (3, BATCH, 60), generator=generator).to(device)


def qwen2_5_vl(presets, device):
    sections = [16, 24, 24]
    module = rotary_of(
        "qwen2_5_vl", "Qwen2_5_VLRotaryEmbedding", "Qwen2_5_VLTextConfig", device,
        rope_type="default", rope_theta=1e6, mrope_section=sections,
    )  # fmt: skip
    positions = multimodal_positions(device)
    turn = by_transformers("qwen2_5_vl", "apply_rotary_pos_emb", module, positions)
    return Model(presets.qwen2_5_vl(positions, sections=sections), 3, 128, 60, turn)


def qwen3_vl(presets, device):
    sections = [24, 20, 20]
    module = rotary_of(
        "qwen3_vl", "Qwen3VLTextRotaryEmbedding", "Qwen3VLTextConfig", device,
        rope_type="default", rope_theta=5e6, mrope_section=sections,
    )  # fmt: skip
    positions = multimodal_positions(device)
    turn = by_transformers("qwen3_vl", "apply_rotary_pos_emb", module, positions)
    return Model(presets.qwen3_vl(positions, sections=sections), 3, 128, 60, turn)


MODELS = {
    "ltx_video": ltx_video,
    "ltx_video, 2 lanes still": lambda p, d: ltx_video(p, d, dim=128),
    "ltx_video, coordinates": lambda p, d: ltx_video(p, d, with_coords=True),
    "ltx2": ltx2,
    "ltx2, 2048": lambda p, d: ltx2(p, d, dim=2048),
    "ltx2, fp32": lambda p, d: ltx2(p, d, double_precision=False),
    "ltx2, audio": lambda p, d: ltx2(p, d, modality="audio"),
    "ltx2, split": lambda p, d: ltx2(p, d, rope_type="split"),
    "ltx2, split audio": lambda p, d: ltx2(p, d, rope_type="split", modality="audio"),
    "wan": wan,
    "hunyuan_video": hunyuan_video,
    "cogvideox 1.0": lambda p, d: cogvideox(p, d, crops=((1, 2), (9, 8))),
    "cogvideox 1.5": cogvideox,
    "flux": flux,
    "qwen3": qwen3,
    "llama, far": lambda p, d: qwen3(p, d, first=120_000, theta=5e5),
    "qwen2_5_vl": qwen2_5_vl,
    "qwen3_vl": qwen3_vl,
}
