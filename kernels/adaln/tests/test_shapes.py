# SPDX-License-Identifier: Apache-2.0
"""Widths, row counts, strides and alignments: a row's result depends on its numbers alone."""

from __future__ import annotations

import math

import pytest
import torch
from cases import FORMS, Case, make, modulators
from checks import assert_forward
from hypothesis import given, settings
from hypothesis import strategies as st
from vendor.checks import all_same, dtypes, floats, randn, same_bits, short, tensors
from vendor.layouts import LAYOUTS, draw_views, views
from vendor.machine import need_memory

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
TAILS = (1, 2, 3, 5, 7, 31, 33, 769, 6152)
HIDDEN = (48, 64, 128, 1152, 1200, 1536, 2048, 2304, 3072, 3584, 5120, 6144, 7168, 12288)
NORMS = ("rms", "layer")


# ---- widths ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", short(TAILS + HIDDEN, (1, 7, 33, 128, 769, 3072)))
def test_width(adaln, device, width):
    """Misaligned address for hidden 3584 (S01, flashinfer#634); width 769 spills into the next row (S03)."""
    for dtype in floats(device):
        assert_width(adaln, device, width, dtype)


def assert_width(adaln, device, width, dtype):
    for norm in NORMS:
        assert_forward(adaln, make(device, dtype, (2, 3, width), norm=norm, affine=False))
        assert_forward(adaln, make(device, dtype, (2, 3, width), "table and sample", norm=norm, other=F32))
        assert_forward(adaln, make(device, dtype, (2, 3, width), residual=False, norm=norm))
    assert_forward(adaln, make(device, dtype, (2, 3, width), "none", residual=False, affine=False))


@pytest.mark.parametrize("dtype", [BF16, F32], ids=("bfloat16", "float32"))
@pytest.mark.parametrize("width", [16384, 65552])
def test_wide_rows(adaln, device, width, dtype):
    """Hidden 16384 and more needs shared memory beyond 48 KB, or a second pass (S02, flashinfer#718)."""
    for norm in NORMS:
        assert_forward(adaln, make(device, dtype, (1, 3, width), norm=norm))
        assert_forward(
            adaln, make(device, dtype, (1, 3, width), "table and token", residual=False, norm=norm)
        )


@pytest.mark.parametrize("rows", [65535, 65536, 65537, 131073])
def test_many_rows(adaln, device, rows):
    """Results go wrong from 65,536 rows on when rows are mapped to grid.y (S22, apex#411)."""
    assert_forward(adaln, make(device, BF16, (1, rows, 32), "row", affine=False))
    if rows == 65537:
        assert_forward(adaln, make(device, BF16, (rows, 1, 32), "sample, two dims", norm="layer"))


