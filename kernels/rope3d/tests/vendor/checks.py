# SPDX-License-Identifier: Apache-2.0
"""What "right" means: distances in units of the last place, tolerances by dtype, and the numbers to try."""

from __future__ import annotations

import pytest
import torch

HALF = (torch.float16, torch.bfloat16)
MANTISSA = {torch.float16: 10, torch.bfloat16: 7, torch.float32: 23, torch.float64: 52}
SMALLEST = {torch.float16: -24, torch.bfloat16: -133, torch.float32: -149, torch.float64: -1074}
ORDERED_AS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
# The share of float16 and bfloat16 outputs that an fp32 evaluation rounds exactly as fp64 does: its error of
# about 1e-7 moves fewer than one value in a thousand over a rounding boundary. A wrong cast order moves 26 %.
SAME = 0.999
FLOAT32_RTOL = 1e-5  # fp32 sums of up to 131072 squares, in whatever order
FLOAT64_RTOL = 1e-12

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


def short(values, chosen):
    """Parameters, of which the chosen ones are in the short subset that a Hub build runs."""
    return [pytest.param(v, marks=pytest.mark.kernels_ci) if v in chosen else v for v in values]


def floats(device):
    """The dtypes of the contract; float64 is there for gradcheck, on the CPU only."""
    wide = (torch.float32, torch.float64) if device.type == "cpu" else (torch.float32,)
    return HALF + wide


def randn(*shape, dtype=torch.float32, device="cpu", seed=0, scale=1.0):
    """The same numbers on every device."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * scale).to(device=device, dtype=dtype)


def tensors(device, dtype, *shapes):
    """One random tensor for each shape (or size), all different."""
    sizes = [(shape,) if isinstance(shape, int) else shape for shape in shapes]
    return [randn(*size, dtype=dtype, device=device, seed=seed) for seed, size in enumerate(sizes)]


def leaf(tensor):
    """The same values, to be trained."""
    return tensor.detach().requires_grad_()


def ordered(tensor):
    """Integers that count the representable values, so that neighbours differ by one."""
    bits = tensor.contiguous().view(ORDERED_AS[tensor.element_size()])
    top = torch.iinfo(bits.dtype).min
    return torch.where(bits < 0, top - bits.long(), bits.long())


def ulp_distance(a, b):
    assert a.dtype == b.dtype
    return (ordered(a) - ordered(b)).abs()


def ulp(value, dtype):
    """The spacing of `dtype` at `value` (fp64)."""
    exponent = torch.frexp(value.double()).exponent - 1 - MANTISSA[dtype]
    return torch.ldexp(torch.ones_like(value, dtype=torch.float64), exponent.clamp_min(SMALLEST[dtype]))


def same_bits(a, b):
    """Equal in every bit; NaN equals NaN."""
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    return torch.equal(ordered(a), ordered(b))


def all_same(first, second):
    return all(same_bits(a, b) for a, b in zip(first, second, strict=True))


def assert_rounds_to(actual, truth, dtype, ulps=1):
    """`actual` is the fp64 `truth` rounded to `dtype`, give or take what the accumulation may cost.

    One rounding is 1 ulp in half precision; each further one on the way may add another.
    """
    assert actual.dtype == dtype
    assert actual.shape == truth.shape
    if actual.numel() == 0:
        return
    assert torch.isfinite(truth).all(), "the case is not a finite one"
    if dtype in HALF:
        distance = ulp_distance(actual, truth.to(dtype))
        assert int(distance.max()) <= ulps
        strays = int((distance > 0).sum())
        assert strays <= max(2, (1 - SAME) * actual.numel()), f"{strays} of {actual.numel()} are not exact"
        return
    rtol = ulps * (FLOAT32_RTOL if dtype == torch.float32 else FLOAT64_RTOL)
    # Near zero an error is measured against its row: that is the size of what was added up.
    allowed = rtol * truth.abs() + 0.01 * rtol * truth.abs().amax(-1, keepdim=True)
    error = (actual.double() - truth).abs()
    assert bool((error <= allowed).all()), f"largest error {error.max():.3g}"


def assert_input_grad(actual, truth, dtype, noise):
    """2 ulp of the row's largest value; fp32 and fp64 as the forward; plus what a cancellation leaves."""
    assert actual.dtype == dtype
    assert actual.shape == truth.shape
    if actual.numel() == 0:
        return
    largest = truth.abs().amax(-1, keepdim=True)
    single = FLOAT64_RTOL if dtype == torch.float64 else 1e-6
    if dtype in HALF:
        allowed = 2 * ulp(largest, dtype)
    else:
        allowed = (FLOAT32_RTOL if dtype == torch.float32 else FLOAT64_RTOL) * largest
    error = (actual.double() - truth).abs()
    allowed = allowed + single * noise.amax(-1, keepdim=True)
    assert bool((error <= allowed).all()), f"largest error {error.max():.3g} of {largest.max():.3g}"


def assert_weight_grad(actual, truth, dtype, x_dtype, noise=None):
    """Sums over rows, relative to the largest: they are fp32, and only the result is rounded to `dtype`.

    `noise` is what was added up in absolute values, where the terms themselves are what a cancellation left.
    """
    assert actual.dtype == dtype
    assert actual.shape == truth.shape
    if actual.numel() == 0:
        return
    exact = x_dtype == dtype == torch.float64
    rtol = 1e-2 if dtype in HALF else 1e-11 if exact else 1e-3
    allowed = rtol * truth.abs().max()
    if noise is not None:
        allowed = allowed + (FLOAT64_RTOL if exact else 1e-6) * noise.max()
    error = (actual.double() - truth).abs().max()
    assert bool(error <= allowed), f"largest error {error:.3g} of {truth.abs().max():.3g}"
