# SPDX-License-Identifier: Apache-2.0
"""The ops in training code: who gets a gradient, recomputation, autocast, and no surprises."""

from __future__ import annotations

import pytest
import torch
from cases import FORMS, Case, make
from checks import assert_grads, backward, compare_grads, upstream
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint
from vendor.checks import all_same, dtypes, floats, leaf, randn, same_bits, tensors

BF16, F32 = torch.bfloat16, torch.float32
NORMS = ("rms", "layer")


def both_ops(adaln):
    """The gated sum with its norm, and a norm of that once more: y, residual_out and z."""

    def step(x, residual, gate, scale, shift, weight, bias):
        options = {"weight": weight, "bias": bias}
        y, total = adaln.gate_residual_ada_norm(residual, x, gate, scale, shift, norm="layer", **options)
        return y, total, adaln.ada_norm(adaln.gate_residual(y, total, gate), scale, shift, **options)

    return step


@pytest.mark.kernels_ci
@pytest.mark.parametrize("form", ["sample", "table and token"])
def test_only_some_train(adaln, device, form):
    """A fast path without backward detaches the output (A07, candle#3526): one input, or all but one."""
    for norm in NORMS:
        case = make(device, F32, (2, 5, 96), form, norm=norm)
        grads = upstream(case)
        whole = assert_grads(adaln, case, *grads)
        names = set(case.tensors())
        for name in sorted(names):
            for trained in ({name}, names - {name}):
                for part in (grads, (grads[0], None)):
                    got = assert_grads(adaln, case, *part, trained=trained)
                    assert set(got) == trained
                    assert part is not grads or all(same_bits(got[k], whole[k]) for k in trained)


@dtypes
def test_gate_residual(adaln, device, dtype):
    """The residual's gradient is the upstream one, bit for bit; x's and the gate's are right."""
    for form in ("none", "sample", "token", "table and sample", "row"):
        assert_gate_residual(adaln, device, dtype, form)


def assert_gate_residual(adaln, device, dtype, form):
    case = make(device, dtype, (3, 5, 136), (form, "none", "none"), affine=False)
    grad = upstream(case)[0]
    given = case.map(leaf)
    total = adaln.gate_residual(given.residual, given.x, given.gate)
    got = backward(given, (total,), (grad,))
    assert same_bits(got["residual"], grad)
    compare_grads(adaln, case, got, total, None, grad)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_any_call(adaln, device, data):
    """Whatever is given, whatever of it trains, and whatever the loss is on: right gradients (A07)."""
    draw = data.draw
    dtype, other = draw(st.sampled_from(floats(device))), draw(st.sampled_from(floats(device)))
    batch, tokens = draw(st.sampled_from(((1, 1), (1, 4), (3, 1), (2, 5), (4, 3))))
    forms = tuple(draw(st.sampled_from(sorted(FORMS))) for _ in range(3))
    case = make(device, dtype, (batch, tokens, draw(st.integers(1, 300))), forms, other=other)
    case = case.but(norm=draw(st.sampled_from(NORMS)))
    for column in ("weight", "bias"):
        case = case if draw(st.booleans()) else case.but(**{column: None})
    alone = draw(st.booleans())
    case = case.but(residual=None, gate=None) if alone else case
    trained = draw(st.sets(st.sampled_from(sorted(case.tensors())), min_size=1))
    grad, grad_residual = upstream(case)
    on_both = not alone and draw(st.booleans())
    assert_grads(adaln, case, grad, grad_residual if on_both else None, trained)


