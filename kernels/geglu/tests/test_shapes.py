# SPDX-License-Identifier: Apache-2.0
"""Widths, row counts, strides and alignments: a result depends on its value and its gate alone."""

from __future__ import annotations

import math

import pytest
import torch
from checks import OPTIONS, ORDERS, assert_forward, assert_one_ulp, compare_grads, halves, packed
from hypothesis import given, settings
from hypothesis import strategies as st
from vendor.checks import dtypes, floats, leaf, randn, same_bits, short, tensors
from vendor.layouts import LAYOUTS, draw_shape, draw_views, views
from vendor.machine import need_memory

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
TAILS = (1, 2, 3, 5, 7, 31, 33, 769, 4097)
HALVES_OFF_16_BYTES = (4, 20, 1234, 1710, 3420)
MODELS = (64, 1152, 2560, 5120, 10240, 14336)


# ---- widths ------------------------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("width", short(TAILS + HALVES_OFF_16_BYTES + MODELS, (1, 7, 33, 769, 3420)))
def test_width(geglu, device, width, dtype):
    """With 3420 the second half starts off the 16-byte boundary (S16, flashinfer#2526); odd tails (S03)."""
    x = randn(7, 2 * width, dtype=dtype, device=device)
    for options in OPTIONS:
        assert_forward(geglu, x, **options)


@pytest.mark.parametrize("dtype", [BF16, F32], ids=("bfloat16", "float32"))
@pytest.mark.parametrize("width", [32768, 36864, 65552, 131071])
def test_wide_rows(geglu, device, width, dtype):
    """Rows that are split between threads or blocks."""
    for options in OPTIONS[1:3]:
        assert_forward(geglu, randn(3, 2 * width, dtype=dtype, device=device), **options)


@pytest.mark.parametrize("rows", [65535, 65536, 65537, 131073])
def test_many_rows(geglu, device, rows):
    """Results go wrong from 65,536 rows on when rows are mapped to grid.y (S22, apex#411)."""
    assert_forward(geglu, randn(rows, 16, dtype=BF16, device=device))


@pytest.mark.parametrize("shape", [(4,), (1, 4), (2, 3, 4), (2, 1, 3, 4), (1, 1, 1, 2, 6)], ids=str)
def test_every_number_of_dimensions(geglu, device, shape):
    """One dimension and more, and sizes of 1 among them."""
    for options in OPTIONS:
        assert_forward(geglu, randn(*shape, device=device), **options)


