# SPDX-License-Identifier: Apache-2.0
"""A gate, a scale and a shift in every form: what torch makes of each, and equal bits of equal ones."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from cases import FORMS, PAIRS, Case, expanded, make, parts
from checks import assert_forward, assert_grads
from vendor.checks import all_same, dtypes, floats, randn, same_bits, short
from vendor.layouts import LAYOUTS

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
NORMS = ("rms", "layer")
THREE = [name for name in FORMS if name != "none"]
IN_SHORT = ("row", "sample", "sample, two dims", "token", "unbind", "table and sample")


def spelt_out(case):
    """The same call with modulators as contiguous tensors of x's shape, each part of a pair too."""
    per_token = [name for name in case.tensors() if name.startswith(("gate", "scale", "shift"))]
    return case.map(lambda t: expanded(t, case.x).contiguous(), per_token)


def assert_form(adaln, case):
    """Right, and the bits of the same numbers in full."""
    results = assert_forward(adaln, case)
    assert all_same(results, spelt_out(case).run(adaln))
    alone = case.but(residual=None, gate=None)
    assert all_same(assert_forward(adaln, alone)[:1], spelt_out(alone).run(adaln)[:1])


@pytest.mark.parametrize("form", short(THREE, IN_SHORT))
def test_form(adaln, device, form):
    """A broadcast table is read as one vector for every row (S12, onnxruntime#28971)."""
    for dtype, norm in product(floats(device), NORMS):
        assert_form(adaln, make(device, dtype, (3, 5, 136), form, norm=norm, affine=norm == "layer"))


@pytest.mark.parametrize("width", [33, 4097, 8200])
def test_form_of_wide_and_ragged_rows(adaln, device, width):
    """The same where a row is no whole number of vectors, and where it is longer than what is held."""
    for form in THREE:
        assert_form(adaln, make(device, BF16, (2, 3, width), form, other=F32))


@pytest.mark.parametrize("shape", [(1, 5, 96), (5, 1, 96), (1, 1, 96), (2, 300, 40), (300, 2, 40)], ids=str)
def test_groups(adaln, device, shape):
    """One sample, one token, many small groups and few large ones: none gets another's modulators."""
    for form in ("row", "sample", "sample, two dims", "unbind, per token", "table and sample"):
        assert_form(adaln, make(device, BF16, shape, form, other=F32))


@pytest.mark.kernels_ci
@pytest.mark.parametrize(
    "forms",
    [
        ("sample", "table and token", "row"),
        ("unbind, per token", "none", "chunk"),
        ("none", "position", "table and sample"),
        ("row", "none", "none"),
        ("table and sample", "transposed", "token and position"),
        ("expanded", "chunk, three dims", "two rows"),
    ],
    ids=str,
)
@dtypes
def test_mixed_forms(adaln, device, forms, dtype):
    """A gate for each sample, a scale for each token and a shift for all are one call."""
    for norm in NORMS:
        assert_form(adaln, make(device, dtype, (3, 5, 136), forms, norm=norm))


def broadcastable(shape):
    """Every shape that torch broadcasts to this one and that has its last dimension."""
    for dims in range(1, len(shape) + 1):
        for ones in product((False, True), repeat=dims - 1):
            outer = [1 if one else size for one, size in zip(ones, shape[-dims:-1], strict=True)]
            yield (*outer, shape[-1])


@pytest.mark.kernels_ci
@pytest.mark.parametrize("shape", [(40,), (5, 40), (3, 5, 40), (2, 3, 5, 40), (2, 1, 3, 4, 40)], ids=str)
def test_every_shape_that_broadcasts(adaln, device, shape):
    """The broadcast table is incomplete (S12, onnxruntime#28971): all shapes, on one to five dimensions."""
    x, residual = (randn(*shape, dtype=BF16, device=device, seed=i) for i in range(2))
    for one in dict.fromkeys(broadcastable(shape)):
        gate, scale, shift = (randn(*one, device=device, seed=i) for i in (2, 3, 4))
        assert_form(adaln, Case(x, residual, gate, scale, shift))
        table = randn(shape[-1], device=device, seed=5)
        assert_form(adaln, Case(x, residual, (table, gate), table, (shift, scale), norm="layer"))


@pytest.mark.kernels_ci
@pytest.mark.parametrize("shape", [(3, 5, 40), (3, 2, 5, 40), (3, 2, 3, 5, 40)], ids=str)
def test_two_dims_are_a_row_for_each_sample(adaln, device, shape):
    """(B, D) beside x of more dimensions is what models call a modulator, and torch an error (S12)."""
    x, residual = (randn(*shape, device=device, seed=i) for i in range(2))
    flat = [randn(3, 40, device=device, seed=i) for i in (2, 3, 4)]
    full = [t.view(3, *[1] * (len(shape) - 2), 40) for t in flat]
    assert all_same(assert_forward(adaln, Case(x, residual, *flat)), Case(x, residual, *full).run(adaln))
    pairs, full_pairs = ([(t, group[0]) for t in group] for group in (flat, full))
    assert all_same(Case(x, residual, *pairs).run(adaln), Case(x, residual, *full_pairs).run(adaln))


