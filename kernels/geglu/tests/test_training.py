# SPDX-License-Identifier: Apache-2.0
"""The ops in training code: who gets a gradient, what is kept for it, recomputation, autocast."""

from __future__ import annotations

import pytest
import torch
from checks import OPTIONS
from torch.utils.checkpoint import checkpoint
from vendor.checks import all_same, leaf, randn, same_bits, tensors

BF16, F32 = torch.bfloat16, torch.float32


def test_gradient_is_not_overwritten_for_a_residual(geglu, device):
    """In-place backward overwrites the gradient that the residual still needs (A04, Liger-Kernel#370)."""
    x, weight = map(leaf, tensors(device, F32, (6, 96), (192, 96)))
    grad = randn(6, 96, device=device, seed=3)

    def block(module):
        inner = x + module.geglu(x @ weight.t()).to(x.dtype)
        return torch.autograd.grad(inner + module.geglu_split(inner, x).to(x.dtype), (x, weight), grad)

    before = grad.clone()
    got = block(geglu)
    assert same_bits(grad, before)
    for actual, truth in zip(got, block(geglu.reference), strict=True):
        torch.testing.assert_close(actual, truth, rtol=1e-4, atol=1e-4 * float(truth.abs().max()))


@pytest.mark.kernels_ci
@pytest.mark.parametrize("frozen", ["value", "gate"])
def test_one_input_without_a_gradient(geglu, device, frozen):
    """A fast path without backward detaches the output (A07, candle#3526): each input on its own."""
    inputs = {name: randn(6, 96, device=device, seed=i) for i, name in enumerate(("value", "gate"))}
    whole = {name: leaf(t) for name, t in inputs.items()}
    part = {name: t.clone() if name == frozen else leaf(t) for name, t in inputs.items()}
    for case in (whole, part):
        geglu.geglu_split(**case).square().sum().backward()
    assert part[frozen].grad is None
    (other,) = inputs.keys() - {frozen}
    assert same_bits(part[other].grad, whole[other].grad)


def test_one_tensor_as_both(geglu, device):
    """A tensor that is value and gate: its gradient is the sum of both."""
    x = leaf(randn(6, 96, device=device))
    (got,) = torch.autograd.grad(geglu.geglu_split(x, x).sum(), x)
    apart = [leaf(x), leaf(x)]
    torch.testing.assert_close(got, sum(torch.autograd.grad(geglu.geglu_split(*apart).sum(), apart)))


@pytest.mark.kernels_ci
def test_only_the_input_is_kept(geglu, device):
    """Backward computes again: nothing beside the input itself is kept for it, and no copy of that."""
    kept = []

    def pack(tensor):
        kept.append(tensor.data_ptr())
        return tensor

    x, gate = map(leaf, tensors(device, BF16, (6, 96), (6, 96)))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y, split = geglu.geglu(x), geglu.geglu_split(x, gate)
        assert kept == [x.data_ptr(), x.data_ptr(), gate.data_ptr()]
        (y.sum() + split.sum()).backward()


@pytest.mark.kernels_ci
def test_second_derivative_is_refused(geglu, device):
    """Double backward is silently wrong or unexplained (A06, apex#410)."""
    x, gate = map(leaf, tensors(device, F32, (3, 8), (3, 8)))
    for y in (geglu.geglu(x), geglu.geglu_split(x, gate)):
        (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match=r"geglu.*not differentiable twice"):
            torch.autograd.grad(dx.square().sum(), x)


@pytest.mark.kernels_ci
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_grad(geglu, device, mode):
    """Inference keeps no graph, gives the numbers of training, and its outputs may be saved afterwards."""
    x = leaf(randn(3, 96, device=device))
    trained = geglu.geglu(x)
    with mode():
        y, split = geglu.geglu(x), geglu.geglu_split(x, x)
        assert geglu.geglu(torch.ones_like(x)).isfinite().all()  # made in this mode
    assert not y.requires_grad
    assert not split.requires_grad
    assert same_bits(y, trained)
    assert trained.requires_grad


@pytest.mark.parametrize("dtype", [BF16, F32], ids=("bfloat16", "float32"))
def test_autocast_keeps_the_input_dtype(geglu, device, dtype):
    """Under autocast torch 2.12 turns outputs into fp32 (A14, FastVideo#1587)."""
    x = leaf(randn(3, 96, dtype=dtype, device=device))
    outside = geglu.geglu(x)
    with torch.autocast(device.type, BF16):
        y, split = geglu.geglu(x), geglu.geglu_split(x, x)
    assert {y.dtype, split.dtype} == {dtype}
    assert same_bits(y, outside)
    (y.sum() + split.sum()).backward()
    assert x.grad.dtype == dtype


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("op", ["geglu", "geglu_split"])
def test_checkpointing_changes_nothing(geglu, device, op, reentrant):
    """Activation recompute changes numerics (A18, TransformerEngine#327)."""
    inputs = tensors(device, BF16, *[(6, 96)] * (2 if op == "geglu_split" else 1))

    def loss(*args):
        return getattr(geglu, op)(*args).float().square().sum()

    def grads(run):
        leaves = [leaf(t) for t in inputs]
        run(*leaves).backward()
        return [t.grad for t in leaves]

    assert all_same(grads(loss), grads(lambda *a: checkpoint(loss, *a, use_reentrant=reentrant)))


@pytest.mark.kernels_ci
@pytest.mark.parametrize(("rows", "width"), [(7, 4096), (5000, 128), (300, 1031)])
def test_deterministic(geglu, device, rows, width):
    """Gradients repeat bit for bit, and a row's do not depend on the rows beside it."""
    x, grad = tensors(device, BF16, (rows, 2 * width), (rows, width))
    for options in OPTIONS:

        def grads(x, grad, options=options):
            x = leaf(x)
            return torch.autograd.grad(geglu.geglu(x, **options), x, grad)[0]

        first = grads(x, grad)
        assert all(same_bits(first, grads(x, grad)) for _ in range(3))
        assert same_bits(first[3:5], grads(x[3:5], grad[3:5]))
