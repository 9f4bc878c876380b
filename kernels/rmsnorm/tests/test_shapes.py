# SPDX-License-Identifier: Apache-2.0
"""Widths, row counts, strides and alignments: a row's result depends on its numbers alone."""

from __future__ import annotations

import math

import pytest
import torch
from checks import assert_forward
from hypothesis import given, settings
from hypothesis import strategies as st
from vendor.checks import assert_rounds_to, dtypes, floats, randn, same_bits, short, tensors
from vendor.layouts import LAYOUTS, draw_shape, draw_views, views
from vendor.machine import need_memory

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
OPTIONS = ({}, {"rounding": "before_weight"}, {"weight_offset": 1.0})
TAILS = (1, 2, 3, 5, 7, 31, 33, 769, 4097)
HIDDEN = (48, 64, 128, 1200, 2304, 3584, 5120, 7168, 12288)
WIDE = (16384, 32768, 65536, 65552, 131072)


# ---- widths ------------------------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("width", short(TAILS + HIDDEN, (1, 7, 33, 128, 769, 3584)))
def test_width(rmsnorm, device, width, dtype):
    """Misaligned address for hidden 3584 (S01, flashinfer#634); width 769 spills into the next row (S03)."""
    x, residual, weight = tensors(device, dtype, (7, width), (7, width), width)
    for options in OPTIONS:
        assert_forward(rmsnorm, x, weight, **options)
        assert_forward(rmsnorm, x, weight, residual=residual, **options)
    assert_forward(rmsnorm, x, None)
    assert_forward(rmsnorm, x, None, residual=residual)


@pytest.mark.parametrize("dtype", [BF16, F32], ids=("bfloat16", "float32"))
@pytest.mark.parametrize("width", WIDE)
def test_wide_rows(rmsnorm, device, width, dtype):
    """Hidden 16384 and more needs shared memory beyond 48 KB, or a second pass (S02, flashinfer#718)."""
    x, residual, weight = tensors(device, dtype, (3, width), (3, width), width)
    assert_forward(rmsnorm, x, weight)
    assert_forward(rmsnorm, x, weight, residual=residual, rounding="before_weight")


@pytest.mark.parametrize("rows", [65535, 65536, 65537, 131073])
def test_many_rows(rmsnorm, device, rows):
    """Results go wrong from 65,536 rows on when rows are mapped to grid.y (S22, apex#411)."""
    x, weight = tensors(device, BF16, (rows, 64), 64)
    assert_forward(rmsnorm, x, weight)
    assert_forward(rmsnorm, x, weight, residual=x)


