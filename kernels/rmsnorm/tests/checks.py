# SPDX-License-Identifier: Apache-2.0
"""What "right" means for rmsnorm: the forward against its reference, and the true gradients."""

from __future__ import annotations

import torch
from vendor.checks import all_same, assert_rounds_to, same_bits

# One rounding: 1 ulp. Two roundings: a tie of the first falls to the other side, and the weight
# carries that ulp into a binade where it counts twice.
ULPS = {"once": 1, "before_weight": 2}


def assert_forward(rmsnorm, x, weight=None, eps=1e-6, *, residual=None, **options):
    """Runs the op on `x` and checks values, dtype, layout, and that no input changed."""
    inputs = [t for t in (x, residual, weight) if t is not None]
    before = [t.clone() for t in inputs]
    if residual is None:
        y, residual_out = rmsnorm.rms_norm(x, weight, eps, **options), None
        truth = rmsnorm.reference.rms_norm(x, weight, eps, **options)
    else:
        y, residual_out = rmsnorm.add_rms_norm(x, residual, weight, eps, **options)
        truth, total = rmsnorm.reference.add_rms_norm(x, residual, weight, eps, **options)
        assert same_bits(residual_out, total)
        assert residual_out.is_contiguous()
    assert_rounds_to(y, truth, x.dtype, ULPS[options.get("rounding", "once")])
    assert y.is_contiguous()
    assert y.device == x.device
    assert all_same(inputs, before), "an input was written"
    return y, residual_out


def true_grads(x, weight, grad, eps=1e-6, *, weight_offset=0.0, rounding="once"):
    """dx and dw in fp64 from the formula; rounding counts as the identity for dx, as autograd has it."""
    wide, dy = x.detach().double(), grad.double()
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    normed = wide * rstd
    scaled = dy if weight is None else dy * (weight.detach().double() + weight_offset)
    dx = rstd * (scaled - normed * (scaled * normed).mean(-1, keepdim=True))
    if rounding == "before_weight":
        normed = normed.to(x.dtype).double()
    dw = (dy * normed).flatten(0, -2).sum(0) if x.dim() > 1 else dy * normed
    noise = (rstd * scaled).abs()  # the two terms of dx are this large, and may cancel
    return dx, dw, noise
