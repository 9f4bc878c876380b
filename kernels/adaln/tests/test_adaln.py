# SPDX-License-Identifier: Apache-2.0
"""Numbers of the forward: every dtype, rounding point and special value against the fp64 reference."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from cases import make
from checks import assert_forward
from vendor.checks import HALF, dtypes, floats, leaf, randn, same_bits, tensors

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
NORMS = ("rms", "layer")
norms = pytest.mark.parametrize("norm", NORMS)


@pytest.mark.kernels_ci
def test_reference_is_the_formula(adaln):
    """The truth that everything is measured with equals torch's own norms in fp64, and a row done by hand."""
    x, weight, bias, scale, shift, gate, r = tensors("cpu", F64, (5, 33), *[33] * 5, (5, 33))
    functional = torch.nn.functional
    ours = {
        name: adaln.reference.ada_norm(x, scale, shift, 1e-3, norm=name, weight=weight, bias=bias)
        for name in NORMS
    }
    rms = functional.rms_norm(x, (33,), weight, 1e-3) + bias
    torch.testing.assert_close(ours["rms"], rms * (1 + scale) + shift)
    layer = functional.layer_norm(x, (33,), weight, bias, 1e-3)
    torch.testing.assert_close(ours["layer"], layer * (1 + scale) + shift)
    torch.testing.assert_close(adaln.reference.gate_residual(r, x, (gate, shift)), r + (gate + shift) * x)
    y, total = adaln.reference.gate_residual_ada_norm(r.half(), x.half(), None, scale)
    assert same_bits(total, r.half() + x.half())
    torch.testing.assert_close(y, functional.rms_norm(total.double(), (33,), eps=1e-6) * (1 + scale))
    by_hand = adaln.reference.ada_norm(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 0.0]), eps=0.0)
    torch.testing.assert_close(by_hand, torch.tensor([6.0, 4.0], dtype=F64) / math.sqrt(12.5))


# ---- rounding points ---------------------------------------------------------------------------------------


@dtypes
def test_squares_beyond_the_dtype(adaln, device, dtype):
    """fp16 gives wrong numbers because each square already exceeds 65504 (N01, pytorch#133085)."""
    ones = torch.ones(8, 2048, dtype=dtype, device=device)
    ones[:, ::2] = -1
    for norm in NORMS:
        for y in (
            adaln.ada_norm(300 * ones, norm=norm),
            adaln.gate_residual_ada_norm(300 * ones, 300 * ones, None, norm=norm)[0],
        ):
            assert float((y.double() - ones.double()).abs().max()) < 1e-3


@pytest.mark.kernels_ci
def test_one_is_added_to_scale_in_fp32(adaln, device):
    """1 + 0.00390625 formed in bf16 is exactly 1.0 (N05, Liger-Kernel#1462)."""
    scale = torch.full((512,), 2.0**-8, dtype=BF16, device=device)
    x = randn(4, 512, device=device)
    for norm in NORMS:
        ratio = adaln.ada_norm(x, scale, norm=norm).double() / adaln.reference.ada_norm(x, norm=norm)
        # about a mean of nearly nothing, small numbers keep few digits
        assert float((ratio - 1.00390625).abs().max()) < (1e-6 if norm == "rms" else 1e-4)
    # 1.5 where the rest of the row makes its rms 1
    x = torch.full((4,), math.sqrt((4 - 1.5**2) / 3), device=device)
    x[0] = 1.5
    y = adaln.ada_norm(x.bfloat16(), scale[:4], eps=0.0)
    assert float(y[0]) == 1.5078125


