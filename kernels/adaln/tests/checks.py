# SPDX-License-Identifier: Apache-2.0
"""What "right" means for adaln: values and gradients against the fp64 reference.

y is a sum, (n * weight + bias) * (1 + scale) + shift, whose terms may cancel: then an error that is small
beside the terms is large beside y. So errors are measured with the size of the terms, and in half precision y
must be what a number that near to the truth rounds to. Where nothing cancels, that is 1 ulp at most.
"""

from __future__ import annotations

import torch
from cases import MODULATORS, expanded, parts
from vendor.checks import (
    FLOAT32_RTOL,
    FLOAT64_RTOL,
    HALF,
    SAME,
    all_same,
    assert_input_grad,
    assert_weight_grad,
    leaf,
    randn,
    same_bits,
)

F64 = torch.float64


def assert_rounds_from(actual, truth, near, few):
    """`actual` is a number at most `near` the fp64 `truth`, rounded once to its dtype.

    `near` is room for sums in any order. In half precision all but one in a thousand lie within `few`, which
    is room for the few roundings of fp32 that no order avoids.
    """
    assert actual.shape == truth.shape
    if actual.numel() == 0:
        return
    assert torch.isfinite(truth).all(), "the case is not a finite one"
    assert bool(_between(actual, truth, near).all()), f"largest error {(actual - truth).abs().max():.3g}"
    strays = int((~_between(actual, truth, few)).sum())
    if actual.dtype in HALF:
        assert strays <= max(2, (1 - SAME) * actual.numel()), f"{strays} of {actual.numel()} are not exact"


def _between(actual, truth, distance):
    return ((truth - distance).to(actual.dtype) <= actual) & (actual <= (truth + distance).to(actual.dtype))


def size(modulator, x):
    """How large the parts of a modulator are: rounding their sum costs in proportion."""
    wide = (expanded(part.detach(), x).double().abs() for part in parts(modulator))
    return sum(wide, torch.zeros((), dtype=F64, device=x.device))


def columns(tensor, absent, x):
    return torch.full((), absent, dtype=F64, device=x.device) if tensor is None else tensor.detach().double()


class Sizes:
    """Of what the op computes on the way from v, the rows that it normalises, to y; all in fp64."""

    def __init__(self, adaln, case, v):
        wide = v.detach().double()
        self.n = adaln.reference.ada_norm(wide, eps=case.eps, norm=case.norm).abs()
        about = wide - wide.mean(-1, keepdim=True) if case.norm == "layer" else wide
        self.rstd = torch.rsqrt(about.square().mean(-1, keepdim=True) + case.eps)
        # n is v less its mean: both are rounded, and the sum behind the mean too
        self.lost = self.rstd * wide.abs().mean(-1, keepdim=True) if case.norm == "layer" else 0 * self.rstd
        self.weight, self.bias = columns(case.weight, 1, v).abs(), columns(case.bias, 0, v).abs()
        self.scale, self.shift = 1 + size(case.scale, v), size(case.shift, v)

    @property
    def y(self):
        return (self.n * self.weight + self.bias) * self.scale + self.shift

    def near(self, dtype):
        """1e-5 for sums of squares in any order, and a fifth of that for the sum behind the mean."""
        return _rtol(dtype) * (self.y + 0.2 * self.lost * self.weight * self.scale)

    def few(self, dtype):
        """Four roundings of every term, and of the mean."""
        return _single(dtype) * (self.y + self.lost * self.weight * self.scale)


def _rtol(dtype):
    return FLOAT64_RTOL if dtype == F64 else FLOAT32_RTOL


def _single(dtype):
    return 2.0**-50 if dtype == F64 else 2.0**-21


def assert_forward(adaln, case):
    """Runs the op and checks values, dtype, layout, and that no input changed; gives (y, residual_out)."""
    inputs = list(case.tensors().values())
    before = [t.clone() for t in inputs]
    y, total = case.run(adaln)
    v = case.x
    if case.residual is not None:
        v = total
        assert_sum(adaln, case, total)
        assert same_bits(adaln.gate_residual(case.residual, case.x, case.gate), total)
    truth, sizes = truth_of_y(adaln, case, v), Sizes(adaln, case, v)
    assert y.dtype == case.x.dtype
    assert_rounds_from(y, truth, sizes.near(y.dtype), sizes.few(y.dtype))
    for out in (y,) if total is None else (y, total):
        assert out.is_contiguous()
        assert (out.shape, out.dtype, out.device) == (case.x.shape, case.x.dtype, case.x.device)
    assert all_same(inputs, before), "an input was written"
    return y, total


