# SPDX-License-Identifier: Apache-2.0
"""Gradients against what autograd makes of the fp64 reference."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from cases import FORMS, Case, make, modulators
from checks import assert_grads, compare_grads, upstream
from vendor.checks import all_same, dtypes, floats, leaf, randn, short, tensors
from vendor.layouts import GRAD_LAYOUTS, views
from vendor.machine import need_cpu

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
NORMS = ("rms", "layer")
norms = pytest.mark.parametrize("norm", NORMS)
half_and_single = pytest.mark.parametrize("dtype", [BF16, F32], ids=("bfloat16", "float32"))
WIDTHS = (
    1,
    2,
    3,
    5,
    7,
    31,
    33,
    48,
    64,
    128,
    769,
    1152,
    1536,
    2048,
    2304,
    3072,
    3584,
    5120,
    6152,
    7168,
    12288,
)


def assert_all_grads(adaln, case):
    """With a residual and a loss on both outputs, and without a residual."""
    grad, grad_residual = upstream(case)
    assert_grads(adaln, case, grad, grad_residual)
    assert_grads(adaln, case.but(residual=None, gate=None), grad)


@pytest.mark.parametrize("width", short(WIDTHS, (1, 33, 128, 769)))
def test_grads(adaln, device, width):
    """The gradients are None or wrong and norms stay frozen (A01, unsloth#4533), of all seven inputs."""
    for dtype in floats(device):
        assert_width(adaln, device, width, dtype)


def assert_width(adaln, device, width, dtype):
    for norm in NORMS:
        assert_all_grads(adaln, make(device, dtype, (2, 5, width), norm=norm))
    assert_all_grads(
        adaln, make(device, dtype, (2, 5, width), "table and sample", affine=False, other=F32, eps=0.5)
    )


@pytest.mark.kernels_ci
@dtypes
@pytest.mark.parametrize("which", ["both", "y", "residual_out"])
def test_residual_grads(adaln, device, dtype, which):
    """The gradient of the residual is wrong in the fused add (A13, quack#53), for a loss on either output."""
    for norm, forms in product(NORMS, ("sample", "none", "table and token", ("none", "row", "token"))):
        case = make(device, dtype, (2, 5, 264), forms, norm=norm)
        grad, grad_residual = upstream(case)
        assert_grads(
            adaln, case, None if which == "residual_out" else grad, None if which == "y" else grad_residual
        )


@pytest.mark.parametrize("form", [name for name in FORMS if name != "none"])
def test_form(adaln, device, form):
    """A broadcast modulator's gradient has its shape and dtype, and is a sum over its rows (S12)."""
    for dtype, norm in product((BF16, F32), NORMS):
        assert_all_grads(adaln, make(device, dtype, (3, 5, 136), form, norm=norm, affine=norm == "layer"))


@pytest.mark.parametrize(
    "forms",
    [
        ("sample", "table and token", "row"),
        ("table and sample", "none", "position"),
        ("token", "row", "none"),
    ],
    ids=str,
)
@half_and_single
def test_mixed_forms(adaln, device, forms, dtype):
    """Each modulator is summed over other dimensions than the one beside it."""
    for norm in NORMS:
        assert_all_grads(adaln, make(device, dtype, (3, 5, 136), forms, norm=norm))


@pytest.mark.parametrize("shape", [(40,), (5, 40), (3, 5, 40), (2, 3, 5, 40)], ids=str)
def test_every_number_of_dimensions(adaln, device, shape):
    """Modulators with sizes of 1 in every place, on x of one to four dimensions (S12)."""
    for ones in product((False, True), repeat=len(shape) - 1):
        one = [1 if o else n for o, n in zip(ones, shape[:-1], strict=True)] + [shape[-1]]
        x, residual, gate, scale, shift = tensors(device, F32, shape, shape, one, one, one[-2:])
        assert_all_grads(
            adaln, Case(x, residual, gate, (scale, shift), shift, scale.flatten()[:40], norm="layer")
        )


@norms
@dtypes
def test_parameters_of_another_dtype(adaln, device, dtype, norm):
    """bf16 input with fp32 parameters: each gradient has its input's dtype (A15, sglang#32807)."""
    for other in floats(device):
        for form in ("sample", "token", "table and sample"):
            assert_all_grads(adaln, make(device, dtype, (3, 9, 136), form, other=other, norm=norm))


def test_parts_of_different_dtypes(adaln, device):
    """An fp32 table and a bf16 embedding of the timestep: two dtypes and two shapes from one sum."""
    for x_dtype, table_dtype, temb_dtype in product((BF16, F32), repeat=3):
        case = make(device, x_dtype, (2, 5, 136), "table and sample")
        kinds = {"[0]": table_dtype, "[1]": temb_dtype}
        retyped = {name: t.to(kinds.get(name[-3:], x_dtype)) for name, t in case.tensors().items()}
        assert_all_grads(adaln, case.with_tensors(retyped))


# ---- many rows, wide rows, few rows ------------------------------------------------------------------------


@half_and_single
@pytest.mark.parametrize("width", [16384, 65552])
def test_wide_rows(adaln, device, width, dtype):
    """The widest rows, backward (S02, flashinfer#718)."""
    for norm in NORMS:
        assert_all_grads(adaln, make(device, dtype, (1, 3, width), norm=norm))


@pytest.mark.parametrize("shape", [(1, 65535, 32), (65537, 1, 32), (3, 21846, 32)], ids=str)
def test_many_rows(adaln, device, shape):
    """Results go wrong from 65,536 rows on (S22, apex#411), backward: in one group, three, and many."""
    case = make(device, BF16, shape, "sample", other=F32)
    assert_grads(adaln, case, *upstream(case))


@pytest.mark.parametrize("other", [BF16, F32], ids=("bfloat16", "float32"))
@pytest.mark.parametrize("shape", short([(1, 16384, 128), (300, 2, 264)], [(1, 16384, 128)]), ids=str)
def test_sums_over_many_rows(adaln, device, shape, other):
    """Parameters' gradients are reduced in bf16 over the rows (A09, Liger-Kernel#950)."""
    for form in ("row", "sample"):
        case = make(device, BF16, shape, form, other=other, norm="layer")
        assert_grads(adaln, case, *upstream(case))


@pytest.mark.parametrize("shape", [(2, 300, 64), (300, 2, 64), (1, 1000, 64), (7, 33, 1031)], ids=str)
def test_a_row_of_modulators_for_each_token(adaln, device, shape):
    """Nothing to sum: the gradient of each is that of its one row, in its own dtype."""
    case = make(device, BF16, shape, ("token", "unbind, per token", "token"), other=F32, norm="layer")
    assert_grads(adaln, case, *upstream(case))


@pytest.mark.kernels_ci
@norms
@dtypes
def test_few_rows(adaln, device, dtype, norm):
    """Sums are random with fewer rows than blocks (A12, flash-attention#781); N12 for zeros."""
    for rows in range(1, 18):
        _ = torch.full((4096,), math.nan, dtype=F32, device=device)  # what a later allocation may find
        assert_all_grads(adaln, make(device, dtype, (1, rows, 40), norm=norm))
    case = make(device, dtype, (1, 1, 40), "none", norm=norm, residual=False)
    zeros = case.but(x=torch.zeros_like(case.x))
    got = [assert_grads(adaln, zeros, torch.ones_like(case.x)) for _ in range(5)]
    assert all(all_same(first.values(), got[0].values()) for first in got)
    assert not got[0]["weight"].any()


@pytest.mark.kernels_ci
@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8), (0, 3, 8), (3, 0)], ids=str)
def test_zero_size(adaln, device, shape):
    """Zero tokens launch an empty grid and the error breaks a later call (S14, sglang#23609), backward."""
    x, residual = (leaf(torch.empty(shape, device=device)) for _ in range(2))
    row = [leaf(torch.ones(shape[-1], device=device)) for _ in range(5)]
    sample = leaf(torch.ones(shape[0], *[1] * (len(shape) - 2), shape[-1], device=device))
    for case in (Case(x, residual, *row), Case(x, residual, sample, (row[0], sample), sample, norm="layer")):
        y, total = case.run(adaln)
        (y.sum() + total.sum()).backward()
        for tensor in case.tensors().values():
            assert tensor.grad.shape == tensor.shape
            assert not tensor.grad.any()
    assert torch.ones(3, device=device).sum().item() == 3