@pytest.mark.slow
def test_more_than_2_to_the_31_elements(adaln, device):
    """Illegal access just above 2^31 elements: 32-bit element offsets (S18, flashinfer#3391)."""
    rows, width = 4194305, 512
    need_memory(device, 20 if device.type == "cuda" else 12)
    ends = [*range(4), *range(rows // 2 - 2, rows // 2 + 2), *range(rows - 4, rows)]
    x = torch.zeros(rows, width, dtype=F16, device=device)
    x[ends] = randn(len(ends), width, dtype=F16, device=device)
    scale = randn(width, dtype=F16, device=device, seed=1)
    y = adaln.ada_norm(x, scale)
    assert same_bits(y[ends], assert_forward(adaln, Case(x[ends], scale=scale))[0])
    assert not y[4:8].any()


def test_strides_beyond_2_to_the_31(adaln, device):
    """Three rows that lie 2^30 elements apart: the row offset of x and of a modulator needs 64 bits (S18)."""
    need_memory(device, 6)
    x = torch.empty(2**31 + 512, dtype=F16, device=device).as_strided((3, 512), (2**30, 1))
    x.copy_(randn(3, 512))
    assert all_same(Case(x, x, x, x, x).run(adaln), Case(*[x.contiguous()] * 5).run(adaln))


# ---- layouts -----------------------------------------------------------------------------------------------


@dtypes
def test_storage_offset(adaln, device, dtype):
    """A contiguous tensor that starts off the 16-byte boundary faults (S04, pytorch#186235)."""
    for norm in NORMS:
        case = make(device, dtype, (1, 5, 520), norm=norm)
        expected = case.run(adaln)
        for offset in range(1, 8):
            at = lambda t, o=offset: torch.cat([t.new_zeros(o), t.flatten()])[o:].view(t.shape)  # noqa: E731
            assert all_same(case.map(at, ("x", "residual")).run(adaln), expected)
            assert all_same(case.map(at, ("x",)).run(adaln), expected)


@pytest.mark.parametrize("layout", short(LAYOUTS, ("transposed", "slice of a fused qkv", "every second row")))
def test_layout(adaln, device, layout):
    """Strides used in one pass, ignored in the next (S07, LightLLM#1467); stride(0) as in 2-D (S11)."""
    for dtype in (BF16, F32):
        assert_layout(adaln, device, layout, dtype)


def assert_layout(adaln, device, layout, dtype):
    x, residual = views(LAYOUTS[layout], 2, device, dtype)
    row = [randn(x.shape[-1], device=device, seed=i) for i in (2, 3, 4)]
    for norm in NORMS:
        case = Case(x, residual, *row, norm=norm)
        packed = case.map(torch.Tensor.contiguous)
        results = assert_forward(adaln, case)
        assert all_same(results, packed.run(adaln))
        # x and the residual need not agree in their strides
        assert all_same(results, case.but(residual=packed.residual).run(adaln))
        assert all_same(results, case.but(x=packed.x).run(adaln))
        alone = case.but(residual=None, gate=None)
        assert same_bits(assert_forward(adaln, alone)[0], alone.but(x=packed.x).run(adaln)[0])


@dtypes
def test_neighbours_are_not_read(adaln, device, dtype):
    """Rows end where they end: NaN beside each row does not come in (S03, aiter#5044)."""
    for width in TAILS:
        buffer = torch.full((9, width + 2), math.nan, dtype=dtype, device=device)
        buffer[1:8, 1:-1] = randn(7, width)
        before, x = buffer.clone(), buffer[1:8, 1:-1]
        one = torch.ones(width, device=device)
        for norm in NORMS:
            assert_forward(adaln, Case(x, None, None, one, one, norm=norm))
            assert_forward(adaln, Case(x, x, one, one, one, norm=norm))
        assert same_bits(buffer, before)


def test_packed_slices_repeated(adaln, device):
    """Misaligned address on slices of a packed tensor, only sometimes (S06, flash-attention#289)."""
    packed = randn(2, 257, 3, 25, 48, dtype=BF16, device=device)
    x, residual, shift = (t.flatten(-2) for t in packed.unbind(2))
    case = Case(x, residual, None, None, shift)
    first = assert_forward(adaln, case)
    assert all(all(map(torch.equal, first, case.run(adaln))) for _ in range(100))


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_any_shape_stride_dtype_alignment(adaln, device, data):
    """Whatever views of whatever buffers, whatever modulators: right, and the bits of packed copies."""
    draw = data.draw
    dtype, other = draw(st.sampled_from(floats(device))), draw(st.sampled_from(floats(device)))
    batch, tokens = draw(st.sampled_from(((1, 1), (1, 4), (3, 1), (2, 5), (4, 3))))
    shape = (batch, tokens, draw(st.integers(1, 300)))
    x, residual = draw_views(draw, shape, 2, device, dtype)
    forms = [draw(st.sampled_from(sorted(FORMS))) for _ in range(3)]
    gate, scale, shift = modulators(device, other, shape, forms)
    weight, bias = (
        draw(st.sampled_from((None, randn(shape[-1], dtype=other, device=device, seed=i)))) for i in (2, 3)
    )
    case = Case(x, residual, gate, scale, shift, weight, bias, draw(st.sampled_from(NORMS)))
    assert all_same(assert_forward(adaln, case), case.map(torch.Tensor.contiguous).run(adaln))
    assert_forward(adaln, case.but(residual=None, gate=None))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("dtype", "width"), [(BF16, 4096), (F32, 1031), (BF16, 128), (F16, 1031)])
def test_batch_invariant(adaln, device, dtype, width, norm):
    """The same row normalises differently when the batch crosses 256 rows (N19, vllm#48271)."""
    rows = 2048
    case = make(device, dtype, (rows // 8, 8, width), "sample", other=F32, norm=norm)
    whole = [t.view(rows, width) for t in case.run(adaln)]
    for size in (255, 256):
        for start in (0, 256, rows - size):
            part = case.rows(lambda t, a=start, n=size: t.reshape(rows, width)[a : a + n]).run(adaln)
            assert all_same(part, [t[start : start + size] for t in whole])
    for i in range(0, rows, 37):
        alone = case.rows(lambda t, j=i: t[j // 8, j % 8])
        assert all_same(alone.run(adaln), [t[i] for t in whole])
    ours = tensors(device, dtype, (5, width))[0]
    assert same_bits(adaln.ada_norm(ours, norm=norm)[:2], adaln.ada_norm(ours[:2], norm=norm))