def truth_of_y(adaln, case, v):
    return adaln.reference.ada_norm(
        v, case.scale, case.shift, case.eps, norm=case.norm, weight=case.weight, bias=case.bias
    )


def assert_sum(adaln, case, total):
    """residual_out is residual + gate * x, formed in fp32 and rounded once."""
    wide = case.map(torch.Tensor.double)
    truth = adaln.reference.gate_residual(wide.residual, wide.x, wide.gate)
    gate = size(case.gate, case.x) if case.gate is not None else 1
    terms = wide.residual.abs() + gate * wide.x.abs()
    assert_rounds_from(total, truth, _single(total.dtype) * terms, _single(total.dtype) * terms)


# ---- gradients ---------------------------------------------------------------------------------------------


def upstream(case, seed=70):
    """Gradients for y and for residual_out."""
    return [randn(*case.x.shape, dtype=case.x.dtype, device=case.x.device, seed=seed + i) for i in range(2)]


def true_grads(adaln, case, v, grad, grad_residual):
    """By name, what autograd makes of the fp64 reference; rounding residual_out counts as the identity."""
    wide = case.map(lambda t: leaf(t.double()))
    total = None
    if case.residual is not None:
        total = adaln.reference.gate_residual(wide.residual, wide.x, wide.gate)
        total = total + (v.detach().double() - total.detach())
    y = truth_of_y(adaln, wide, wide.x if total is None else total)
    double = [None if g is None else g.double() for g in (grad, grad_residual)]
    return backward(wide, (y, total), double)


def backward(case, outputs, upstream):
    """By name, the gradients of all tensors that require one; an output that needs none is left out."""
    leaves = {name: t for name, t in case.tensors().items() if t.requires_grad}
    used = [(o, g) for o, g in zip(outputs, upstream, strict=True) if g is not None and o.requires_grad]
    outputs, upstream = zip(*used, strict=True)
    got = torch.autograd.grad(outputs, list(leaves.values()), upstream, allow_unused=True)
    return dict(zip(leaves, got, strict=True))


def noises(adaln, case, v, grad, grad_residual):
    """By name, what is added up for a gradient, in absolute values: its terms may cancel."""
    z = Sizes(adaln, case, v)
    g = torch.zeros_like(v, dtype=F64) if grad is None else grad.double().abs()
    extra = torch.zeros_like(g) if grad_residual is None else grad_residual.double().abs()
    n = z.n + z.lost
    of_v = (z.rstd * g * z.weight * z.scale).amax(-1, keepdim=True) * (1 + z.lost) + extra
    gate = size(case.gate, v) if case.gate is not None else 1
    return {
        "residual": of_v, "x": of_v * gate, "gate": of_v * case.x.detach().double().abs(),
        "scale": g * (n * z.weight + z.bias), "shift": g, "weight": g * n * z.scale, "bias": g * z.scale,
    }  # fmt: skip


def summed(full, part, x):
    """`full`, which is shaped like x, summed to the shape of a part that broadcasts over x."""
    zeros = leaf(torch.zeros(part.shape, dtype=F64, device=x.device))
    return torch.autograd.grad(expanded(zeros, x), zeros, full.expand(x.shape))[0]


def assert_grads(adaln, case, grad, grad_residual=None, trained=None):
    """Backward with these upstream gradients (None: the output is not used); gives the gradients by name.

    `trained` are the names of those inputs that require one; all, where it is None.
    """
    given = [g for g in (grad, grad_residual) if g is not None]
    before = [g.clone() for g in given]
    leaves = case.map(leaf, trained)
    y, total = leaves.run(adaln)
    got = backward(leaves, (y, total), (grad, grad_residual))
    assert all_same(given, before), "the upstream gradient was overwritten"
    compare_grads(adaln, case, got, case.x if total is None else total, grad, grad_residual)
    return got


def compare_grads(adaln, case, got, v, grad, grad_residual=None):
    """Input gradients to 2 ulp of the row's largest, sums to a share of their largest, and noise besides."""
    truth = true_grads(adaln, case, v, grad, grad_residual)
    noise = noises(adaln, case, v, grad, grad_residual)
    for name, actual in got.items():
        field = name.partition("[")[0]
        tensor = case.tensors()[name]
        if truth[name] is None:
            assert actual is None or not actual.any(), name
            continue
        assert actual is not None, f"the gradient of {name} is missing"
        if field in ("x", "residual"):
            assert_input_grad(actual, truth[name], tensor.dtype, noise[field].expand(case.x.shape))
        else:
            assert field in (*MODULATORS, "weight", "bias")
            sums = summed(noise[field], tensor, case.x)
            assert_weight_grad(actual, truth[name], tensor.dtype, case.x.dtype, sums)