# ---- statistics, layouts, finite differences ---------------------------------------------------------------


@pytest.mark.kernels_ci
@pytest.mark.parametrize(("norm", "mean"), [("rms", 1), ("layer", 1), ("layer", 100)])
def test_statistics_are_not_saved_in_low_precision(adaln, device, norm, mean):
    """A statistic saved in bf16 spoils the backward (A10, helion#2273).

    With a gradient of ones the terms of dx cancel to a hundredth, which shows the error of the statistic.
    """
    x = (mean + randn(1, 8, 4096, scale=0.01 * mean)).to(device=device, dtype=BF16)
    case = Case(x, weight=torch.ones(4096, dtype=BF16, device=device), norm=norm)
    for grad in (randn(1, 8, 4096, dtype=BF16, device=device, seed=1), torch.ones_like(x)):
        assert_grads(adaln, case, grad)


@dtypes
def test_saved_statistics(ops, device, dtype):
    """The saved mean and rstd are fp32 (fp64 for fp64), one for each row, and right (A10)."""
    x = randn(3, 5, 96, dtype=dtype, device=device)
    wide = F64 if dtype == F64 else F32
    none, options = [None] * 6, (1e-3,)
    for layer in (False, True):
        about = x.double() - x.double().mean(-1, keepdim=True) if layer else x.double()
        truth = torch.rsqrt(about.square().mean(-1) + 1e-3)
        zeros = torch.zeros_like(x)
        for mean, rstd in (
            ops.ada_norm_train(x, *none, *options, layer)[1:],
            ops.gate_residual_ada_norm_train(zeros, x, *none, None, None, *options, layer)[2:],
        ):
            assert rstd.dtype == mean.dtype == wide
            torch.testing.assert_close(rstd, truth.to(wide), rtol=1e-6, atol=0)
            if layer:
                torch.testing.assert_close(mean, x.double().mean(-1).to(wide), rtol=1e-6, atol=1e-6)