def test_two_dims_are_torchs_where_torch_has_a_meaning(adaln, device):
    """(T, D) is a row for each position, as torch has it, and (1, D) one for all, whatever the batch."""
    x = randn(3, 5, 40, device=device)
    scale = randn(5, 40, device=device, seed=1)
    assert same_bits(adaln.ada_norm(x, scale), adaln.ada_norm(x, scale[None]))
    assert same_bits(adaln.ada_norm(x, scale[:1]), adaln.ada_norm(x, scale[0]))
    one = randn(1, 1, 40, device=device)
    assert same_bits(adaln.ada_norm(one, scale[:1]), adaln.ada_norm(one, scale[0]))


def test_dims_that_do_not_merge(adaln, device):
    """More outer dimensions than are read in place, and modulators that vary over every other one (S11)."""
    x = randn(2, 3, 2, 3, 2, 3, 8, device=device)
    for ones in ((1, 3, 1, 3, 1, 3, 8), (2, 1, 2, 1, 2, 1, 8), (2, 3, 1, 1, 2, 3, 8)):
        part = randn(*ones, device=device, seed=1)
        strided = x.transpose(0, 5).transpose(1, 4).contiguous().transpose(1, 4).transpose(0, 5)
        for case in (Case(x, x, part, part, part), Case(strided, x, (part, x), part, (x[0, 0, 0], part))):
            assert_form(adaln, case)
            assert_grads(adaln, case, x, x)


# ---- memory ------------------------------------------------------------------------------------------------


@pytest.mark.kernels_ci
@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize("dtype", [BF16, F16], ids=("bfloat16", "float16"))
def test_fp32_slices_beside_half_precision(adaln, device, dtype, tokens):
    """An fp32 table promotes bf16 activations to fp32 (I02, diffusers#13918): strided slices of six."""
    temb = randn(2, tokens, 6, 264, device=device)
    table = randn(6, 264, device=device, seed=1)
    x, residual = (randn(2, 7, 264, dtype=dtype, device=device, seed=i) for i in (2, 3))
    slices = temb.unbind(dim=2)
    assert not any(t.is_contiguous() for t in slices)
    for shift, scale, gate in (slices[:3], slices[3:], tuple(zip(table[:3], slices[:3], strict=True))):
        y, _ = assert_forward(adaln, Case(x, residual, gate, scale, shift, eps=1e-5))
        assert y.dtype == dtype
        assert_form(adaln, Case(x, residual, gate, scale, shift, norm="layer"))


@dtypes
def test_storage_offset(adaln, device, dtype):
    """Modulators, weight and bias that start off the 16-byte boundary (S04, pytorch#186235)."""
    case = make(device, dtype, (2, 3, 520))
    names = [name for name in case.tensors() if name not in ("x", "residual")]
    expected = case.run(adaln)
    for offset in range(1, 8):
        moved = case.map(
            lambda t, o=offset: torch.cat([t.new_zeros(o), t.flatten()])[o:].view(t.shape), names
        )
        assert all_same(moved.run(adaln), expected)


@dtypes
def test_neighbours_are_not_read(adaln, device, dtype):
    """NaN beside each row of a modulator does not come in (S03, aiter#5044)."""

    def fenced(t):
        buffer = torch.full((*t.shape[:-1], t.shape[-1] + 2), math.nan, dtype=t.dtype, device=device)
        buffer[..., 1:-1] = t
        return buffer[..., 1:-1]

    for width in (1, 2, 3, 5, 7, 31, 33, 769):
        for form in ("sample", "table and token"):
            case = make(device, dtype, (2, 3, width), form)
            assert all_same(assert_forward(adaln, case.map(fenced)), case.run(adaln))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout(adaln, device, layout):
    """A modulator whose strides are used in one pass and not in the next (S07, LightLLM#1467)."""
    view = LAYOUTS[layout](lambda *s, seed=0: randn(*s, device=device, seed=seed))
    x = randn(*view.shape, dtype=BF16, device=device, seed=1)
    assert_form(adaln, Case(x, x, view, view, view))
    assert_form(adaln, Case(x, x, (view, view), None, (view[..., :1, :] if view.dim() > 1 else view, view)))


@pytest.mark.parametrize("form", PAIRS)
def test_parts_of_different_dtypes(adaln, device, form):
    """A table kept in fp32 beside an embedding in bf16, and the other way round (I02)."""
    case = make(device, BF16, (3, 5, 136), form)
    for kinds in (tuple(pair) for pair in product(floats(device), repeat=2)):
        retyped = {
            name: tuple(p.to(k) for p, k in zip(parts(getattr(case, name)), kinds, strict=True))
            for name in ("gate", "scale", "shift")
        }
        assert_form(adaln, case.but(**retyped))
