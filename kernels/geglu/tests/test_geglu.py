# SPDX-License-Identifier: Apache-2.0
"""Numbers of the forward: both modes over the whole range of every dtype, both orders, special values."""

from __future__ import annotations

import math

import pytest
import torch
from checks import MODES, OPTIONS, ORDERS, assert_forward, assert_one_ulp, halves, packed
from vendor.checks import DTYPES, HALF, dtypes, leaf, randn, same_bits, tensors, ulp_distance

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
modes = pytest.mark.parametrize("mode", MODES)
FAR = (10.5, 11.0, 20.0, 100.0, 3e4, 6e4)


def every_gate(dtype, device):
    """All finite numbers of a 16-bit dtype; of a wider one many of every exponent, and more about zero."""
    if dtype in HALF:
        numbers = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    else:
        bits = torch.arange(0, 0x7F800000, 8191, dtype=torch.int32).view(F32)
        near = torch.linspace(-16, 16, 400_000, dtype=F64)
        numbers = torch.cat((bits.double(), -bits.double(), near)).to(dtype)
    return numbers[numbers.isfinite()].to(device)


# ---- values ------------------------------------------------------------------------------------------------


@pytest.mark.kernels_ci
def test_reference_is_the_formula(geglu):
    """The truth that everything is measured with equals torch's own gelu in fp64, and numbers by hand."""
    value, gate = tensors("cpu", F64, (5, 33), (5, 33))
    for mode in MODES:
        expected = value * torch.nn.functional.gelu(gate, approximate=mode)
        for order in ORDERS:
            got = geglu.reference.geglu(packed(value, gate, order), approximate=mode, gate=order)
            torch.testing.assert_close(got, expected)
    # where 1 + erf has lost every digit
    far = geglu.reference.gelu(torch.tensor([-9.0], dtype=F64))
    torch.testing.assert_close(far.item(), -4.5 * math.erfc(9 / math.sqrt(2)), rtol=1e-12, atol=0)
    u = math.sqrt(2 / math.pi) * (-3 - 0.044715 * 27)
    tanh = geglu.reference.gelu(torch.tensor([-3.0], dtype=F64), approximate="tanh")
    torch.testing.assert_close(tanh.item(), -1.5 * (1 + math.tanh(u)), rtol=1e-9, atol=0)


@pytest.mark.kernels_ci
@pytest.mark.parametrize(
    ("mode", "expected"), [("none", (-1.26685e-4, -9.385526e-3)), ("tanh", (-7.0246e-5, -8.912291e-3))]
)
def test_each_mode_has_its_own_numbers(geglu, device, mode, expected):
    """Exact and tanh GELU are mixed up between model and kernel (N16, vllm#3337)."""
    gate = torch.tensor([-4.0, -2.699], device=device)
    for order in ORDERS:
        y = geglu.geglu(packed(torch.ones_like(gate), gate, order), approximate=mode, gate=order)
        assert float((y.cpu() - torch.tensor(expected)).abs().max()) < 1e-6
    split = geglu.geglu_split(torch.ones_like(gate), gate, approximate=mode)
    assert float((split.cpu() - torch.tensor(expected)).abs().max()) < 1e-6


@pytest.mark.kernels_ci
@modes
@dtypes
def test_every_gate(geglu, device, dtype, mode):
    """Within 1 ulp from the smallest number to the largest: 1 + erf and 1 + tanh lose the negative tail."""
    gate = every_gate(dtype, device)
    y = geglu.geglu_split(torch.ones_like(gate), gate, approximate=mode)
    assert_one_ulp(y, geglu.reference.geglu_split(torch.ones_like(gate), gate, approximate=mode))
    assert bool(y.isfinite().all())


@modes
@dtypes
def test_between_zero_and_the_gate(geglu, device, dtype, mode):
    """For x > 0 gelu lies between 0 and x, and for x < 0 between its minimum and 0."""
    gate = every_gate(dtype, device)
    y = geglu.geglu_split(torch.ones_like(gate), gate, approximate=mode)
    positive = gate > 0
    assert bool(((y >= 0) & (y <= gate))[positive].all())
    assert bool(((y <= 0) & (y >= -0.1705))[~positive].all())
    grows = y[gate > 0][gate[gate > 0].double().sort().indices].double()
    assert bool((grows.diff() >= -grows[1:] * torch.finfo(dtype).eps).all())


