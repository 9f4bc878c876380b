# SPDX-License-Identifier: Apache-2.0
"""A whole LTX-Video transformer of diffusers with our processors, with its tables and without any."""

from __future__ import annotations

import copy

import pytest
import torch
from kernels import Mode, replace_kernel_forward_from_hub
from vendor.checks import randn, short
from vendor.compiling import assert_one_graph
from vendor.layers import Layer, imported, swapped

BF16, F32 = torch.bfloat16, torch.float32


def tiny_ltx(device, dtype, **options):
    transformer = imported("diffusers", "LTXVideoTransformer3DModel")
    torch.manual_seed(0)
    model = transformer(
        in_channels=8, out_channels=8, num_attention_heads=2, attention_head_dim=32, cross_attention_dim=64,
        num_layers=2, caption_channels=16, **options,
    )  # fmt: skip
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape)
    return model.to(device, dtype).eval()


def ltx_inputs(device, dtype):
    return {
        "hidden_states": randn(2, 24, 8, dtype=dtype, device=device),
        "encoder_hidden_states": randn(2, 6, 16, dtype=dtype, device=device, seed=1),
        "timestep": torch.tensor([3, 500], device=device),
        "encoder_attention_mask": torch.tensor([[1] * 6, [1, 1, 1, 1, 0, 0]], device=device),
        "num_frames": 2, "height": 3, "width": 4, "rope_interpolation_scale": (0.3, 32.0, 32.0),
        "return_dict": False,
    }  # fmt: skip


def give_processors(rope3d, model, attention=None):
    """Ours in every attention; how many of them there are."""
    ours = [
        rope3d.layers.LTXVideoAttnProcessor(attention) for _ in model.transformer_blocks for _ in range(2)
    ]
    attentions = [a for block in model.transformer_blocks for a in (block.attn1, block.attn2)]
    for attn, processor in zip(attentions, ours, strict=True):
        attn.set_processor(processor)
    return len(ours)


def without_tables(kernel_path, backend, model, device):
    """The rotary embedding of the model, swapped by kernelize."""
    rope = model.rope
    rope.__class__ = type("Marked", (type(rope),), {})  # diffusers does not mark its classes
    replace_kernel_forward_from_hub(type(rope), "LTXVideoRotaryPosEmbed")
    repository = Layer(kernel_path, "LTXVideoRotaryPosEmbed", backend)
    assert swapped(model, "LTXVideoRotaryPosEmbed", repository, Mode.TRAINING, device) == 1


@pytest.mark.parametrize("tables_free", [False, True], ids=["tables", "no tables"])
@pytest.mark.parametrize("dtype", short([F32, BF16], [F32]), ids=["float32", "bfloat16"])
def test_ltx_model(rope3d, device, kernel_path, backend, dtype, tables_free):
    """A whole LTX-Video transformer, its processors ours, with the model's tables and without any."""
    model, given = tiny_ltx(device, dtype), ltx_inputs(device, dtype)
    with torch.no_grad():
        theirs = model(**given)[0]
        assert give_processors(rope3d, model) == 4
        if tables_free:
            without_tables(kernel_path, backend, model, device)
        ours = model(**given)[0]
        if dtype == F32:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))
            return
        wide = ltx_inputs(device, F32) | {
            k: v.float() for k, v in given.items() if getattr(v, "dtype", None) == BF16
        }
        truth = copy.deepcopy(tiny_ltx(device, dtype)).float()(**wide)[0]
    error, allowed = ((t.float() - truth).square().mean().sqrt() for t in (ours, theirs))
    assert float(error) <= 1.25 * float(allowed)


def test_ltx_training(rope3d, device, kernel_path, backend):
    """Gradients of every parameter, the norms of q and k included, are the model's own (A01, A07)."""
    grads = []
    for swap in (False, True):
        model = tiny_ltx(device, F32)
        if swap:
            give_processors(rope3d, model)
            without_tables(kernel_path, backend, model, device)
        model.train()(**ltx_inputs(device, F32))[0].square().mean().backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
    for name, truth in grads[0].items():
        if truth is not None:
            largest = float(truth.abs().max())
            torch.testing.assert_close(grads[1][name], truth, rtol=1e-3, atol=1e-4 * largest + 1e-8, msg=name)


def test_ltx_another_attention(rope3d, device):
    """What attends may be diffusers' own dispatcher, with its backends."""
    dispatch = imported("diffusers.models.attention_dispatch", "dispatch_attention_fn")
    model, given = tiny_ltx(device, F32), ltx_inputs(device, F32)
    with torch.no_grad():
        theirs = model(**given)[0]
        give_processors(rope3d, model, dispatch)
        ours = model(**given)[0]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))


def test_ltx_tokens_that_do_not_fit(rope3d, device, kernel_path, backend):
    """Frames of the video given for those of its latents: refused, with both numbers."""
    model = tiny_ltx(device, F32)
    give_processors(rope3d, model)
    without_tables(kernel_path, backend, model, device)
    with pytest.raises(ValueError, match=r"9 frames of 3 by 4 are 108 tokens.* 24$"):
        model(**(ltx_inputs(device, F32) | {"num_frames": 9}))


def test_ltx_compiles_as_one_graph(rope3d, device, kernel_path, backend, fresh_dynamo):
    """A block with our processor has no graph break (C09, diffusers#13151)."""
    model = tiny_ltx(device, F32)
    give_processors(rope3d, model)
    block = model.transformer_blocks[0]
    hidden, encoder = randn(2, 24, 64, device=device), randn(2, 6, 64, device=device, seed=1)
    rotary = rope3d.presets.ltx_video(64, frames=2, height=3, width=4, device=device)
    given = (hidden, encoder, randn(2, 1, 6 * 64, device=device, seed=2), rotary)
    with torch.no_grad():
        assert_one_graph(block, *given)
        compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(*given), block(*given))