@pytest.mark.kernels_ci
@pytest.mark.parametrize("slot", ["gate", "scale", "shift"])
def test_a_pair_is_added_in_fp32(adaln, device, slot):
    """1.0 + 2^-9 formed in bf16 is exactly 1.0: a table loses its embedding before it is used."""
    table = torch.full((256,), 1.0, dtype=BF16, device=device)
    temb = torch.full((2, 1, 256), 2.0**-9, dtype=BF16, device=device)
    x = randn(2, 3, 256, device=device)
    pair = {slot: (table, temb)}
    if slot == "gate":
        got = adaln.gate_residual(torch.zeros_like(x), x, **pair)
        expected = x.double() * (1 + 2.0**-9)
    else:
        got, expected = adaln.ada_norm(x, **pair), adaln.reference.ada_norm(x, **pair)
    torch.testing.assert_close(got.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.kernels_ci
@norms
@pytest.mark.parametrize("dtype", HALF, ids=("float16", "bfloat16"))
def test_one_rounding(adaln, device, dtype, norm):
    """n rounded before the scale, or the product before the shift: many elements differ (N03)."""
    for affine in (False, True):
        assert_forward(adaln, make(device, dtype, (2, 33, 2048), affine=affine, norm=norm))
        assert_forward(adaln, make(device, dtype, (2, 33, 2048), affine=affine, norm=norm, residual=False))


@norms
@dtypes
def test_the_rounded_sum_is_normalised(adaln, device, dtype, norm):
    """y is that of the residual_out that is returned, bit for bit, not of the sum before its rounding."""
    case = make(device, dtype, (2, 5, 520), norm=norm)
    y, total = case.run(adaln)
    assert same_bits(y, case.but(x=total, residual=None, gate=None).run(adaln)[0])
    assert same_bits(total, adaln.gate_residual(case.residual, case.x, case.gate))


@pytest.mark.kernels_ci
@norms
@dtypes
def test_modulators_that_change_nothing(adaln, device, dtype, norm):
    """Zeros for scale and shift, and ones for the gate, are what None means; a gate of zeros adds nothing."""
    case = make(device, dtype, (2, 5, 264), "none", norm=norm)
    y, total = assert_forward(adaln, case)
    zeros, ones = (full((2, 1, 264), dtype=dtype, device=device) for full in (torch.zeros, torch.ones))
    for given in (
        case.but(gate=ones, scale=zeros, shift=zeros),
        case.but(gate=(zeros, ones), scale=(zeros, zeros)),
    ):
        again, sums = assert_forward(adaln, given)
        assert same_bits(again, y)
        assert same_bits(sums, total)
    assert same_bits(adaln.gate_residual(case.residual, case.x, None), total)
    assert same_bits(adaln.gate_residual(case.residual, case.x, zeros), case.residual)


@dtypes
def test_scale_of_minus_one(adaln, device, dtype):
    """1 + scale is 0, and y is the shift and nothing else."""
    case = make(device, dtype, (2, 5, 264))
    case = case.but(scale=torch.full((264,), -1.0, dtype=dtype, device=device))
    y, _ = assert_forward(adaln, case)
    assert same_bits(y, case.shift.expand(y.shape).contiguous())


# ---- eps and special values --------------------------------------------------------------------------------


@pytest.mark.kernels_ci
@norms
@pytest.mark.parametrize(("eps", "expected"), [(1e-6, 0.70711), (1e-5, 0.30151)])
def test_eps_is_forwarded(adaln, device, eps, expected, norm):
    """A norm that hard-codes 1e-5 while the config says 1e-6 (N10, aprender#1606)."""
    x = torch.full((4, 2048), 1e-3, device=device)
    if norm == "layer":
        x[:, ::2] *= -1
    for y in (
        adaln.ada_norm(x, None, None, eps, norm=norm),
        adaln.gate_residual_ada_norm(x, torch.zeros_like(x), None, None, None, eps, norm=norm)[0],
    ):
        assert float((y.abs() - expected).abs().max()) < 1e-5


@norms
@dtypes
def test_zeros_give_the_shift(adaln, device, dtype, norm):
    """A block of zeros gives 0/0 = NaN without the eps guard (N12, kernels-community#680)."""
    case = make(device, dtype, (2, 3, 40), norm=norm).but(bias=None)
    case = case.but(x=torch.zeros_like(case.x), residual=torch.zeros_like(case.x)).map(leaf)
    y, total = case.run(adaln)
    assert same_bits(y.detach(), case.shift.detach().expand(y.shape).contiguous())
    assert not total.any()
    grads = torch.autograd.grad(y.sum() + total.sum(), list(case.tensors().values()))
    assert all(bool(g.isfinite().all()) for g in grads)


@norms
@dtypes
def test_special_values_stay_in_their_row(adaln, device, dtype, norm):
    """An overflowing sum of squares: the eager pattern, the other rows untouched (N13, tt-metal#55159)."""
    for value in (math.inf, -math.inf, math.nan, 1e25, 6e4):
        assert_special(adaln, device, dtype, value, norm)


def assert_special(adaln, device, dtype, value, norm):
    case = make(device, dtype, (1, 5, 264), residual=False, norm=norm)
    clean, _ = case.run(adaln)
    case.x[0, 2, 100] = torch.tensor(value, dtype=F64).to(dtype)  # 1e25 is Inf in fp16
    y, _ = case.run(adaln)
    truth, _ = case.run(adaln.reference, compute=F64 if dtype == F64 else F32)
    assert torch.equal(y.isnan(), truth.isnan())
    assert torch.equal(y.isinf(), truth.to(dtype).isinf())
    others = [0, 1, 3, 4]
    assert same_bits(y[:, others], clean[:, others])
    added, _ = case.but(residual=torch.zeros_like(case.x)).run(adaln)
    assert same_bits(added, y)


@pytest.mark.parametrize("slot", ["gate", "scale", "shift", "weight", "bias"])
def test_special_values_of_a_modulator(adaln, device, slot):
    """A NaN or Inf in a modulator reaches its own column, or the rows of its own sample (N13)."""
    case = make(device, F32, (2, 3, 264))
    clean, _ = case.run(adaln)
    for value in (math.nan, math.inf):
        bad = getattr(case, slot).clone()
        bad.view(-1, 264)[0, 7] = value
        y, total = case.but(**{slot: bad}).run(adaln)
        changed = ordered_difference(y, clean)
        assert not y[0, :, 7].isfinite().any()
        if slot != "gate":
            changed[:, :, 7] = False
            assert not changed.any()
        else:
            assert not total[0, :, 7].isfinite().any()
            assert not changed[1].any()


def ordered_difference(a, b):
    return ~((a == b) | (a.isnan() & b.isnan()))


# ---- about the mean ----------------------------------------------------------------------------------------


@pytest.mark.kernels_ci
@pytest.mark.parametrize(("dtype", "mean"), [(F32, 1000), (F32, -1000), (F16, 100), (BF16, 100)], ids=str)
def test_far_from_zero(adaln, device, dtype, mean):
    """The mean of squares less the square of the mean loses every digit of a variance beside a large mean."""
    for width in (2, 3, 33, 769, 2048):
        case = make(device, dtype, (2, 9, width), residual=False, norm="layer")
        x = (mean + randn(2, 9, width)).to(device=device, dtype=dtype)
        y, _ = assert_forward(adaln, case.but(x=x, scale=None, shift=None, weight=None, bias=None))
        if width > 33:
            assert float((y.double().square().mean(-1) - 1).abs().max()) < 0.02
        assert_forward(adaln, case.but(x=x))
        assert_forward(adaln, case.but(x=x, residual=torch.zeros_like(x)))


@dtypes
def test_constant_rows(adaln, device, dtype):
    """A variance of 0, which a difference of two means makes negative, and its root NaN; y is the shift."""
    for width, value in product((1, 3, 40, 264, 2048), (1.0, -3.5, 1000.1, 0.1)):
        case = make(device, dtype, (2, 3, width), residual=False, norm="layer", affine=False)
        case = case.but(x=torch.full_like(case.x, value))
        y, _ = assert_forward(adaln, case)
        if value in (1.0, -3.5):  # whose sums are exact
            assert same_bits(y, case.shift.expand(y.shape).contiguous())


@norms
@dtypes
def test_one_column(adaln, device, dtype, norm):
    """A row of one number: its sign by the mean square, nothing by the variance."""
    case = make(device, dtype, (2, 5, 1), residual=False, norm=norm)
    y, _ = assert_forward(adaln, case)
    plain = adaln.ada_norm(case.x, norm=norm)
    if norm == "layer":
        assert not plain.any()
        assert same_bits(y, adaln.ada_norm(torch.zeros_like(case.x), **modulation(case)))
    else:
        torch.testing.assert_close(plain.abs(), torch.ones_like(plain), rtol=0, atol=2e-3)


def modulation(case):
    return {name: getattr(case, name) for name in ("scale", "shift", "norm", "weight", "bias")}


# ---- dtypes ------------------------------------------------------------------------------------------------


@pytest.mark.kernels_ci
@norms
@dtypes
def test_parameters_of_another_dtype(adaln, device, dtype, norm):
    """bf16 input with fp32 parameters returns NaN: the pointer is reinterpreted (A15, sglang#32807)."""
    for other in floats(device):
        assert_forward(adaln, make(device, dtype, (2, 9, 520), other=other, norm=norm))
        assert_forward(adaln, make(device, dtype, (2, 9, 520), "table and sample", other=other, norm=norm))


@dtypes
def test_every_parameter_of_its_own_dtype(adaln, device, dtype):
    """No two of gate, scale, shift, the parts of a pair, weight and bias need agree (A15)."""
    case = make(device, dtype, (3, 4, 136), "table and token")
    kinds = floats(device)
    for turn in range(len(kinds)):
        names = [name for name in case.tensors() if name not in ("x", "residual")]
        mixed = {
            name: case.tensors()[name].to(kinds[(i + turn) % len(kinds)]) for i, name in enumerate(names)
        }
        assert_forward(adaln, case.with_tensors(case.tensors() | mixed))
