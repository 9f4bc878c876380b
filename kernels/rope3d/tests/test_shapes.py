# SPDX-License-Identifier: Apache-2.0
"""Widths, heads, token counts, strides and alignments: a token's result depends on its numbers alone."""

from __future__ import annotations

import math

import pytest
import torch
from cases import kinds, layouts, make, positions
from checks import assert_forward, assert_turned
from hypothesis import given, settings
from hypothesis import strategies as st
from vendor.checks import all_same, dtypes, floats, randn, same_bits, short
from vendor.layouts import draw_views
from vendor.machine import need_memory

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
WIDTHS = (1, 2, 3, 8, 33, 40, 64, 80, 96, 128, 256, 257, 1200, 2048)

# n(*size) draws numbers; (2, 6, 4, 48) in all sorts of memory.
LAYOUTS = {
    "heads first": lambda n: n(2, 4, 6, 48).transpose(1, 2),
    "tokens first": lambda n: n(6, 2, 4, 48).transpose(0, 1),
    "slice of a fused qkv": lambda n: n(2, 6, 3, 4, 48)[:, :, 1],
    "columns of a fused qkv": lambda n: n(2, 6, 3 * 4 * 48)[..., 192:384].unflatten(-1, (4, 48)),
    "lanes of wider heads": lambda n: n(2, 6, 4, 97)[..., 1:49],
    "every second lane": lambda n: n(2, 6, 4, 96)[..., ::2],
    "lanes outermost": lambda n: n(48, 2, 6, 4).permute(1, 2, 3, 0),
    "every second token": lambda n: n(2, 12, 4, 48)[:, ::2],
    "every second head": lambda n: n(2, 6, 8, 48)[:, :, ::2],
    "reversed samples": lambda n: n(2, 6, 4, 48).flip(0)[:, :, :, :],
    "expanded heads": lambda n: n(2, 6, 1, 48).expand(2, 6, 4, 48),
    "expanded samples": lambda n: n(1, 6, 4, 48).expand(2, 6, 4, 48),
    "expanded lanes": lambda n: n(2, 6, 4, 1).expand(2, 6, 4, 48),
    "overlapping tokens": lambda n: n(2000).as_strided((2, 6, 4, 48), (7, 5, 48, 1)),
    "odd strides": lambda n: n(5000).as_strided((2, 6, 4, 48), (2111, 301, 67, 1), 3),
}


def view(layout, device, dtype, seed=0):
    return LAYOUTS[layout](lambda *size: randn(*size, dtype=dtype, device=device, seed=seed))


def assert_layout(rope3d, device, dtype, layout, kind="rope3d"):
    case = make(rope3d.reference, device, dtype, kind, shape=(2, 6, 4, 48), k_heads=4)
    case = case.but(q=view(layout, device, dtype), k=view(layout, device, dtype, 1))
    outputs = assert_forward(rope3d, case)
    packed = case.map(torch.Tensor.contiguous, "q", "k").run(rope3d)
    assert all_same(outputs, packed)
    # q and k need not agree in their strides
    mixed = case.map(torch.Tensor.contiguous, "k").run(rope3d)
    assert all_same(outputs, mixed)