@pytest.mark.slow
def test_more_than_2_to_the_31_elements(rmsnorm, device):
    """Illegal access just above 2^31 elements: 32-bit element offsets (S18, flashinfer#3391)."""
    rows, width = 4194305, 512
    need_memory(device, 20 if device.type == "cuda" else 12)
    ends = [*range(4), *range(rows // 2 - 2, rows // 2 + 2), *range(rows - 4, rows)]
    x = torch.zeros(rows, width, dtype=F16, device=device)
    x[ends] = randn(len(ends), width, dtype=F16, device=device)
    weight = randn(width, dtype=F16, device=device, seed=1)
    y = rmsnorm.rms_norm(x, weight)
    assert_rounds_to(y[ends], rmsnorm.reference.rms_norm(x[ends], weight), F16)
    assert not y[4:8].any()


def test_row_stride_beyond_2_to_the_31(rmsnorm, device):
    """Three rows that lie 2^30 elements apart: the row offset itself needs 64 bits (S18)."""
    need_memory(device, 6)
    x = torch.empty(2**31 + 512, dtype=F16, device=device).as_strided((3, 512), (2**30, 1))
    x.copy_(randn(3, 512))
    assert same_bits(rmsnorm.rms_norm(x), rmsnorm.rms_norm(x.contiguous()))


# ---- layouts -----------------------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("offset", range(1, 8))
def test_storage_offset(rmsnorm, device, offset, dtype):
    """A contiguous tensor that starts off the 16-byte boundary faults (S04, pytorch#186235)."""
    rows, width = 5, 520
    x = randn(rows * width + 8, dtype=dtype, device=device)[offset : offset + rows * width].view(rows, width)
    weight = randn(width + 8, dtype=dtype, device=device, seed=1)[8 - offset :][:width]
    y, _ = assert_forward(rmsnorm, x, weight)
    assert same_bits(y, rmsnorm.rms_norm(x.clone(), weight.clone()))
    added, _ = assert_forward(rmsnorm, x, weight, residual=x.clone())
    assert same_bits(added, rmsnorm.add_rms_norm(x.clone(), x.clone(), weight.clone())[0])


@dtypes
@pytest.mark.parametrize("layout", short(LAYOUTS, ("transposed", "slice of a fused qkv", "every second row")))
def test_layout(rmsnorm, device, layout, dtype):
    """A stride honoured in one pass and ignored in the next is silent garbage (S07 LightLLM#1467, S11)."""
    x, residual = views(LAYOUTS[layout], 2, device, dtype)
    width = x.shape[-1]
    weight = randn(2 * width, dtype=dtype, device=device, seed=2)[::2]
    y, _ = assert_forward(rmsnorm, x, weight)
    assert same_bits(y, rmsnorm.rms_norm(x.contiguous(), weight.contiguous()))
    added, _ = assert_forward(rmsnorm, x, weight, residual=residual)
    assert same_bits(added, rmsnorm.add_rms_norm(x.contiguous(), residual.contiguous(), weight)[0])
    # x and the residual need not agree in their strides
    assert same_bits(added, rmsnorm.add_rms_norm(x, residual.contiguous(), weight)[0])


@dtypes
def test_neighbours_are_not_read(rmsnorm, device, dtype):
    """Rows end where they end: NaN beside each row does not come in (S03, aiter#5044)."""
    for width in TAILS:
        buffer = torch.full((9, width + 2), math.nan, dtype=dtype, device=device)
        buffer[1:8, 1:-1] = randn(7, width)
        before = buffer.clone()
        weight = torch.full((width + 2,), math.nan, dtype=dtype, device=device)
        weight[1:-1] = 1
        assert_forward(rmsnorm, buffer[1:8, 1:-1], weight[1:-1])
        assert_forward(rmsnorm, buffer[1:8, 1:-1], weight[1:-1], residual=buffer[1:8, 1:-1])
        assert same_bits(buffer, before)


def test_packed_qkv_repeated(rmsnorm, device):
    """Misaligned address on slices of a packed qkv, only sometimes (S06, flash-attention#289)."""
    qkv = randn(2, 257, 3, 25, 48, dtype=BF16, device=device)
    first, _ = assert_forward(rmsnorm, qkv.unbind(2)[0].flatten(-2), randn(1200, dtype=BF16, device=device))
    weight = randn(1200, dtype=BF16, device=device)
    assert all(same_bits(first, rmsnorm.rms_norm(qkv.unbind(2)[0].flatten(-2), weight)) for _ in range(100))


def test_qk_norm_views_of_fused_qkv(rmsnorm, device):
    """Qwen3's q and k norm on (tokens, heads, 128) views with row stride 6144 crash (S09, aiter#2943)."""
    qkv = randn(2048, 6144, dtype=BF16, device=device)
    weight = randn(128, dtype=BF16, device=device, seed=1)
    for heads in (qkv[:, :4096].view(2048, 32, 128), qkv[:, 4096:5120].view(2048, 8, 128)):
        y, _ = assert_forward(rmsnorm, heads, weight, rounding="before_weight")
        assert same_bits(y, rmsnorm.rms_norm(heads.contiguous(), weight, rounding="before_weight"))


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_any_shape_stride_dtype_alignment(rmsnorm, device, data):
    """Whatever view of whatever buffer: the result is the reference's, and that of a packed copy."""
    draw = data.draw
    dtype, weight_dtype = draw(st.sampled_from(floats(device))), draw(st.sampled_from(floats(device)))
    x, residual = draw_views(draw, draw_shape(draw), 2, device, dtype)
    weight = draw(st.sampled_from((None, randn(x.shape[-1], dtype=weight_dtype, device=device, seed=2))))
    options = draw(st.sampled_from(OPTIONS))
    y, _ = assert_forward(rmsnorm, x, weight, **options)
    assert same_bits(y, rmsnorm.rms_norm(x.contiguous(), weight, **options))
    assert_forward(rmsnorm, x, weight, residual=residual, **options)


@pytest.mark.parametrize(("dtype", "width"), [(BF16, 4096), (F32, 1031), (BF16, 128), (F16, 1031)])
def test_batch_invariant(rmsnorm, device, dtype, width):
    """The same row normalises differently when the batch crosses 256 rows (N19, vllm#48271)."""
    x, weight = tensors(device, dtype, (4096, width), width)
    whole, added = rmsnorm.rms_norm(x, weight), rmsnorm.add_rms_norm(x, x.flip(0), weight)[0]
    for size in (255, 256):
        parts = x.split(size)
        assert same_bits(whole, torch.cat([rmsnorm.rms_norm(part, weight) for part in parts]))
        pairs = zip(parts, x.flip(0).split(size), strict=True)
        assert same_bits(added, torch.cat([rmsnorm.add_rms_norm(*pair, weight)[0] for pair in pairs]))
    some = range(0, 4096, 37)
    assert same_bits(whole[some], torch.cat([rmsnorm.rms_norm(x[i : i + 1], weight) for i in some]))
    assert same_bits(whole[7], rmsnorm.rms_norm(x[7], weight))
