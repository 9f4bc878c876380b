# SPDX-License-Identifier: Apache-2.0
"""Gradients against the formula in fp64."""

from __future__ import annotations

import pytest
import torch
from checks import (
    MODES,
    OPTIONS,
    ORDERS,
    assert_grads,
    compare_grads,
    halves,
    packed,
    true_grads,
)
from vendor.checks import HALF, all_same, dtypes, leaf, randn, same_bits, short, tensors
from vendor.layouts import GRAD_LAYOUTS, views
from vendor.machine import need_cpu

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
WIDTHS = (1, 2, 3, 7, 33, 128, 769, 1234, 3420)


def test_true_grads_are_autograds(geglu):
    """The formula that the gradients are measured with is what autograd makes of the reference."""
    value, gate, grad = map(leaf, tensors("cpu", F64, *[(4, 99)] * 3))
    for mode in MODES:
        y = geglu.reference.geglu_split(value, gate, approximate=mode)
        torch.testing.assert_close(
            true_grads(value, gate, grad, mode)[:2], torch.autograd.grad(y, (value, gate), grad)
        )


@dtypes
@pytest.mark.parametrize("width", short(WIDTHS, (1, 33, 769)))
def test_grads(geglu, device, width, dtype):
    """Both halves in both modes and orders; odd widths, and halves off the 16-byte boundary (S16)."""
    x, grad = tensors(device, dtype, (9, 2 * width), (9, width))
    for options in OPTIONS:
        assert_grads(geglu, leaf(x), grad, **options)


@pytest.mark.kernels_ci
@pytest.mark.parametrize("mode", MODES)
@dtypes
def test_grads_of_every_gate(geglu, device, dtype, mode):
    """Over the whole range where the slope is neither 0 nor 1, and where its two terms cancel."""
    if dtype in HALF:
        gate = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
        gate = gate[gate.isfinite() & (gate.abs() < (5 if dtype == F16 else 12)) & (gate.abs() > 1e-3)]
    else:
        gate = torch.cat(
            (torch.linspace(-12, 12, 200_000, dtype=F64), torch.linspace(-0.8, -0.7, 50_000))
        ).to(dtype)
    gate = gate.to(device)
    value = randn(gate.numel(), dtype=dtype, device=device).abs() + 1
    grad = randn(gate.numel(), dtype=dtype, device=device, seed=1).abs() + 1
    for order in ORDERS:
        x = leaf(packed(value, gate, order))
        (got,) = torch.autograd.grad(geglu.geglu(x, approximate=mode, gate=order), x, grad)
        compare_grads(halves(got, order), value, gate, grad, mode)


@pytest.mark.parametrize("dtype", [BF16, F32], ids=("bfloat16", "float32"))
@pytest.mark.parametrize("width", [36864, 131071])
def test_wide_rows_backward(geglu, device, width, dtype):
    """Rows that are split between threads or blocks, backward."""
    x, grad = tensors(device, dtype, (3, 2 * width), (3, width))
    for options in OPTIONS[1:3]:
        assert_grads(geglu, leaf(x), grad, **options)


@pytest.mark.parametrize("rows", [65535, 65536, 65537, 131073])
def test_many_rows_backward(geglu, device, rows):
    """Results go wrong from 65,536 rows on (S22, apex#411), backward."""
    x, grad = tensors(device, BF16, (rows, 16), (rows, 8))
    assert_grads(geglu, leaf(x), grad)


@pytest.mark.kernels_ci
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_each_half_gets_its_own_gradient(geglu, device, options):
    """A packed gradient written the wrong way round: value and gate 0 and 3 tell them apart (S29)."""
    value, gate = torch.zeros(2, 40, device=device), torch.full((2, 40), 3.0, device=device)
    x = leaf(packed(value, gate, options["gate"]))
    geglu.geglu(x, **options).sum().backward()
    of_value, of_gate = halves(x.grad, options["gate"])
    assert bool((of_value > 2.9).all())
    assert not of_gate.any()


@pytest.mark.kernels_ci
@dtypes
@pytest.mark.parametrize("reduce", [torch.sum, torch.mean])
def test_expanded_upstream_gradient(geglu, device, dtype, reduce):
    """.sum().backward() sends an expanded scalar with stride 0 (A02, quack#88)."""
    x = leaf(randn(9, 528, dtype=dtype, device=device))
    reduce(geglu.geglu(x)).backward()
    scale = 1 if reduce is torch.sum else 1 / (9 * 264)
    grad = torch.full((9, 264), scale, dtype=dtype, device=device)
    compare_grads(halves(x.grad, "last"), *halves(x, "last"), grad)


@dtypes
@pytest.mark.parametrize("layout", GRAD_LAYOUTS)
def test_strided_inputs_and_gradients(geglu, device, dtype, layout):
    """Inputs and the upstream gradient in any layout (A02; LightLLM#1467 for the backward)."""
    value, gate, grad = views(GRAD_LAYOUTS[layout], 3, device, dtype)
    leaves = [leaf(value), leaf(gate)]
    got = torch.autograd.grad(geglu.geglu_split(*leaves), leaves, grad)
    compare_grads(got, value, gate, grad)
    again = [leaf(value.contiguous()), leaf(gate.contiguous())]
    assert all_same(got, torch.autograd.grad(geglu.geglu_split(*again), again, grad.contiguous()))
    x, half = value, grad[..., : grad.shape[-1] // 2]
    for options in OPTIONS:
        first = assert_grads(geglu, leaf(x), half, **options)
        assert same_bits(first, assert_grads(geglu, leaf(x.contiguous()), half.contiguous(), **options))


@pytest.mark.kernels_ci
@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8), (3, 0), (0,)], ids=str)
def test_zero_size(geglu, device, shape):
    """Zero tokens launch an empty grid and the error breaks a later call (S14, sglang#23609), backward."""
    x, gate = leaf(torch.empty(shape, device=device)), leaf(torch.empty(shape, device=device))
    (geglu.geglu(x).sum() + geglu.geglu_split(x, gate).sum()).backward()
    assert x.grad.shape == gate.grad.shape == shape
    assert torch.ones(3, device=device).sum().item() == 3


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradcheck(geglu, device, options):
    """Finite differences in fp64, out to where the tail is all there is."""
    need_cpu(device)
    x, value = (leaf(3 * t) for t in tensors(device, F64, (3, 10), (3, 10)))
    assert torch.autograd.gradcheck(lambda t: geglu.geglu(t, **options), x)
    mode = options["approximate"]
    assert torch.autograd.gradcheck(lambda a, b: geglu.geglu_split(a, b, approximate=mode), (value, x))
