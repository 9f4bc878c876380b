# SPDX-License-Identifier: Apache-2.0
"""Presets beside the classes of diffusers and transformers that they stand for, and their grid."""

from __future__ import annotations

from itertools import pairwise
from unittest import mock

import pytest
import torch
from libraries import BATCH, MODELS
from vendor.checks import HALF, all_same, randn, same_bits, short

BF16, F32 = torch.bfloat16, torch.float32
models = pytest.mark.parametrize("model", MODELS)


def given(rope3d, device, model):
    return MODELS[model](rope3d.presets, device)


def turned(rope3d, found, x):
    return rope3d.rope3d(x, None, *found.rotary.angles, interleaved=found.rotary.interleaved)


def true(rope3d, found, x):
    return rope3d.reference.rope3d(x, *found.rotary.angles, interleaved=found.rotary.interleaved)


def numbers(found, dtype, device):
    return randn(BATCH, found.tokens, found.heads, found.width, dtype=dtype, device=device)


@pytest.mark.parametrize("model", short(MODELS, ("ltx_video", "wan", "qwen3", "qwen3_vl")))
def test_equals_its_library(rope3d, device, model):
    """In fp32: the library's own output, to the distance that the card states, in units of a pair's length.

    What one unit vector of a pair becomes are its cosine and sine, so this is the distance of the tables, and
    what both sides round in fp32.
    """
    found = given(rope3d, device, model)
    x = numbers(found, F32, device)
    error = (turned(rope3d, found, x).double() - found.turn(x).double()).abs().max()
    pair = 2**0.5 * float(x.abs().max())
    assert float(error) <= found.distance * pair, f"{float(error) / pair:.2g} of {found.distance:.2g}"


@models
@pytest.mark.parametrize("dtype", HALF, ids=("float16", "bfloat16"))
def test_as_near_to_fp64_as_its_library(rope3d, device, model, dtype):
    """In half precision ours is one rounding from fp64; libraries round tables or products too (N14)."""
    found = given(rope3d, device, model)
    x = numbers(found, dtype, device)
    truth = true(rope3d, found, x)
    ours, theirs = turned(rope3d, found, x), found.turn(x).to(dtype)
    assert ours.dtype == dtype
    error, allowed = ((t.double() - truth).square().mean().sqrt() for t in (ours, theirs))
    assert float(error) <= 1.01 * float(allowed)
    largest = float(truth.abs().max())
    assert float((ours.double() - truth).abs().max()) <= torch.finfo(dtype).eps * largest


@pytest.mark.kernels_ci
def test_ltx_turns_neighbours_before_the_heads(rope3d, device):
    """(r0, i0, r1, i1) over the full 2048 channels; the first 2048 mod 6 = 2 lanes stand still (I03)."""
    found = given(rope3d, device, "ltx_video")
    x = numbers(found, BF16, device)
    out = turned(rope3d, found, x)
    assert same_bits(out[..., :2], x[..., :2])
    assert not torch.equal(out[..., 2:4], x[..., 2:4])
    assert found.rotary.interleaved
    largest = max(
        float(rope3d.reference.angles(*presets.angles).abs().max())
        for presets in (found.rotary, given(rope3d, device, "ltx2, 2048").rotary)
    )
    assert largest > 15_000


@pytest.mark.parametrize("model", MODELS)
def test_shards_make_the_whole(rope3d, device, model):
    """Ranks of a parallel sequence, each with an offset: their parts together are the whole, bit for bit."""
    found = given(rope3d, device, model)
    x = numbers(found, BF16, device)
    whole, layout = turned(rope3d, found, x), {"interleaved": found.rotary.interleaved}
    cuts = [0, 1, found.tokens // 3, found.tokens - 4, found.tokens]
    ways = [found.rotary.shard] + ([found.shards] if found.shards else [])
    for way in ways:
        parts = []
        for start, stop in pairwise(cuts):
            rotary = way(offset=start, length=stop - start)
            parts.append(rope3d.rope3d(x[:, start:stop], None, *rotary.angles, **layout))
        assert same_bits(torch.cat(parts, 1), whole)
        with pytest.raises(ValueError, match=rf"{found.tokens - 2} to {found.tokens + 3}.* {found.tokens}$"):
            way(offset=found.tokens - 2, length=5)


@pytest.mark.kernels_ci
def test_grid(rope3d):
    """Frames slowest, then rows, then columns; a part of it is a slice."""
    grid = rope3d.grid(2, 3, 4)
    assert grid.dtype == F32
    assert torch.equal(grid, torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(4)).float())
    assert torch.equal(rope3d.grid(2, 3, 4, offset=5, length=13), grid[5:18])
    assert torch.equal(rope3d.grid(2, 3, 4, offset=5, tokens=24), grid[5:])
    assert rope3d.grid(2, 0, 4).shape == (0, 3)


@pytest.mark.kernels_ci
def test_units_that_do_not_fit_are_refused(rope3d):
    """Frames of a video for latent frames: both numbers are said, and nothing is allocated."""
    with mock.patch("torch.arange", side_effect=AssertionError("allocated")):
        with pytest.raises(ValueError, match=r"^grid: 49 frames of 15 by 22 are 16170 tokens.* 2310$"):
            rope3d.grid(49, 15, 22, tokens=2310)
        with pytest.raises(ValueError, match=r"^grid: tokens 20 to 30 .* 24$"):
            rope3d.grid(2, 3, 4, offset=20, length=10)
        with pytest.raises(ValueError, match=r"^grid: tokens -1"):
            rope3d.grid(2, 3, 4, offset=-1)
    for name, arguments in {
        "ltx_video": (48,), "wan": (48, 2, 3, 4), "hunyuan_video": (2, 3, 4), "cogvideox": (64, 2, 3, 4),
    }.items():  # fmt: skip
        sizes = {"frames": 2, "height": 3, "width": 4} if name == "ltx_video" else {}
        with pytest.raises(ValueError, match=r"24 tokens.* 25$"):
            getattr(rope3d.presets, name)(*arguments, **sizes, tokens=25)


def test_unknown_rope_type(rope3d):
    """A layout that LTX-2 does not have is refused by name."""
    with pytest.raises(ValueError, match=r"'halves'.*'interleaved' or 'split'"):
        rope3d.presets.ltx2(48, torch.zeros(1, 3, 5), rope_type="halves")


def test_scaled_frequencies(rope3d, device):
    """A rotary embedding that scales inv_freq (Llama 3) hands it on."""
    from libraries import by_transformers, rotary_of

    llama3 = {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    }  # fmt: skip
    module = rotary_of("qwen3", "Qwen3RotaryEmbedding", "Qwen3Config", device, **llama3)
    positions = torch.arange(60, device=device)[None] * 100
    x = randn(1, 60, 3, 128, device=device)
    theirs = by_transformers("qwen3", "apply_rotary_pos_emb", module, positions)(x)
    rotary = rope3d.presets.qwen3(positions, inv_freq=module.inv_freq)
    ours = rope3d.rope3d(x, None, *rotary.angles, interleaved=False)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)


@pytest.mark.parametrize("model", ["ltx_video", "wan", "qwen3", "qwen2_5_vl"])
def test_q_and_k_in_one_call(rope3d, device, model):
    """As a model has them: q, and a k of fewer heads."""
    found = given(rope3d, device, model)
    x = numbers(found, BF16, device)
    k = x[:, :, :1].flip(0).contiguous()
    layout = {"interleaved": found.rotary.interleaved}
    got = rope3d.rope3d(x, k, *found.rotary.angles, **layout)
    assert all_same(got, (turned(rope3d, found, x), turned(rope3d, found, k)))
