# SPDX-License-Identifier: Apache-2.0
"""What "right" means for a rotation: its forward and its gradients against fp64."""

from __future__ import annotations

import torch
from vendor.checks import (
    HALF,
    all_same,
    assert_input_grad,
    assert_weight_grad,
    leaf,
    randn,
    ulp,
)

# Beside the rounding of the result: sine and cosine are off by 1e-7, each product and the sum by half an ulp
# of fp32, relative to the length of the pair; a norm adds the errors of a sum of squares and of two products.
# For 16-bit results a GPU takes sines and cosines that are good to 9e-7.
SINGLE, SINGLE_NORMED = 4e-7, 1.5e-6
COARSE = 8e-7
DOUBLE = 1e-14


def pair_length(values, pairs, interleaved):
    """The length of each lane's pair, which no rotation changes; a lane's own where it does not turn."""
    length = values.abs().clone()
    if pairs:
        turning = values[..., : 2 * pairs].unflatten(-1, (-1, 2) if interleaved else (2, -1))
        lane = -1 if interleaved else -2
        both = turning.norm(dim=lane, keepdim=True).expand(turning.shape)
        length[..., : 2 * pairs] = both.flatten(-2)
    return length


def assert_turned(actual, truth, dtype, case):
    """`actual` is the fp64 `truth` rounded once to `dtype`, give or take what fp32 arithmetic costs."""
    assert actual.dtype == dtype
    assert actual.shape == truth.shape
    if actual.numel() == 0:
        return
    assert torch.isfinite(truth).all(), "the case is not a finite one"
    arithmetic = DOUBLE if dtype == torch.float64 else SINGLE if case.norm is None else SINGLE_NORMED
    if actual.is_cuda and dtype in HALF:
        arithmetic += COARSE
    largest = torch.maximum(truth.abs(), actual.double().abs())
    allowed = 0.5 * ulp(largest, dtype) + arithmetic * pair_length(truth, case.pairs, case.interleaved)
    error = (actual.double() - truth).abs()
    worst = int((error - allowed).argmax())
    assert bool((error <= allowed).all()), f"{error.flatten()[worst]:.3g} of {truth.flatten()[worst]:.3g}"


def assert_forward(rope3d, case, **options):
    """Runs the call and checks values, dtype, device, layout, and that no input changed."""
    given = [t for t in vars(case).values() if isinstance(t, torch.Tensor)]
    before = [t.clone() for t in given]
    outputs = case.run(rope3d, **options)
    for actual, truth, x in zip(outputs, case.truth(rope3d.reference), (case.q, case.k), strict=False):
        assert_turned(actual, truth, x.dtype, case)
        assert actual.is_contiguous()
        assert actual.device == x.device
    assert all_same(given, before), "an input was written"
    return outputs


def upstream(case, seed=50):
    """A gradient for each output."""
    return [
        randn(*x.shape, dtype=x.dtype, device=x.device, seed=seed + i)
        for i, x in enumerate((case.q, case.k))
        if x is not None
    ]


def gradients(case, outputs, grads):
    """Of all inputs; None where there is none."""
    return torch.autograd.grad(outputs, case.inputs, grads, allow_unused=True)


def assert_grads(rope3d, case, grads=None):
    """Backward against autograd through the fp64 reference; upstream gradients stay as they are."""
    case = case.with_inputs([leaf(t) for t in case.inputs])
    grads = upstream(case) if grads is None else grads
    before = [g.clone() for g in grads]
    got = gradients(case, case.run(rope3d), grads)
    assert all_same(grads, before), "an upstream gradient was overwritten"
    wide = case.with_inputs([leaf(t.detach().double()) for t in case.inputs])
    if case.q.dtype != torch.float64 and case.coords is not None:
        wide = _angles_rounded(wide, rope3d.reference)
    expected = gradients(wide, wide.truth(rope3d.reference), [g.double() for g in before])
    _assert_gradients(case, got, expected, before)
    return got


def _angles_rounded(case, reference):
    """Tables of the fp32 angles: an fp64 q would round them to fp64."""
    angle = reference.angles(case.coords, case.inv_freq, case.axis)
    both = [
        t.repeat_interleave(2, -1) if case.interleaved else torch.cat([t, t], -1)
        for t in (angle.cos(), angle.sin())
    ]
    return case.but(coords=None, inv_freq=None, axis=None, cos=both[0], sin=both[1])


def _assert_gradients(case, got, expected, grads):
    dtype, count = case.q.dtype, len(grads)
    assert all(g is not None for g in got), "a gradient is missing"
    sides = zip((case.q, case.k), (case.q_weight, case.k_weight), grads, got, expected, strict=False)
    for x, weight, grad, actual, truth in sides:
        if case.norm is None:
            assert_turned(actual, truth, dtype, case)
        else:
            assert_input_grad(actual, truth, dtype, _terms(case, x, weight, grad))
    for actual, truth, weight in zip(got[count:], expected[count:], case.inputs[count:], strict=True):
        assert_weight_grad(actual, truth, weight.dtype, dtype)


def _terms(case, x, weight, grad):
    """How large the two terms are that a norm's gradient is the difference of."""
    if x.numel() == 0:
        return grad.double()
    dims = -1 if case.norm == "head" else (-2, -1)
    rstd = torch.rsqrt(x.detach().double().square().mean(dims, keepdim=True) + case.eps)
    largest = 1.0 if weight is None else float(weight.detach().abs().max())
    return (rstd * largest * 1.5 * grad.double().abs().amax(dims, keepdim=True)).expand(x.shape)