@pytest.mark.slow
def test_more_than_2_to_the_31_elements(geglu, device):
    """Illegal access just above 2^31 elements: 32-bit element offsets (S18, flashinfer#3391), and backward.

    x is eight rows, each many times over, so that the results and the gradient alone take memory.
    """
    rows, width = 524289, 256
    need_memory(device, 8)
    few = randn(8, 1, 2 * width, dtype=F16, device=device)
    x, upstream = leaf(few.expand(8, rows, 2 * width)), few[..., :width].expand(8, rows, width)
    y = geglu.geglu(x)
    ends = [0, 1, rows // 2, rows - 2, rows - 1]
    assert_one_ulp(y[:, ends].detach(), geglu.reference.geglu(few).expand(8, 5, width))
    (got,) = torch.autograd.grad(y, x, upstream)
    assert got.numel() > 2**31
    compare_grads(halves(got[:, ends], "last"), *halves(few.expand(8, 5, -1), "last"), upstream[:, ends])


@pytest.mark.slow
def test_liger_s_shape(geglu, device):
    """80 K tokens x 36,864 wide overflow in GEGLU (S20, Liger-Kernel#251): 32-bit program ids."""
    rows, width = (60000 if device.type == "cuda" else 30000), 36864
    need_memory(device, 16 if device.type == "cuda" else 8)
    ends = [*range(4), *range(rows - 4, rows)]
    x = torch.zeros(rows, 2 * width, dtype=BF16, device=device)
    x[ends] = randn(len(ends), 2 * width, dtype=BF16, device=device)
    y = geglu.geglu(x, gate="first")
    assert_one_ulp(y[ends], geglu.reference.geglu(x[ends], gate="first"))
    assert not y[4:8].any()


def test_row_stride_beyond_2_to_the_31(geglu, device):
    """Three rows that lie 2^30 elements apart: the row offset itself needs 64 bits (S18)."""
    need_memory(device, 6)
    x = torch.empty(2**31 + 512, dtype=F16, device=device).as_strided((3, 512), (2**30, 1))
    x.copy_(randn(3, 512))
    assert same_bits(geglu.geglu(x), geglu.geglu(x.contiguous()))


# ---- layouts -----------------------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("offset", range(1, 8))
def test_storage_offset(geglu, device, offset, dtype):
    """A contiguous tensor that starts off the 16-byte boundary faults (S04, pytorch#186235), either half."""
    rows, width = 5, 520
    buffers = tensors(device, dtype, 2 * rows * width + 8, rows * width + 16)
    x = buffers[0][offset:][: 2 * rows * width].view(rows, 2 * width)
    for options in OPTIONS:
        y = assert_forward(geglu, x, **options)
        assert same_bits(y, geglu.geglu(x.clone(), **options))
    value, gate = (buffers[1][8 - offset :][: rows * width], buffers[0][offset:][: rows * width])
    assert same_bits(geglu.geglu_split(value, gate), geglu.geglu_split(value.clone(), gate.clone()))


@dtypes
@pytest.mark.parametrize("layout", short(LAYOUTS, ("transposed", "slice of a fused qkv", "every second row")))
def test_layout(geglu, device, layout, dtype):
    """A stride honoured in one pass and ignored in the next is silent garbage (S07 LightLLM#1467, S11)."""
    x, other = views(LAYOUTS[layout], 2, device, dtype)
    if x.shape[-1] % 2 == 0:
        for options in OPTIONS:
            y = assert_forward(geglu, x, **options)
            assert same_bits(y, geglu.geglu(x.contiguous(), **options))
    split = geglu.geglu_split(x, other)
    assert_one_ulp(split, geglu.reference.geglu_split(x, other))
    assert same_bits(split, geglu.geglu_split(x.contiguous(), other.contiguous()))
    # value and gate need not agree in their strides
    assert same_bits(split, geglu.geglu_split(x, other.contiguous()))
    assert same_bits(split, geglu.geglu_split(x.contiguous(), other))


@dtypes
@pytest.mark.parametrize("cut", ["chunk", "slices of three", "unbind", "every second"])
def test_strided_halves(geglu, device, dtype, cut):
    """Halves that a model cuts out of one projection are read in place, however they lie (S16, S29)."""
    x = randn(2, 5, 3 * 2 * 90, dtype=dtype, device=device)
    value, gate = {
        "chunk": x.chunk(2, -1),
        "slices of three": (x[..., 7:187], x[..., 200:380]),
        "unbind": x.view(2, 5, 2, 270).unbind(2),
        "every second": (x[..., ::2], x[..., 1::2]),
    }[cut]
    for mode in ("none", "tanh"):
        y = geglu.geglu_split(value, gate, approximate=mode)
        assert_one_ulp(y, geglu.reference.geglu_split(value, gate, approximate=mode))
        assert same_bits(y, geglu.geglu(packed(value, gate, "last"), approximate=mode))


@dtypes
def test_neighbours_are_not_read(geglu, device, dtype):
    """Rows end where they end: NaN beside each row does not come in (S03, aiter#5044)."""
    for width in TAILS:
        buffer = torch.full((9, 2 * width + 2), math.nan, dtype=dtype, device=device)
        buffer[1:8, 1:-1] = randn(7, 2 * width)
        before = buffer.clone()
        for options in OPTIONS:
            assert_forward(geglu, buffer[1:8, 1:-1], **options)
        assert same_bits(buffer, before)


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_any_shape_stride_dtype_alignment(geglu, device, data):
    """Whatever view of whatever buffer: the result is the reference's, and that of a packed copy."""
    draw = data.draw
    dtype = draw(st.sampled_from(floats(device)))
    shape = draw_shape(draw)
    x, other = draw_views(draw, shape, 2, device, dtype)
    options = draw(st.sampled_from(OPTIONS))
    y = geglu.geglu_split(x, other, approximate=options["approximate"])
    assert_one_ulp(y, geglu.reference.geglu_split(x, other, approximate=options["approximate"]))
    assert same_bits(y, geglu.geglu(packed(x, other, options["gate"]), **options))
    (x,) = draw_views(draw, [*shape[:-1], 2 * shape[-1]], 1, device, dtype)
    assert same_bits(assert_forward(geglu, x, **options), geglu.geglu(x.contiguous(), **options))


@pytest.mark.parametrize(("dtype", "width"), [(BF16, 4096), (F32, 1031), (BF16, 128), (F16, 1031)])
def test_batch_invariant(geglu, device, dtype, width):
    """The same row differs when the batch crosses 256 rows (N19, vllm#48271)."""
    x = randn(4096, 2 * width, dtype=dtype, device=device)
    whole = geglu.geglu(x)
    for size in (255, 256):
        assert same_bits(whole, torch.cat([geglu.geglu(part) for part in x.split(size)]))
    some = range(0, 4096, 37)
    assert same_bits(whole[some], torch.cat([geglu.geglu(x[i : i + 1]) for i in some]))
    assert same_bits(whole[7], geglu.geglu(x[7]))


@pytest.mark.parametrize("dtype", [BF16, F32], ids=("bfloat16", "float32"))
def test_a_column_depends_on_itself_alone(geglu, device, dtype):
    """Vectors and tails, this alignment and that, give the same bits for the same pair of numbers."""
    x = randn(3, 2 * 519, dtype=dtype, device=device)
    for order in ORDERS:
        whole = geglu.geglu(x, gate=order)
        value, gate = halves(x, order)
        for start, stop in ((0, 519), (1, 519), (3, 260), (517, 519), (200, 201)):
            part = geglu.geglu_split(value[:, start:stop], gate[:, start:stop])
            assert same_bits(part, whole[:, start:stop])