def test_one_tensor_in_several_places(adaln, device):
    """A tensor that is x and the residual, or both parts of a pair: its gradient is the sum of both."""
    case = make(device, F32, (2, 5, 96), "two rows", norm="layer")
    apart = case.but(residual=case.x.clone(), gate=case.shift, scale=(case.weight, case.weight.clone())).map(
        leaf
    )
    grads = backward(apart, apart.run(adaln), upstream(case))
    x, weight = leaf(case.x), leaf(case.weight)
    shift = tuple(map(leaf, case.shift))
    same = Case(x, x, shift, (weight, weight), shift, weight, leaf(case.bias), norm="layer")
    got = torch.autograd.grad(same.run(adaln), (x, weight, *shift), upstream(case))
    sums = (
        grads["x"] + grads["residual"],
        grads["weight"] + grads["scale[0]"] + grads["scale[1]"],
        grads["gate[0]"] + grads["shift[0]"],
        grads["gate[1]"] + grads["shift[1]"],
    )
    for actual, expected in zip(got, sums, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_gradients_do_not_share_memory(adaln, device):
    """Without a gate two gradients are equal numbers: changing one in place must leave the other (A04)."""
    for run in (
        lambda r, x: adaln.gate_residual(r, x, None),
        lambda r, x: sum(adaln.gate_residual_ada_norm(r, x, None)),
        lambda r, x: adaln.gate_residual_ada_norm(r, x, None)[1],
    ):
        residual, x = map(leaf, tensors(device, F32, (3, 8), (3, 8)))
        run(residual, x).backward(torch.ones(3, 8, device=device))
        kept = x.grad.clone()
        residual.grad.zero_()
        assert same_bits(x.grad, kept)


PAIRS = [((8,), (8,)), ((3, 8), (3, 8)), ((2, 8), (2, 1, 8)), ((1, 1, 8), (8,)), ((2, 3, 8), (2, 3, 8))]


@pytest.mark.kernels_ci
@pytest.mark.parametrize("shapes", PAIRS, ids=str)
def test_gradients_of_a_pair_do_not_share_memory(adaln, device, shapes):
    """Both parts get equal numbers: accumulating a second backward must not count twice in each (A04)."""
    x, residual = tensors(device, F32, (2, 3, 8), (2, 3, 8))
    pair = tuple(leaf(randn(*shape, device=device, seed=i)) for i, shape in enumerate(shapes))
    for run in (
        lambda: adaln.ada_norm(x, pair),
        lambda: adaln.ada_norm(x, None, pair),
        lambda: adaln.gate_residual(residual, x, pair),
    ):
        once = [g.clone() for g in torch.autograd.grad(run().square().sum(), pair)]
        for _ in range(2):
            run().square().sum().backward()
        for part, grad in zip(pair, once, strict=True):
            torch.testing.assert_close(part.grad, 2 * grad)
            part.grad = None


@pytest.mark.parametrize("norm", NORMS)
def test_gradient_is_not_overwritten_for_a_residual(adaln, device, norm):
    """In-place backward overwrites the gradient that the residual still needs (A04, Liger-Kernel#370)."""
    x, *row = map(leaf, tensors(device, F32, (6, 96), *[96] * 4))
    grad = randn(6, 96, device=device, seed=9)

    def block(module):
        inner = module.ada_norm(x, row[0], row[1], norm=norm)
        y = x + module.ada_norm(x + inner, row[2], row[3], norm=norm)
        return torch.autograd.grad(y, (x, *row), grad.to(y.dtype))

    before = grad.clone()
    got = block(adaln)
    assert same_bits(grad, before)
    for actual, truth in zip(got, block(adaln.reference), strict=True):
        torch.testing.assert_close(actual, truth, rtol=1e-4, atol=1e-4)


def test_a_step_of_sgd_changes_every_parameter(adaln, device):
    """Norms stay frozen in full fine-tuning (A01, unsloth#4533)."""
    case = make(device, F32, (2, 3, 96), "table and sample").map(torch.nn.Parameter)
    optimizer = torch.optim.SGD(case.tensors().values(), lr=0.1)
    before = [t.detach().clone() for t in case.tensors().values()]
    sum(t.square().sum() for t in case.run(adaln)).backward()
    optimizer.step()
    assert all(bool((t != old).any()) for t, old in zip(case.tensors().values(), before, strict=True))


@pytest.mark.kernels_ci
def test_second_derivative_is_refused(adaln, device):
    """Double backward is silently wrong or unexplained (A06, apex#410)."""
    case = make(device, F32, (2, 3, 8)).map(leaf)
    for y in (*case.run(adaln), adaln.ada_norm(case.x, case.scale)):
        (dx,) = torch.autograd.grad(y.square().sum(), case.x, create_graph=True)
        with pytest.raises(RuntimeError, match=r"adaln.*not differentiable twice"):
            torch.autograd.grad(dx.square().sum(), case.x)
    plain = adaln.gate_residual(case.residual, case.x, case.gate)
    (dx,) = torch.autograd.grad(plain.square().sum(), case.x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"adaln.*not differentiable twice"):
        torch.autograd.grad(dx.square().sum(), case.gate)


@pytest.mark.kernels_ci
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_grad(adaln, device, mode):
    """Inference keeps no graph, gives the numbers of training, and its outputs may be saved afterwards."""
    case = make(device, F32, (2, 3, 96), "table and sample").map(leaf)
    trained = case.run(adaln)
    with mode():
        outputs = case.run(adaln)
        assert all(t.isfinite().all() for t in case.map(torch.ones_like).run(adaln))  # made in this mode
        assert not adaln.gate_residual(case.residual, case.x, case.gate).requires_grad
    assert not any(t.requires_grad for t in outputs)
    assert all(t.requires_grad for t in trained)
    assert all_same([t.detach() for t in trained], outputs)


@pytest.mark.parametrize("dtype", [BF16, F32], ids=("bfloat16", "float32"))
def test_autocast_keeps_the_input_dtype(adaln, device, dtype):
    """Under autocast torch 2.12 turns rms_norm outputs into fp32 (A14, FastVideo#1587)."""
    case = make(device, dtype, (2, 3, 96), other=F32).map(leaf)
    outside = case.run(adaln)
    with torch.autocast(device.type, BF16):
        outputs = (*case.run(adaln), adaln.gate_residual(case.residual, case.x, case.gate))
    assert {t.dtype for t in outputs} == {dtype}
    assert all_same(outputs[:2], outside)
    sum(t.sum() for t in outputs).backward()
    assert all(t.grad.dtype == t.dtype for t in case.tensors().values())


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_changes_nothing(adaln, device, reentrant):
    """Activation recompute changes numerics (A18, TransformerEngine#327)."""
    inputs = list(make(device, BF16, (2, 3, 96), other=F32).tensors().values())
    step = both_ops(adaln)

    def grads(run):
        leaves = [leaf(t) for t in inputs]
        run(*leaves).backward()
        return [t.grad for t in leaves]

    def loss(*args):
        return sum(t.float().square().sum() for t in step(*args))

    assert all_same(grads(loss), grads(lambda *a: checkpoint(loss, *a, use_reentrant=reentrant)))


@pytest.mark.kernels_ci
@pytest.mark.parametrize("form", ["row", "sample", "token"])
@pytest.mark.parametrize("shape", [(1, 7, 4096), (2, 2500, 128), (100, 3, 1031)], ids=str)
def test_deterministic(adaln, device, shape, form):
    """Gradients repeat bit for bit, and a row's own gradients do not depend on the rows beside it."""
    case = make(device, BF16, shape, form, other=F32, norm="layer")
    grads = upstream(case)
    leaves = case.map(leaf)

    def run(some, some_grads):
        return list(backward(some, some.run(adaln), some_grads).values())

    first = run(leaves, grads)
    for _ in range(5):
        assert all_same(first, run(leaves, grads))
    cut = lambda t: t[:, 1:3] if t.dim() == 3 and t.shape[1] > 1 else t  # noqa: E731
    alone = run(case.map(cut).map(leaf), [cut(g) for g in grads])
    for name, got, whole in zip(case.tensors(), alone, first, strict=True):
        if name in ("x", "residual"):
            assert same_bits(got, cut(whole))