@modes
@dtypes
def test_a_value_beside_every_gate(geglu, device, dtype, mode):
    """The product is rounded once: gelu rounded before it moves a quarter of all results by an ulp."""
    gate = every_gate(dtype, device)
    gate = gate[(gate.abs() > 1e-3) & (gate.abs() < 12)]  # no result below the smallest normal number
    value = randn(gate.numel(), dtype=dtype, device=device).abs() + 0.25
    for order in ORDERS:
        y = geglu.geglu(packed(value, gate, order), approximate=mode, gate=order)
        truth = geglu.reference.geglu_split(value, gate, approximate=mode)
        tiny = truth.abs() < torch.finfo(dtype).tiny
        assert_one_ulp(y[~tiny], truth[~tiny])


@modes
@pytest.mark.parametrize("dtype", [F16, F32], ids=("float16", "float32"))
def test_a_large_value_beside_a_small_gelu(geglu, device, dtype, mode):
    """gelu below the smallest normal number keeps its digits until the product."""
    # on a GPU gelu itself is a number of fp32, and further out a subnormal one
    far = -13 if device.type == "cpu" else {"none": -12.5, "tanh": -9.75}[mode]
    gate = torch.linspace(far, -2, 4001, device=device).to(dtype)
    value = torch.full_like(gate, 6e4 if dtype == F16 else 1e30)
    y = geglu.geglu_split(value, gate, approximate=mode)
    assert_one_ulp(y, geglu.reference.geglu_split(value, gate, approximate=mode))


@pytest.mark.kernels_ci
@dtypes
def test_conventions(geglu, device, dtype):
    """A packed layout read the wrong way round, or as interleaved (S29, vllm#22951)."""
    a, b = tensors(device, dtype, (5, 40), (5, 40))
    x = torch.cat((a, b), -1)
    gelu = torch.nn.functional.gelu
    for order, expected in (
        ("last", a.double() * gelu(b.double())),
        ("first", gelu(a.double()) * b.double()),
    ):
        y = geglu.geglu(x, gate=order)
        torch.testing.assert_close(y.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-7)
    assert same_bits(geglu.geglu(x), geglu.geglu(x, gate="last"))
    assert same_bits(geglu.geglu(x), geglu.geglu(torch.cat((b, a), -1), gate="first"))
    assert same_bits(geglu.geglu(x), geglu.geglu_split(a, b))
    assert same_bits(geglu.geglu(x), geglu.geglu(x, approximate="none"))


# ---- special values ----------------------------------------------------------------------------------------


@pytest.mark.kernels_ci
@modes
@dtypes
def test_far_gates(geglu, device, dtype, mode):
    """tanh as (e^2z - 1) / (e^2z + 1) overflows: NaN once the gate passes 10.5 (N17, llm-scaler#484)."""
    gate = torch.tensor([*FAR, *(-f for f in FAR)], dtype=dtype, device=device)
    y = geglu.geglu_split(torch.ones_like(gate), gate, approximate=mode)
    assert same_bits(y[:6], gate[:6])
    if mode == "tanh" or dtype != F64:
        assert bool((y[6:].abs() <= 1e-20).all())
    assert not y[8:].abs().gt(1e-80).any()


@pytest.mark.kernels_ci
@modes
@dtypes
def test_zeros_stay_zero(geglu, device, dtype, mode):
    """A block of zeros gives 0/0 = NaN where something divides (N12, kernels-community#680)."""
    x = leaf(torch.zeros(3, 80, dtype=dtype, device=device))
    for order in ORDERS:
        y = geglu.geglu(x, approximate=mode, gate=order)
        assert not y.any()
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert not grad.any()
    split = geglu.geglu_split(torch.ones_like(x), x, approximate=mode)
    assert not split.any()
    assert torch.equal(torch.autograd.grad(split.sum(), x)[0], torch.full_like(x, 0.5))


