# SPDX-License-Identifier: Apache-2.0
"""What "right" means for geglu: each result within one unit in the last place of the fp64 truth.

There is no sum over a row, so nothing excuses more: only the gradient of the gate, whose two terms cancel
where gelu has its minimum, is measured with the size of its terms.
"""

from __future__ import annotations

import math

import torch
from vendor.checks import FLOAT64_RTOL, HALF, all_same, same_bits, ulp, ulp_distance

F32, F64 = torch.float32, torch.float64
MODES, ORDERS = ("none", "tanh"), ("last", "first")
OPTIONS = tuple({"approximate": mode, "gate": order} for mode in MODES for order in ORDERS)
# What an evaluation may lose before the rounding: 16-bit results come from fp32, whose exponentials are right
# to 2**-17 far out; fp32 results come from fp64, or from two numbers of fp32.
LOST = {torch.float16: 2.0**-16, torch.bfloat16: 2.0**-16, F32: 2.0**-26, F64: FLOAT64_RTOL}
# So this share of 16-bit results falls to the other side of a rounding boundary. Rounding twice moves 25 %.
STRAYS = 0.02
ENOUGH = 2000  # results, for a share to mean something


def packed(value, gate, order):
    """The halves in one tensor."""
    return torch.cat((value, gate) if order == "last" else (gate, value), -1)


def halves(x, order):
    """(value, gate), views of x."""
    first, last = x.chunk(2, -1)
    return (first, last) if order == "last" else (last, first)


def assert_one_ulp(actual, truth, lost=None):
    """`actual` is the fp64 `truth` rounded to its dtype, or a neighbour of that; in fp64 1e-12 of it.

    `lost` is what may have been lost before the rounding, where terms cancel.
    """
    assert actual.shape == truth.shape
    if actual.numel() == 0:
        return
    assert torch.isfinite(truth).all(), "the case is not a finite one"
    error, dtype = (actual.double() - truth).abs(), actual.dtype
    lost = torch.zeros_like(truth) if lost is None else lost
    if dtype == F64:
        assert bool((error <= FLOAT64_RTOL * truth.abs() + lost + 1e-300).all()), f"largest {error.max():.3g}"
        return
    distance = ulp_distance(actual, truth.to(dtype))
    wrong = (distance > 1) & (error > ulp(truth, dtype) + lost)
    assert not wrong.any(), f"{int(distance[wrong].max())} ulp"
    if dtype in HALF and actual.numel() >= ENOUGH:
        strays = int(((distance > 0) & (error > ulp(truth, dtype) / 2 + lost)).sum())
        assert strays <= STRAYS * actual.numel(), f"{strays} of {actual.numel()} are not exact"


def assert_forward(geglu, x, **options):
    """Runs both functions on `x` and checks values, dtype, layout, and that no input changed."""
    before = x.clone()
    y = geglu.geglu(x, **options)
    assert_one_ulp(y, geglu.reference.geglu(x, **options))
    assert (y.dtype, y.device) == (x.dtype, x.device)
    assert y.is_contiguous()
    value, gate = halves(x, options.get("gate", "last"))
    split = geglu.geglu_split(value, gate, approximate=options.get("approximate", "none"))
    assert split.is_contiguous()
    assert same_bits(split, y)
    assert same_bits(x, before), "the input was written"
    return y


def derivative(gate, approximate):
    """Of the fp64 `gate` cdf, gelu' = cdf + gate * cdf', and the size of the terms of that."""
    if approximate == "none":
        cdf = 0.5 * torch.special.erfc(-gate / math.sqrt(2))
        term = gate * torch.exp(-0.5 * gate.square()) / math.sqrt(2 * math.pi)
    else:
        u = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
        cdf = torch.sigmoid(2 * u)
        inner = 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * gate.square())
        term = gate * inner * cdf * torch.sigmoid(-2 * u)
    return cdf, cdf + term, cdf + term.abs()


def true_grads(value, gate, grad, approximate="none"):
    """Of value and gate, in fp64 from the formula; and how large the terms of the second are."""
    value, gate, grad = (t.detach().double() for t in (value, gate, grad))
    cdf, slope, terms = derivative(gate, approximate)
    return grad * gate * cdf, grad * value * slope, (grad * value).abs() * terms


def assert_grads(geglu, x, grad, **options):
    """Backward of both functions with the upstream gradient `grad`; x is a leaf."""
    before = grad.clone()
    order, mode = options.get("gate", "last"), options.get("approximate", "none")
    (got,) = torch.autograd.grad(geglu.geglu(x, **options), x, grad)
    leaves = [t.detach().requires_grad_() for t in halves(x, order)]
    split = torch.autograd.grad(geglu.geglu_split(*leaves, approximate=mode), leaves, grad)
    assert same_bits(grad, before), "the upstream gradient was overwritten"
    assert (got.dtype, got.shape) == (x.dtype, x.shape)
    assert got.is_contiguous()
    assert all_same(halves(got, order), split)
    compare_grads(halves(got, order), *halves(x, order), grad, mode)
    return got


def compare_grads(got, value, gate, grad, mode="none"):
    """Gradients of value and gate: one ulp, and in the second what a cancellation leaves.

    On a GPU those of fp32 are computed in fp32, and three more roundings are an ulp or two.
    """
    of_value, of_gate, terms = true_grads(value, gate, grad, mode)
    single = 2.0**-21 if value.dtype == F32 and value.is_cuda else 0
    few = 2.0**-144 if single else 0  # a slope that is subnormal has been rounded as one
    assert_one_ulp(got[0], of_value, single * of_value.abs())
    assert_one_ulp(got[1], of_gate, (LOST[value.dtype] + single) * terms + few * (grad * value).abs())
