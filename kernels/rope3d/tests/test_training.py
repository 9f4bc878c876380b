# SPDX-License-Identifier: Apache-2.0
"""The functions in training code: who gets a gradient, recomputation, autocast, and no surprises."""

from __future__ import annotations

import pytest
import torch
from cases import KINDS, kinds, make
from test_autograd import trained
from torch.utils.checkpoint import checkpoint
from vendor.checks import all_same, leaf, same_bits

BF16, F32 = torch.bfloat16, torch.float32


def loss_of(outputs):
    return sum(t.float().square().sum() for t in outputs if t is not None)


@pytest.mark.kernels_ci
@kinds
def test_only_some_train(rope3d, device, kind):
    """A fast path without backward detaches the output (A07, candle#3526): each input on its own."""
    case = make(rope3d.reference, device, F32, kind)
    whole = trained(case)
    outputs = whole.run(rope3d)
    grads = torch.autograd.grad(sum((t * t.detach().sin()).sum() for t in outputs), whole.inputs)
    for i in range(len(case.inputs)):
        only = case.with_inputs([leaf(t) if i == j else t for j, t in enumerate(case.inputs)])
        outputs = only.run(rope3d)
        loss = sum((t * t.detach().sin()).sum() for t in outputs)
        (got,) = torch.autograd.grad(loss, [only.inputs[i]])
        assert same_bits(got, grads[i])


@pytest.mark.kernels_ci
@kinds
def test_only_one_output_is_used(rope3d, device, kind):
    """A loss on q alone, or on k alone: the other's gradient is none, or zero."""
    case = trained(make(rope3d.reference, device, F32, kind))
    both = torch.autograd.grad([t.sum() for t in case.run(rope3d)], case.inputs)
    for used in (0, 1):
        got = torch.autograd.grad(case.run(rope3d)[used].sum(), case.inputs, allow_unused=True)
        for i, grad in enumerate(got):
            if i % 2 == used:
                assert same_bits(grad, both[i])
            else:
                assert grad is None or not grad.any()


@pytest.mark.kernels_ci
def test_second_derivative(rope3d, device):
    """Double backward is silently wrong (A06, apex#410): right for a rotation, else refused."""
    for kind, (_, norm) in KINDS.items():
        case = trained(make(rope3d.reference, device, F32, kind))
        loss = sum(t.square().sum() for t in case.run(rope3d))
        grads = torch.autograd.grad(loss, case.inputs, create_graph=True)
        if norm is not None:
            with pytest.raises(RuntimeError, match=r"rms_norm_rope3d.*not differentiable twice"):
                torch.autograd.grad(grads[0].square().sum(), case.q)
            continue
        (second,) = torch.autograd.grad(grads[0].square().sum(), case.q)  # of |2 q|^2
        torch.testing.assert_close(second, 8 * case.q.detach(), rtol=1e-5, atol=1e-5)


@kinds
def test_gradient_is_not_overwritten(rope3d, device, kind):
    """In-place backward overwrites the gradient that the residual still needs (A04, Liger-Kernel#370)."""
    case = trained(make(rope3d.reference, device, F32, kind))
    grads = [torch.randn_like(x) for x in (case.q, case.k)]
    before = [g.clone() for g in grads]
    outputs = [out + x for out, x in zip(case.run(rope3d), (case.q, case.k), strict=True)]
    with_residual = torch.autograd.grad(outputs, case.inputs, grads)
    assert all_same(grads, before)
    without = torch.autograd.grad(case.run(rope3d), case.inputs, grads)
    for got, own, grad in zip(with_residual, without, grads, strict=False):
        torch.testing.assert_close(got, own + grad)


@pytest.mark.kernels_ci
@kinds
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_grad(rope3d, device, kind, mode):
    """Inference keeps no graph and gives the numbers of training."""
    case = trained(make(rope3d.reference, device, F32, kind))
    outputs = case.run(rope3d)
    with mode():
        plain = case.run(rope3d)
        made_here = case.map(torch.ones_like, "q", "k").run(rope3d)
    assert all(t.isfinite().all() for t in made_here)
    assert not any(t.requires_grad for t in plain)
    assert all(t.requires_grad for t in outputs)
    assert all_same(outputs, plain)


@kinds
@pytest.mark.parametrize("dtype", [BF16, F32], ids=("bfloat16", "float32"))
def test_autocast_keeps_the_input_dtype(rope3d, device, kind, dtype):
    """Under autocast torch 2.12 turns rms_norm outputs into fp32 (A14, FastVideo#1587)."""
    case = trained(make(rope3d.reference, device, dtype, kind, weight_dtype=F32))
    outside = case.run(rope3d)
    with torch.autocast(device.type, BF16):
        inside = case.run(rope3d)
    assert all_same(inside, outside)
    sum(t.sum() for t in inside).backward()
    assert [t.grad.dtype for t in case.inputs] == [t.dtype for t in case.inputs]


@kinds
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_changes_nothing(rope3d, device, kind, reentrant):
    """Activation recompute changes numerics (A18, TransformerEngine#327)."""
    case = make(rope3d.reference, device, BF16, kind)

    def loss(*inputs):
        return loss_of(case.with_inputs(inputs).run(rope3d))

    def grads(run):
        leaves = [leaf(t) for t in case.inputs]
        run(*leaves).backward()
        return [t.grad for t in leaves]

    assert all_same(grads(loss), grads(lambda *a: checkpoint(loss, *a, use_reentrant=reentrant)))


@pytest.mark.kernels_ci
@kinds
@pytest.mark.parametrize("shape", [(1, 7, 2, 2048), (2, 700, 4, 64), (3, 100, 1, 130)], ids=str)
def test_deterministic(rope3d, device, kind, shape):
    """Gradients repeat bit for bit, and a token's does not depend on the tokens beside it."""
    case = make(rope3d.reference, device, BF16, kind, shape=shape, k_heads=1, weight_dtype=F32)

    def grads(case):
        case = trained(case)
        return torch.autograd.grad(loss_of(case.run(rope3d)), case.inputs)

    first = grads(case)
    for _ in range(5):
        assert all_same(first, grads(case))
    assert all_same([g[:, 3:5] for g in first[:2]], grads(case.tokens(3, 5))[:2])
