# SPDX-License-Identifier: Apache-2.0
"""Gradients against the formula in fp64."""

from __future__ import annotations

import math

import pytest
import torch
from checks import true_grads
from vendor.checks import (
    assert_input_grad,
    assert_weight_grad,
    dtypes,
    floats,
    leaf,
    randn,
    same_bits,
    short,
    tensors,
)
from vendor.layouts import GRAD_LAYOUTS, views

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
OPTIONS = ({}, {"rounding": "before_weight"}, {"weight_offset": 1.0})


def assert_grads(rmsnorm, x, weight, grad, eps=1e-6, **options):
    """Backward of rms_norm with the upstream gradient `grad`; x and weight are leaves."""
    before = grad.clone()
    y = rmsnorm.rms_norm(x, weight, eps, **options)
    wanted = [t for t in (x, weight) if t is not None]
    got = torch.autograd.grad(y, wanted, grad, allow_unused=True)
    dx, dw, noise = true_grads(x, weight, before, eps, **options)
    assert all(g is not None for g in got), "a gradient is missing"
    assert_input_grad(got[0], dx, x.dtype, noise)
    if weight is not None:
        assert_weight_grad(got[1], dw, weight.dtype, x.dtype)
    assert same_bits(grad, before), "the upstream gradient was overwritten"
    return got


def assert_add_grads(rmsnorm, x, residual, weight, grad, grad_residual, eps=1e-6, **options):
    """Backward of add_rms_norm with a gradient on either output, or on both (None: not used)."""
    outputs = rmsnorm.add_rms_norm(x, residual, weight, eps, **options)
    used = [(out, g) for out, g in zip(outputs, (grad, grad_residual), strict=True) if g is not None]
    got = torch.autograd.grad(
        [out for out, _ in used], (x, residual, weight), [g for _, g in used], allow_unused=True
    )
    total = (x + residual).detach()
    upstream = torch.zeros_like(total) if grad is None else grad
    dx, dw, noise = true_grads(total, weight, upstream, eps, **options)
    if grad_residual is not None:
        dx = dx + grad_residual.double()
        noise = noise + grad_residual.double().abs()
    for actual in got[:2]:
        assert actual is not None, "a gradient is missing"
        assert_input_grad(actual, dx, x.dtype, noise)
    if grad is not None or got[2] is not None:
        assert_weight_grad(got[2], dw, weight.dtype, x.dtype)


@dtypes
@pytest.mark.parametrize("width", short((1, 2, 3, 7, 33, 128, 769, 3584), (1, 33, 128, 769)))
def test_grads(rmsnorm, device, width, dtype):
    """The weight gradient is always None and norms stay frozen (A01, unsloth#4533)."""
    x, grad, weight = tensors(device, dtype, (9, width), (9, width), width)
    x, weight = leaf(x), leaf(weight)
    for options in OPTIONS:
        assert_grads(rmsnorm, x, weight, grad, **options)
    assert_grads(rmsnorm, x, None, grad)
    assert_grads(rmsnorm, x, weight, grad, 0.5)


@pytest.mark.kernels_ci
@dtypes
@pytest.mark.parametrize("which", ["both", "y", "residual_out"])
def test_residual_grads(rmsnorm, device, dtype, which):
    """The gradient of the residual is wrong in the fused add (A13, quack#53), for a loss on either output."""
    x, residual, grad, grad_residual, weight = tensors(device, dtype, *[(9, 264)] * 4, 264)
    grad = None if which == "residual_out" else grad
    grad_residual = None if which == "y" else grad_residual
    for options in OPTIONS:
        assert_add_grads(rmsnorm, leaf(x), leaf(residual), leaf(weight), grad, grad_residual, **options)


@pytest.mark.parametrize("rounding", ["once", "before_weight"])
@dtypes
def test_grads_with_a_weight_of_another_dtype(rmsnorm, device, dtype, rounding):
    """bf16 input with an fp32 weight: each gradient has its input's dtype (A15, sglang#32807)."""
    x, grad = tensors(device, dtype, (33, 520), (33, 520))
    for weight_dtype in floats(device):
        weight = leaf(randn(520, dtype=weight_dtype, device=device, seed=2))
        assert_grads(rmsnorm, leaf(x), weight, grad, rounding=rounding)


@pytest.mark.parametrize("dtype", [BF16, F32], ids=("bfloat16", "float32"))
@pytest.mark.parametrize("width", [16384, 65552, 131072])
def test_wide_rows_backward(rmsnorm, device, width, dtype):
    """The widest rows, backward (S02, flashinfer#718)."""
    x, grad, weight = tensors(device, dtype, (3, width), (3, width), width)
    assert_grads(rmsnorm, leaf(x), leaf(weight), grad)


@pytest.mark.parametrize("rows", [65535, 65536, 65537, 131073])
def test_many_rows_backward(rmsnorm, device, rows):
    """Results go wrong from 65,536 rows on (S22, apex#411), backward."""
    x, grad, weight = tensors(device, BF16, (rows, 64), (rows, 64), 64)
    assert_grads(rmsnorm, leaf(x), leaf(weight), grad)


@pytest.mark.parametrize("weight_dtype", [BF16, F32], ids=("bfloat16", "float32"))
@pytest.mark.parametrize("shape", short([(16384, 128), (65536, 256)], [(16384, 128)]), ids=str)
def test_weight_grad_over_many_rows(rmsnorm, device, shape, weight_dtype):
    """The weight gradient is reduced in bf16 over the rows (A09, Liger-Kernel#950)."""
    x, grad, weight = tensors(device, BF16, shape, shape, shape[1])
    assert_grads(rmsnorm, leaf(x), leaf(weight.to(weight_dtype)), grad)


