# SPDX-License-Identifier: Apache-2.0
"""The ops in training code: who gets a gradient, recomputation, autocast, and no surprises."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from vendor.checks import all_same, leaf, randn, same_bits, tensors

BF16, F32 = torch.bfloat16, torch.float32


def test_gradient_is_not_overwritten_for_a_residual(rmsnorm, device):
    """In-place backward overwrites the gradient that the residual still needs (A04, Liger-Kernel#370)."""
    x = leaf(randn(6, 96, device=device))
    first, second = (leaf(randn(96, device=device, seed=i)) for i in (1, 2))
    grad = randn(6, 96, device=device, seed=3)

    def block(norm):
        inner = norm(x, first)
        return torch.autograd.grad(x + norm(x + inner, second), (x, first, second), grad)

    before = grad.clone()
    got = block(rmsnorm.rms_norm)
    assert same_bits(grad, before)
    expected = block(lambda value, weight: rmsnorm.reference.rms_norm(value, weight).float())
    for actual, truth in zip(got, expected, strict=True):
        torch.testing.assert_close(actual, truth, rtol=1e-4, atol=1e-5)


@pytest.mark.kernels_ci
@pytest.mark.parametrize("frozen", ["x", "residual", "weight"])
def test_one_input_without_a_gradient(rmsnorm, device, frozen):
    """A fast path without backward detaches the output (A07, candle#3526): each input on its own."""
    inputs = {name: randn(6, 96, device=device, seed=i) for i, name in enumerate(("x", "residual"))}
    inputs["weight"] = randn(96, device=device, seed=2)
    whole = {name: leaf(t) for name, t in inputs.items()}
    part = {name: t.clone() if name == frozen else leaf(t) for name, t in inputs.items()}
    for case in (whole, part):
        sum(t.square().sum() for t in rmsnorm.add_rms_norm(**case)).backward()
    assert part[frozen].grad is None
    for name in inputs.keys() - {frozen}:
        assert same_bits(part[name].grad, whole[name].grad)
    only = {name: leaf(t) if name == frozen else t.clone() for name, t in inputs.items()}
    sum(t.square().sum() for t in rmsnorm.add_rms_norm(**only)).backward()
    assert same_bits(only[frozen].grad, whole[frozen].grad)


def test_a_step_of_sgd_changes_the_weight(rmsnorm, device):
    """Norms stay frozen in full fine-tuning (A01, unsloth#4533)."""
    weight = torch.nn.Parameter(torch.ones(96, device=device))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    rmsnorm.rms_norm(randn(6, 96, device=device), weight).square().sum().backward()
    optimizer.step()
    assert bool((weight != 1).all())


@pytest.mark.kernels_ci
def test_second_derivative_is_refused(rmsnorm, device):
    """Double backward is silently wrong or unexplained (A06, apex#410)."""
    x, weight = map(leaf, tensors(device, F32, (3, 8), 8))
    for y in (rmsnorm.rms_norm(x, weight), rmsnorm.add_rms_norm(x, x, weight)[0]):
        (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match=r"rms_norm.*not differentiable twice"):
            torch.autograd.grad(dx.square().sum(), x)


@pytest.mark.kernels_ci
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_grad(rmsnorm, device, mode):
    """Inference keeps no graph, gives the numbers of training, and its outputs may be saved afterwards."""
    x, weight = map(leaf, tensors(device, F32, (3, 96), 96))
    trained = rmsnorm.rms_norm(x, weight)
    with mode():
        y, (added, total) = rmsnorm.rms_norm(x, weight), rmsnorm.add_rms_norm(x, x, weight)
        assert rmsnorm.rms_norm(torch.ones_like(x), weight).isfinite().all()  # made in this mode
    assert not (y.requires_grad)
    assert not (added.requires_grad)
    assert not (total.requires_grad)
    assert same_bits(y, trained)
    assert trained.requires_grad


@pytest.mark.parametrize("dtype", [BF16, F32], ids=("bfloat16", "float32"))
def test_autocast_keeps_the_input_dtype(rmsnorm, device, dtype):
    """Under autocast torch 2.12 turns rms_norm outputs into fp32 (A14, FastVideo#1587)."""
    x, weight = leaf(randn(3, 96, dtype=dtype, device=device)), leaf(randn(96, device=device, seed=1))
    outside = rmsnorm.rms_norm(x, weight)
    with torch.autocast(device.type, BF16):
        y, (added, total) = rmsnorm.rms_norm(x, weight), rmsnorm.add_rms_norm(x, x, weight)
    assert {y.dtype, added.dtype, total.dtype} == {dtype}
    assert same_bits(y, outside)
    (y.sum() + added.sum()).backward()
    assert x.grad.dtype == dtype
    assert weight.grad.dtype == F32


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("op", ["rms_norm", "add_rms_norm"])
def test_checkpointing_changes_nothing(rmsnorm, device, op, reentrant):
    """Activation recompute changes numerics (A18, TransformerEngine#327)."""
    inputs = tensors(device, BF16, *[(6, 96)] * (2 if op == "add_rms_norm" else 1), 96)

    def loss(*args):
        out = getattr(rmsnorm, op)(*args)
        return sum(t.square().sum() for t in (out if isinstance(out, tuple) else (out,)))

    def grads(run):
        leaves = [leaf(t) for t in inputs]
        run(*leaves).backward()
        return [t.grad for t in leaves]

    plain = grads(loss)
    recomputed = grads(lambda *a: checkpoint(loss, *a, use_reentrant=reentrant))
    assert all_same(plain, recomputed)


@pytest.mark.kernels_ci
@pytest.mark.parametrize(("rows", "width"), [(7, 4096), (5000, 128), (300, 1031)])
def test_deterministic(rmsnorm, device, rows, width):
    """Gradients repeat bit for bit, and a row's dx does not depend on the rows beside it."""
    x, grad, weight = tensors(device, BF16, (rows, width), (rows, width), width)
    weight = leaf(weight.float())

    def grads(x, grad):
        x = leaf(x)
        return torch.autograd.grad(rmsnorm.rms_norm(x, weight), (x, weight), grad)

    first = grads(x, grad)
    for _ in range(5):
        assert all_same(first, grads(x, grad))
    assert same_bits(first[0][3:5], grads(x[3:5], grad[3:5])[0])
