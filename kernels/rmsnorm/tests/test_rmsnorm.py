# SPDX-License-Identifier: Apache-2.0
"""Numbers of the forward: every dtype, rounding and special value against the fp64 reference."""

from __future__ import annotations

import math

import pytest
import torch
from checks import assert_forward
from vendor.checks import HALF, dtypes, floats, randn, same_bits, tensors, ulp_distance

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


@pytest.mark.kernels_ci
def test_reference_is_the_formula(rmsnorm):
    """The truth that everything is measured with equals torch's own norm in fp64, and a row done by hand."""
    x, weight = randn(5, 33, dtype=F64), randn(33, dtype=F64, seed=1)
    expected = torch.nn.functional.rms_norm(x, (33,), weight + 0.5, 1e-3)
    torch.testing.assert_close(rmsnorm.reference.rms_norm(x, weight, 1e-3, weight_offset=0.5), expected)
    by_hand = rmsnorm.reference.rms_norm(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 2.0]), 0.0)
    torch.testing.assert_close(by_hand, torch.tensor([3.0, 8.0], dtype=F64) / math.sqrt(12.5))


@dtypes
def test_squares_beyond_the_dtype(rmsnorm, device, dtype):
    """fp16 gives wrong numbers because each square already exceeds 65504 (N01, pytorch#133085)."""
    ones = torch.ones(2048, dtype=dtype, device=device)
    x = (300 * ones).repeat(8, 1)
    for y in (rmsnorm.rms_norm(x, ones), rmsnorm.add_rms_norm(x, x, ones)[0]):
        assert float((y.double() - 1).abs().max()) < 1e-3


@pytest.mark.kernels_ci
@pytest.mark.parametrize("rounding", ["once", "before_weight"])
@pytest.mark.parametrize("dtype", HALF, ids=("float16", "bfloat16"))
def test_cast_order(rmsnorm, device, dtype, rounding):
    """x*rstd rounded before or after the weight: 26 % of elements differ (N03, transformers#33133)."""
    x, weight = tensors(device, dtype, (64, 4096), 4096)
    assert_forward(rmsnorm, x, weight, rounding=rounding)
    assert_forward(rmsnorm, x, weight, residual=x.flip(0), rounding=rounding)


@pytest.mark.kernels_ci
def test_offset_is_added_in_fp32(rmsnorm, device):
    """1 + 0.00390625 formed in bf16 is exactly 1.0 (N05, Liger-Kernel#1462)."""
    weight = torch.full((512,), 2.0**-8, dtype=BF16, device=device)
    x = randn(4, 512, device=device)
    ratio = rmsnorm.rms_norm(x, weight, weight_offset=1.0).double() / rmsnorm.reference.rms_norm(x)
    assert float((ratio - 1.00390625).abs().max()) < 1e-6
    # 1.5 where the rest of the row makes its rms 1
    x = torch.full((4,), math.sqrt((4 - 1.5**2) / 3), device=device)
    x[0] = 1.5
    y = rmsnorm.rms_norm(x.bfloat16(), weight[:4], 0.0, weight_offset=1.0)
    assert float(y[0]) == 1.5078125


def test_zero_weight_with_an_offset(rmsnorm, device):
    """Gemma's weight is stored as zeros and means 1 + w: never an all-zero output (N07, Liger-Kernel#74)."""
    x, zeros = randn(4, 512, dtype=BF16, device=device), torch.zeros(512, dtype=BF16, device=device)
    assert same_bits(rmsnorm.rms_norm(x, zeros, weight_offset=1.0), rmsnorm.rms_norm(x))


@dtypes
def test_eps_none_is_torchs_default(rmsnorm, device, dtype):
    """eps=None documented as the dtype's own eps but computed with another (N08, pytorch#155527)."""
    x, weight = tensors(device, dtype, (8, 512), 512)
    x *= 1e-3
    expected = torch.nn.functional.rms_norm(x, (512,), weight, None)
    added, _ = rmsnorm.add_rms_norm(x, torch.zeros_like(x), weight, None)
    for y in (rmsnorm.rms_norm(x, weight, None), added):
        assert y.dtype == dtype
        if dtype in HALF:
            assert int(ulp_distance(y, expected).max()) <= 1
        else:
            torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)
    assert "eps" in rmsnorm.rms_norm.__doc__
    assert "None" in rmsnorm.rms_norm.__doc__


def test_small_variance(rmsnorm, device):
    """bf16 input of small variance off by 1.7 when eps comes from the storage dtype (N09, pytorch#189581)."""
    y = rmsnorm.rms_norm(randn(2, 4, 1, 32, dtype=BF16, device=device, scale=0.058), None, 1e-6)
    rms = y.double().square().mean(-1).sqrt()
    assert float((rms - 1).abs().max()) < 0.01


@pytest.mark.kernels_ci
@pytest.mark.parametrize(("eps", "expected"), [(1e-6, 0.70711), (1e-5, 0.30151)])
def test_eps_is_forwarded(rmsnorm, device, eps, expected):
    """A norm that hard-codes 1e-5 while the config says 1e-6 (N10, aprender#1606)."""
    x = torch.full((4, 2048), 1e-3, device=device)
    for y in (rmsnorm.rms_norm(x, None, eps), rmsnorm.add_rms_norm(x, torch.zeros_like(x), None, eps)[0]):
        assert float((y - expected).abs().max()) < 1e-5


@dtypes
def test_zeros_stay_zero(rmsnorm, device, dtype):
    """A block of zeros gives 0/0 = NaN without the eps guard (N12, kernels-community#680)."""
    x, weight = torch.zeros(3, 40, dtype=dtype, device=device), randn(40, dtype=dtype, device=device)
    assert not rmsnorm.rms_norm(x, weight).any()
    assert not rmsnorm.add_rms_norm(x, x, weight)[0].any()


@dtypes
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e25, 6e4])
def test_special_values_stay_in_their_row(rmsnorm, device, dtype, value):
    """An overflowing sum of squares: the eager pattern, the other rows untouched (N13, tt-metal#55159)."""
    x = randn(5, 264, dtype=dtype, device=device)
    clean = rmsnorm.rms_norm(x)
    x[2, 100] = torch.tensor(value, dtype=F64).to(dtype)  # 1e25 is Inf in fp16
    y = rmsnorm.rms_norm(x)
    truth = rmsnorm.reference.rms_norm(x, compute=F64 if dtype == F64 else F32)
    assert torch.equal(y.isnan(), truth.isnan())
    assert torch.equal(y.isinf(), truth.isinf())
    others = [0, 1, 3, 4]
    assert same_bits(y[others], clean[others])
    assert same_bits(rmsnorm.add_rms_norm(x, torch.zeros_like(x))[0], y)


@pytest.mark.kernels_ci
@pytest.mark.parametrize("rounding", ["once", "before_weight"])
@dtypes
def test_weight_of_another_dtype(rmsnorm, device, dtype, rounding):
    """bf16 input with an fp32 weight returns NaN: the pointer is reinterpreted (A15, sglang#32807)."""
    x = randn(33, 520, dtype=dtype, device=device)
    for weight_dtype in floats(device):
        weight = randn(520, dtype=weight_dtype, device=device, seed=1)
        assert_forward(rmsnorm, x, weight, rounding=rounding)
        assert_forward(rmsnorm, x, weight, residual=x.flip(0), rounding=rounding, weight_offset=1.0)