@pytest.mark.kernels_ci
def test_statistic_is_not_saved_in_low_precision(rmsnorm, device):
    """A reciprocal rms saved in bf16 spoils the backward (A10, helion#2273).

    With a gradient of ones the two terms of dx cancel to a hundredth, which shows the error of the statistic.
    """
    x = leaf((1 + randn(8, 4096, scale=0.01)).to(device=device, dtype=BF16))
    for grad in (randn(8, 4096, dtype=BF16, device=device, seed=1), torch.ones_like(x)):
        assert_grads(rmsnorm, x, leaf(torch.ones(4096, dtype=BF16, device=device)), grad)


@dtypes
def test_saved_rstd(ops, device, dtype):
    """The saved statistic is fp32 (fp64 for fp64), one per row, and right (A10)."""
    x = randn(3, 5, 96, dtype=dtype, device=device)
    wide = F64 if dtype == F64 else F32
    truth = torch.rsqrt(x.double().square().mean(-1) + 1e-3)
    for rstd in (ops.rms_norm_train(x, None, 1e-3, 0.0, False)[1],
                 ops.add_rms_norm_train(x, torch.zeros_like(x), None, 1e-3, 0.0, False)[2]):  # fmt: skip
        assert rstd.dtype == wide
        torch.testing.assert_close(rstd, truth.to(wide), rtol=1e-6, atol=0)


@pytest.mark.kernels_ci
@dtypes
@pytest.mark.parametrize("reduce", [torch.sum, torch.mean])
def test_expanded_upstream_gradient(rmsnorm, device, dtype, reduce):
    """.sum().backward() sends an expanded scalar with stride 0 (A02, quack#88)."""
    x, weight = map(leaf, tensors(device, dtype, (9, 264), 264))
    reduce(rmsnorm.rms_norm(x, weight)).backward()
    scale = 1 if reduce is torch.sum else 1 / x.numel()
    dx, dw, noise = true_grads(x, weight, torch.full_like(x, scale))
    assert_input_grad(x.grad, dx, dtype, noise)
    assert_weight_grad(weight.grad, dw, dtype, dtype)


@dtypes
@pytest.mark.parametrize("layout", GRAD_LAYOUTS)
def test_strided_inputs_and_gradients(rmsnorm, device, dtype, layout):
    """x, weight and the upstream gradient in any layout (A02; LightLLM#1467 for the backward)."""
    x, grad = views(GRAD_LAYOUTS[layout], 2, device, dtype)
    weight = leaf(randn(528, dtype=dtype, device=device, seed=2)[::2])
    got = assert_grads(rmsnorm, leaf(x), weight, grad)
    again = assert_grads(rmsnorm, leaf(x.contiguous()), weight, grad.contiguous())
    assert same_bits(got[0], again[0])
    assert same_bits(got[1], again[1])


@pytest.mark.kernels_ci
@dtypes
def test_zero_input_and_few_rows(rmsnorm, device, dtype):
    """The weight gradient is random with fewer rows than blocks (A12, flash-attention#781); N12 for zeros."""
    weight = leaf(randn(4, dtype=dtype, device=device))
    for shape in ((4,), (1, 4)):
        for _ in range(10):
            _ = torch.full((4096,), math.nan, dtype=F32, device=device)  # what a later allocation may find
            x = leaf(torch.zeros(shape, dtype=dtype, device=device))
            rmsnorm.rms_norm(x, weight).sum().backward()
            assert not weight.grad.any()
            assert bool(x.grad.isfinite().all())
            weight.grad = None
    for rows in range(1, 18):
        x, grad, weight = tensors(device, dtype, (rows, 40), (rows, 40), 40)
        assert_grads(rmsnorm, leaf(x), leaf(weight), grad)


@pytest.mark.kernels_ci
@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8), (3, 0)], ids=str)
def test_zero_size(rmsnorm, device, shape):
    """Zero tokens launch an empty grid and the error breaks a later call (S14, sglang#23609), backward."""
    x, weight = leaf(torch.empty(shape, device=device)), leaf(torch.ones(shape[-1], device=device))
    (rmsnorm.rms_norm(x, weight).sum() + sum(t.sum() for t in rmsnorm.add_rms_norm(x, x, weight))).backward()
    assert x.grad.shape == shape
    assert weight.grad.shape == weight.shape
    assert not weight.grad.any()
    assert torch.ones(3, device=device).sum().item() == 3


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradcheck(rmsnorm, device, options):
    """Finite differences in fp64; rounding to fp64 is no rounding, so before_weight has a slope as well."""
    if device.type != "cpu":
        pytest.skip("fp64 is for the CPU; fp32 finite differences say nothing")
    inputs = tuple(map(leaf, tensors(device, F64, (3, 5), (3, 5), 5)))
    assert torch.autograd.gradcheck(lambda *a: rmsnorm.rms_norm(*a, 1e-3, **options), inputs[1:])
    assert torch.autograd.gradcheck(lambda *a: rmsnorm.add_rms_norm(*a, 1e-3, **options), inputs)


def test_true_grads_are_autograds(rmsnorm):
    """The formula that the gradients are measured with is what autograd makes of the reference."""
    x, weight, grad = map(leaf, tensors("cpu", F64, (4, 9), 9, (4, 9)))
    for options in OPTIONS:
        y = rmsnorm.reference.rms_norm(x, weight, 1e-3, **options)
        torch.testing.assert_close(
            true_grads(x, weight, grad, 1e-3, **options)[:2], torch.autograd.grad(y, (x, weight), grad)
        )