@pytest.mark.kernels_ci
@norms
@dtypes
def test_expanded_upstream_gradient(adaln, device, dtype, norm):
    """.sum().backward() sends an expanded scalar with stride 0 (A02, quack#88)."""
    case = make(device, dtype, (2, 5, 264), norm=norm)
    for reduce, value in ((torch.sum, 1), (torch.mean, 1 / case.x.numel())):
        given = case.map(leaf)
        y, total = given.run(adaln)
        (reduce(y) + reduce(total)).backward()
        grad = torch.full_like(case.x, value)
        got = {name: t.grad for name, t in given.tensors().items()}
        compare_grads(adaln, case, got, total, grad, grad)


@pytest.mark.parametrize("layout", GRAD_LAYOUTS)
def test_strided_inputs_and_gradients(adaln, device, layout):
    """x, residual, columns and the upstream gradients in any layout (A02; LightLLM#1467 for the backward)."""
    for dtype in (BF16, F32):
        assert_strided(adaln, device, layout, dtype)


def assert_strided(adaln, device, layout, dtype):
    x, residual, grad, grad_residual = views(GRAD_LAYOUTS[layout], 4, device, dtype)
    rows = [randn(528, dtype=dtype, device=device, seed=i)[::2] for i in range(4, 9)]
    for norm in NORMS:
        case = Case(x, residual, *rows, norm=norm)
        got = assert_grads(adaln, case, grad, grad_residual)
        packed = case.map(torch.Tensor.contiguous)
        again = assert_grads(adaln, packed, grad.contiguous(), grad_residual.contiguous())
        assert all_same(got.values(), again.values())


@norms
@pytest.mark.parametrize("form", ["sample", "token", "table and token", "sample, two dims", "none"])
def test_gradcheck(adaln, device, norm, form):
    """Finite differences in fp64, of every input in every kind of form."""
    need_cpu(device)
    case = make(device, F64, (2, 3, 4), form, norm=norm, eps=1e-3)
    names, values = zip(*case.map(leaf).tensors().items(), strict=True)

    def run(*given):
        return case.with_tensors(dict(zip(names, given, strict=True))).run(adaln)

    assert torch.autograd.gradcheck(run, values)
    gate = modulators(device, F64, (2, 3, 4), form)[0]
    parts = [
        leaf(t)
        for t in (
            case.residual,
            case.x,
            *([] if gate is None else gate if isinstance(gate, tuple) else [gate]),
        )
    ]
    assert torch.autograd.gradcheck(
        lambda r, x, *g: adaln.gate_residual(r, x, None if not g else g[0] if len(g) == 1 else g), parts
    )