@modes
@dtypes
def test_finite_for_every_finite_input(geglu, device, dtype, mode):
    """A square or a cube of the gate overflows, and Inf * 0 = NaN: forward and backward."""
    gate = every_gate(dtype, device)
    ends = torch.tensor([torch.finfo(dtype).max, torch.finfo(dtype).min], dtype=dtype, device=device)
    value, gate = (
        leaf(torch.ones(gate.numel() + 2, dtype=dtype, device=device)),
        leaf(torch.cat((gate, ends))),
    )
    y = geglu.geglu_split(value, gate, approximate=mode)
    grads = torch.autograd.grad(y, (value, gate), torch.ones_like(y))
    assert all(bool(t.isfinite().all()) for t in (y, *grads))


@pytest.mark.kernels_ci
@modes
@dtypes
def test_special_values_stay_in_their_column(geglu, device, dtype, mode):
    """Special values never specified: the eager pattern, all else untouched (N13, tt-metal#55159)."""
    for special in (math.inf, -math.inf, math.nan, 1e25, -1e25, 6e4):
        for column in (100, 164):  # in one half and in the other
            assert_special(geglu, device, dtype, special, column, mode)


def assert_special(geglu, device, dtype, special, column, mode):
    x = randn(5, 264, dtype=dtype, device=device)
    x[2, 32] = x[2, 232] = 1.5  # what stands beside the special value
    clean = geglu.geglu(x, approximate=mode)
    x[2, column] = torch.tensor(special, dtype=F64).to(dtype)  # 1e25 is Inf in fp16
    y = geglu.geglu(x, approximate=mode)
    value, gate = halves(x.to(F64 if dtype == F64 else F32), "last")
    eager = value * torch.nn.functional.gelu(gate, approximate=mode)
    assert torch.equal(y.isnan(), eager.isnan())
    assert torch.equal(y.isinf(), eager.to(dtype).isinf())
    others = torch.ones_like(y, dtype=torch.bool)
    others[2, column % 132] = False
    assert same_bits(y[others], clean[others])


@modes
@dtypes
def test_special_values_in_backward(geglu, device, dtype, mode):
    """The gradients of Inf and NaN are those of the eager expression too (N13)."""
    rows = [(1.5, s, 1.0) for s in (math.inf, -math.inf, math.nan)]
    rows += [(s, 1.5, 1.0) for s in (math.inf, math.nan)] + [(1.5, 1.5, s) for s in (math.inf, math.nan)]
    rows += [(1.5, 1.5, 1.0)]
    value, gate, grad = torch.tensor(rows, dtype=dtype, device=device).unbind(-1)
    ours, eager = (
        [leaf(value.to(kind)), leaf(gate.to(kind))] for kind in (dtype, F64 if dtype == F64 else F32)
    )
    got = torch.autograd.grad(geglu.geglu_split(*ours, approximate=mode), ours, grad)
    y = eager[0] * torch.nn.functional.gelu(eager[1], approximate=mode)
    expected = torch.autograd.grad(y, eager, grad.to(y.dtype))
    for actual, truth in zip(got, expected, strict=True):
        assert torch.equal(actual.isnan(), truth.isnan())
        assert torch.equal(actual.isinf(), truth.to(dtype).isinf())


def test_signed_zeros(geglu, device):
    """gelu(-0.0) is -0.0, as in torch; so no sign is lost on the way."""
    for dtype in DTYPES if device.type == "cpu" else (F16, BF16, F32):
        gate = torch.tensor([0.0, -0.0], dtype=dtype, device=device)
        for mode in MODES:
            y = geglu.geglu_split(torch.ones_like(gate), gate, approximate=mode)
            assert int(ulp_distance(y, gate).max()) == 0
            assert torch.equal(y.signbit(), gate.signbit())


@dtypes
def test_options(geglu, device, dtype):
    """Both functions, both modes and both orders agree with the reference, bit for bit with each other."""
    x = randn(9, 520, dtype=dtype, device=device)
    for options in OPTIONS:
        assert_forward(geglu, x, **options)