@dtypes
@pytest.mark.parametrize(
    "layout", short(LAYOUTS, ("heads first", "slice of a fused qkv", "every second lane"))
)
def test_layout(rope3d, device, dtype, layout):
    """Strides honoured in one place and ignored in another (S07, LightLLM#1467; S09, sgl-kernel-xpu#169)."""
    assert_layout(rope3d, device, dtype, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_with_a_norm(rope3d, device, layout):
    """The same for the passes that a norm adds."""
    assert_layout(rope3d, device, BF16, layout, "full norm")
    assert_layout(rope3d, device, F32, layout, "head norm, tables")


def assert_width(rope3d, device, dtype, width, interleaved=True):
    for kind in ("rope3d", "apply_rotary", "head norm", "full norm"):
        for pairs in {width // 2, width // 3}:
            given = {"shape": (2, 3, 3, width), "pairs": pairs, "interleaved": interleaved}
            assert_forward(rope3d, make(rope3d.reference, device, dtype, kind, **given))


@dtypes
@layouts
@pytest.mark.parametrize("width", short(WIDTHS, (1, 33, 64, 128)))
def test_width(rope3d, device, width, interleaved, dtype):
    """Tails of every length; a width spills into the next head or token (S03, aiter#5044)."""
    assert_width(rope3d, device, dtype, width, interleaved)


@layouts
@pytest.mark.parametrize("width", [4096, 16386, 65552])
def test_wide_heads(rope3d, device, width, interleaved):
    """Thousands of pairs: more than a block of threads, or the first level of a cache, has room for."""
    for kind in ("rope3d", "apply_rotary", "head norm"):
        given = {"shape": (2, 2, 1, width), "k_heads": 1, "interleaved": interleaved}
        assert_forward(rope3d, make(rope3d.reference, device, BF16, kind, **given))


@pytest.mark.kernels_ci
@dtypes
@pytest.mark.parametrize(
    ("shape", "k_heads"),
    [
        ((2, 5, 4, 16), 1), ((2, 5, 1, 16), 4), ((2, 1, 4, 16), 2), ((1, 5, 4, 16), 2), ((1, 1, 1, 16), 1),
        ((1, 5, 1, 16), 1),
    ],
    ids=str,
)  # fmt: skip
def test_one_of_anything(rope3d, device, dtype, shape, k_heads):
    """Rope leaves k unchanged when it has one head: a size of 1 confuses strides (S24, Liger-Kernel#342)."""
    for kind in ("rope3d", "apply_rotary", "head norm", "full norm"):
        case = make(rope3d.reference, device, dtype, kind, shape=shape, k_heads=k_heads)
        outputs = assert_forward(rope3d, case)
        assert not torch.equal(outputs[1], case.k)


@pytest.mark.kernels_ci
@dtypes
def test_three_dimensions_are_one_head(rope3d, device, dtype):
    """LTX turns the full inner dimension before it is split into heads (I03, openvino#34027)."""
    case = make(rope3d.reference, device, dtype, shape=(2, 5, 1, 64), k_heads=1)
    where = (case.coords, case.inv_freq, case.axis)
    expected = assert_forward(rope3d, case)
    got = rope3d.rope3d(case.q.squeeze(2), case.k.squeeze(2), *where)
    assert all_same([t.unsqueeze(2) for t in got], expected)
    assert same_bits(rope3d.rope3d(case.q.squeeze(2), None, *where), got[0])


@kinds
def test_heads_first(rope3d, device, kind):
    """(B, H, T, D), as transformers has it: the same numbers, as a view of (B, T, H, D)."""
    case = make(rope3d.reference, device, BF16, kind)
    expected = assert_forward(rope3d, case)
    got = case.map(lambda t: t.transpose(1, 2), "q", "k").run(rope3d, heads_first=True)
    assert all(g.shape == x.transpose(1, 2).shape for g, x in zip(got, (case.q, case.k), strict=True))
    assert all_same([t.transpose(1, 2) for t in got], expected)


@dtypes
def test_neighbours_are_not_read_or_written(rope3d, device, dtype):
    """Heads end where they end: NaN beside each does not come in (S03, aiter#5044)."""
    for width in (2, 7, 33, 80):
        for kind in ("rope3d", "head norm", "full norm"):
            case = make(rope3d.reference, device, dtype, kind, shape=(2, 3, 2, width), k_heads=2)
            buffer = torch.full((4, 5, 4, width + 2), math.nan, dtype=dtype, device=device)
            buffer[1:3, 1:4, 1:3, 1:-1] = case.q
            before = buffer.clone()
            assert_forward(rope3d, case.but(q=buffer[1:3, 1:4, 1:3, 1:-1]))
            assert same_bits(buffer, before)


@dtypes
@pytest.mark.parametrize("offset", [1, 2, 3, 5, 7])
def test_misaligned(rope3d, device, dtype, offset):
    """A contiguous tensor with a storage offset of one element faults (S04, pytorch#186235): q, k, tables."""

    def moved(tensor):
        buffer = torch.full((tensor.numel() + offset,), math.nan, dtype=tensor.dtype, device=device)
        buffer[offset:] = tensor.flatten()
        return buffer[offset:].view(tensor.shape)

    for kind in ("rope3d", "apply_rotary", "head norm", "full norm"):
        case = make(rope3d.reference, device, dtype, kind, shape=(2, 3, 2, 80), table_dtype=dtype)
        everything = ("q", "k", "coords", "inv_freq", "cos", "sin", "q_weight", "k_weight")
        outputs = assert_forward(rope3d, case.map(moved, *everything))
        assert all_same(outputs, case.run(rope3d))


def test_packed_qkv_repeated(rope3d, device):
    """Misaligned address on slices of a packed qkv, only sometimes (S06, flash-attention#289)."""
    qkv = randn(2, 257, 3, 25, 48, dtype=BF16, device=device)
    q, k, _ = qkv.unbind(2)
    where = positions(device, 24, 257)
    first = rope3d.rope3d(q, k, *where)
    for _ in range(100):
        again = rope3d.rope3d(q, k, *where)
        assert all(torch.equal(a, b) for a, b in zip(again, first, strict=True))
    case = make(rope3d.reference, device, BF16, shape=(2, 257, 25, 48), k_heads=25)
    assert_forward(rope3d, case.but(q=q, k=k))
    flat = [t.flatten(-2) for t in (q, k)]
    assert_forward(rope3d, make(rope3d.reference, device, BF16, shape=(2, 257, 1, 1200), k_heads=1).but(
        **dict(zip("qk", (t.unsqueeze(2) for t in flat), strict=True))
    ))  # fmt: skip


def test_views_of_fused_qkv(rope3d, device):
    """Qwen3's q and k, (tokens, heads, 128) views with a row stride of 6144 (S09, aiter#2943)."""
    qkv = randn(1, 512, 6144, dtype=BF16, device=device)
    q, k = qkv[..., :4096].view(1, 512, 32, 128), qkv[..., 4096:5120].view(1, 512, 8, 128)
    case = make(
        rope3d.reference, device, BF16, "head norm", shape=(1, 512, 32, 128), k_heads=8, interleaved=False
    )
    outputs = assert_forward(rope3d, case.but(q=q, k=k))
    assert all_same(outputs, case.but(q=q.contiguous(), k=k.contiguous()).run(rope3d))


@pytest.mark.parametrize("tokens", [65535, 65537])
def test_many_tokens(rope3d, device, tokens):
    """Results go wrong from 65,536 rows on when rows are mapped to grid.y (S22, apex#411)."""
    for shape in ((1, tokens, 1, 8), (tokens, 1, 1, 8)):
        for kind in ("rope3d", "full norm"):
            assert_forward(rope3d, make(rope3d.reference, device, BF16, kind, shape=shape, k_heads=2))


def test_offsets_beyond_2_to_the_31(rope3d, device):
    """Illegal access just above 2^31 elements: 32-bit element offsets (S18, flashinfer#3391)."""
    need_memory(device, 6)
    buffer = torch.empty(2**31 + 64, dtype=F16, device=device)  # of which a CPU touches what is used
    q = buffer.as_strided((1, 3, 1, 64), (0, 2**30, 64, 1))
    case = make(rope3d.reference, device, F16, shape=(1, 3, 1, 64), k_heads=0)
    q.copy_(case.q)
    assert_forward(rope3d, case.but(q=q))
    rope3d.rope3d_(q, None, case.coords, case.inv_freq, case.axis)
    assert same_bits(q.contiguous(), case.run(rope3d)[0])


@pytest.mark.cuda
@pytest.mark.slow
def test_more_than_2_to_the_31_elements(rope3d, device):
    """The same where every token is there (S18)."""
    tokens, width = 1048577, 2048
    need_memory(device, 20)
    q = torch.ones(1, tokens, 1, width, dtype=F16, device=device)
    coords = torch.arange(tokens, device=device, dtype=F32)[:, None]
    inv_freq = torch.full((width // 2,), 1e-3, device=device)
    out = rope3d.rope3d(q, None, coords, inv_freq)
    case = make(rope3d.reference, device, F16, shape=(1, 4, 1, width))
    for start in (0, tokens // 2, tokens - 4):
        truth = rope3d.reference.rope3d(q[:, :4], coords[start : start + 4], inv_freq)
        assert_turned(out[:, start : start + 4], truth, F16, case)


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_any_shape_stride_dtype_alignment(rope3d, device, data):
    """Whatever view of whatever buffer: the result is the reference's, and that of a packed copy."""
    draw = data.draw
    dtype, kind = (
        draw(st.sampled_from(floats(device))),
        draw(st.sampled_from(("rope3d", "apply_rotary", "full norm"))),
    )
    shape = [
        draw(st.integers(1, 3)),
        draw(st.integers(1, 5)),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 150)),
    ]
    given_ = {
        "shape": tuple(shape), "k_heads": shape[2], "pairs": draw(st.integers(0, shape[3] // 2)),
        "interleaved": draw(st.booleans()), "per_sample": draw(st.booleans()),
    }  # fmt: skip
    case = make(rope3d.reference, device, dtype, kind, **given_)
    q, k = draw_views(draw, shape, 2, device, dtype)
    case = case.but(q=q, k=k)
    outputs = assert_forward(rope3d, case)
    assert all_same(outputs, case.map(torch.Tensor.contiguous, "q", "k").run(rope3d))


@kinds
@pytest.mark.parametrize("dtype", [BF16, F32], ids=("bfloat16", "float32"))
def test_batch_invariant(rope3d, device, dtype, kind):
    """The same row comes out differently when the batch crosses 256 rows (N19, vllm#48271)."""
    case = make(rope3d.reference, device, dtype, kind, shape=(1, 1024, 4, 96), per_sample=True)
    whole = case.run(rope3d)
    for size in (255, 256):
        parts = [case.tokens(i, i + size).run(rope3d) for i in range(0, 1024, size)]
        assert all_same(whole, [torch.cat(part, 1) for part in zip(*parts, strict=True)])
    for i in range(0, 1024, 97):
        assert all_same([t[:, i : i + 1] for t in whole], case.tokens(i, i + 1).run(rope3d))
    # alone and with the other, and with another sample beside it
    assert same_bits(case.but(k=None, k_weight=None).run(rope3d)[0], whole[0])
    doubled = case.map(lambda t: torch.cat([t, t]), "q", "k").map(lambda t: t[0], "coords", "cos", "sin")
    assert all_same([t[1:] for t in doubled.run(rope3d)], whole)


@pytest.mark.kernels_ci
@pytest.mark.parametrize(
    "shape", [(0, 5, 3, 16), (2, 0, 3, 16), (2, 5, 0, 16), (2, 5, 3, 0), (0, 0, 0, 0)], ids=str
)
def test_nothing_to_do(rope3d, device, shape):
    """Zero tokens launch an empty grid and the error breaks a later call (S14, sglang#23609)."""
    for kind in ("rope3d", "apply_rotary", "head norm", "full norm"):
        case = make(rope3d.reference, device, BF16, kind, shape=shape, k_heads=2)
        outputs = case.run(rope3d)
        assert [t.shape for t in outputs] == [case.q.shape, case.k.shape]
        assert torch.ones(3, device=device).sum().item() == 3
    # no heads of q, and some of k
    case = make(rope3d.reference, device, BF16, shape=(2, 5, 0, 16), k_heads=2)
    assert_forward(rope3d, case)
