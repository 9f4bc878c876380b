# SPDX-License-Identifier: Apache-2.0
"""Gradients against the formula in fp64, and how the ops behave in training code."""

from __future__ import annotations

import math

import pytest
import torch
from checks import assert_input_grad, assert_weight_grad, floats, randn, same_bits, tensors, true_grads
from flawed import flawed
from torch.utils.checkpoint import checkpoint

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
DTYPES = (F16, BF16, F32, F64)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
OPTIONS = ({}, {"rounding": "before_weight"}, {"weight_offset": 1.0})


@pytest.fixture(autouse=True)
def _dtype_exists_here(request, device):
    dtype = getattr(request.node, "callspec", None) and request.node.callspec.params.get("dtype")
    if dtype is not None and dtype not in floats(device):
        pytest.skip(f"{dtype} is for the CPU")


def leaf(tensor):
    return tensor.detach().requires_grad_()


def assert_grads(rmsnorm, x, weight, grad, eps=1e-6, **options):
    """Backward of rms_norm with the upstream gradient `grad`; x and weight are leaves."""
    before = grad.clone()
    y = rmsnorm.rms_norm(x, weight, eps, **options)
    wanted = [t for t in (x, weight) if t is not None]
    got = torch.autograd.grad(y, wanted, grad, allow_unused=True)
    dx, dw, noise = true_grads(x, weight, before, eps, **options)
    assert all(g is not None for g in got), "a gradient is missing"
    assert_input_grad(got[0], dx, x.dtype, noise)
    if weight is not None:
        assert_weight_grad(got[1], dw, weight.dtype, x.dtype)
    assert same_bits(grad, before), "the upstream gradient was overwritten"
    return got


def assert_add_grads(rmsnorm, x, residual, weight, grad, grad_residual, eps=1e-6, **options):
    """Backward of add_rms_norm with a gradient on either output, or on both (None: not used)."""
    outputs = rmsnorm.add_rms_norm(x, residual, weight, eps, **options)
    used = [(out, g) for out, g in zip(outputs, (grad, grad_residual), strict=True) if g is not None]
    got = torch.autograd.grad(
        [out for out, _ in used], (x, residual, weight), [g for _, g in used], allow_unused=True
    )
    total = (x + residual).detach()
    upstream = torch.zeros_like(total) if grad is None else grad
    dx, dw, noise = true_grads(total, weight, upstream, eps, **options)
    if grad_residual is not None:
        dx = dx + grad_residual.double()
        noise = noise + grad_residual.double().abs()
    for actual in got[:2]:
        assert actual is not None, "a gradient is missing"
        assert_input_grad(actual, dx, x.dtype, noise)
    if grad is not None or got[2] is not None:
        assert_weight_grad(got[2], dw, weight.dtype, x.dtype)


# ---- values ------------------------------------------------------------------------------------------------


@pytest.mark.kernels_ci
@dtypes
@pytest.mark.parametrize("width", [1, 2, 3, 7, 33, 128, 769, 3584])
def test_grads(rmsnorm, device, width, dtype):
    """The weight gradient is always None and norms stay frozen (A01, unsloth#4533)."""
    x, grad, weight = tensors(device, dtype, (9, width), (9, width), width)
    x, weight = leaf(x), leaf(weight)
    for options in OPTIONS:
        assert_grads(rmsnorm, x, weight, grad, **options)
    assert_grads(rmsnorm, x, None, grad)
    assert_grads(rmsnorm, x, weight, grad, 0.5)


@pytest.mark.kernels_ci
@dtypes
@pytest.mark.parametrize("which", ["both", "y", "residual_out"])
def test_residual_grads(rmsnorm, device, dtype, which):
    """The gradient of the residual is wrong in the fused add (A13, quack#53), for a loss on either output."""
    x, residual, grad, grad_residual, weight = tensors(device, dtype, *[(9, 264)] * 4, 264)
    grad = None if which == "residual_out" else grad
    grad_residual = None if which == "y" else grad_residual
    for options in OPTIONS:
        assert_add_grads(rmsnorm, leaf(x), leaf(residual), leaf(weight), grad, grad_residual, **options)


@pytest.mark.parametrize("rounding", ["once", "before_weight"])
@dtypes
def test_grads_with_a_weight_of_another_dtype(rmsnorm, device, dtype, rounding):
    """bf16 input with an fp32 weight: each gradient has its input's dtype (A15, sglang#32807)."""
    x, grad = tensors(device, dtype, (33, 520), (33, 520))
    for weight_dtype in floats(device):
        weight = leaf(randn(520, dtype=weight_dtype, device=device, seed=2))
        assert_grads(rmsnorm, leaf(x), weight, grad, rounding=rounding)


@pytest.mark.parametrize("dtype", [BF16, F32], ids=("bfloat16", "float32"))
@pytest.mark.parametrize("width", [16384, 65552, 131072])
def test_wide_rows_backward(rmsnorm, device, width, dtype):
    """The widest rows, backward (S02, flashinfer#718)."""
    x, grad, weight = tensors(device, dtype, (3, width), (3, width), width)
    assert_grads(rmsnorm, leaf(x), leaf(weight), grad)


@pytest.mark.parametrize("rows", [65535, 65536, 65537, 131073])
def test_many_rows_backward(rmsnorm, device, rows):
    """Results go wrong from 65,536 rows on (S22, apex#411), backward."""
    x, grad, weight = tensors(device, BF16, (rows, 64), (rows, 64), 64)
    assert_grads(rmsnorm, leaf(x), leaf(weight), grad)


@pytest.mark.kernels_ci
@pytest.mark.parametrize("weight_dtype", [BF16, F32], ids=("bfloat16", "float32"))
@pytest.mark.parametrize("shape", [(16384, 128), (65536, 256)], ids=str)
def test_weight_grad_over_many_rows(rmsnorm, device, shape, weight_dtype):
    """The weight gradient is reduced in bf16 over the rows (A09, Liger-Kernel#950)."""
    x, grad, weight = tensors(device, BF16, shape, shape, shape[1])
    assert_grads(rmsnorm, leaf(x), leaf(weight.to(weight_dtype)), grad)


@pytest.mark.kernels_ci
def test_statistic_is_not_saved_in_low_precision(rmsnorm, device):
    """A reciprocal rms saved in bf16 spoils the backward (A10, helion#2273).

    With a gradient of ones the two terms of dx cancel to a hundredth, which shows the error of the statistic.
    """
    x = leaf((1 + randn(8, 4096, scale=0.01)).to(device=device, dtype=BF16))
    for grad in (randn(8, 4096, dtype=BF16, device=device, seed=1), torch.ones_like(x)):
        assert_grads(rmsnorm, x, leaf(torch.ones(4096, dtype=BF16, device=device)), grad)


@dtypes
def test_saved_rstd(ops, device, dtype):
    """The saved statistic is fp32 (fp64 for fp64), one per row, and right (A10)."""
    x = randn(3, 5, 96, dtype=dtype, device=device)
    wide = F64 if dtype == F64 else F32
    truth = torch.rsqrt(x.double().square().mean(-1) + 1e-3)
    for rstd in (ops.rms_norm_train(x, None, 1e-3, 0.0, False)[1],
                 ops.add_rms_norm_train(x, torch.zeros_like(x), None, 1e-3, 0.0, False)[2]):  # fmt: skip
        assert rstd.dtype == wide
        torch.testing.assert_close(rstd, truth.to(wide), rtol=1e-6, atol=0)


@pytest.mark.kernels_ci
@dtypes
@pytest.mark.parametrize("reduce", [torch.sum, torch.mean])
def test_expanded_upstream_gradient(rmsnorm, device, dtype, reduce):
    """.sum().backward() sends an expanded scalar with stride 0 (A02, quack#88)."""
    x, weight = map(leaf, tensors(device, dtype, (9, 264), 264))
    reduce(rmsnorm.rms_norm(x, weight)).backward()
    scale = 1 if reduce is torch.sum else 1 / x.numel()
    dx, dw, noise = true_grads(x, weight, torch.full_like(x, scale))
    assert_input_grad(x.grad, dx, dtype, noise)
    assert_weight_grad(weight.grad, dw, dtype, dtype)


STRIDED = {
    "transposed": lambda n: n(264, 9).t(),
    "every second column": lambda n: n(9, 528)[:, ::2],
    "slice of a fused qkv": lambda n: n(9, 3 * 264)[:, 264:528],
    "every second row": lambda n: n(2, 6, 264)[:, ::2],
    "expanded rows": lambda n: n(1, 264).expand(9, 264),
    "misaligned": lambda n: n(9 * 264 + 3)[3:].view(9, 264),
    "one dimension": lambda n: n(264),
}


@dtypes
@pytest.mark.parametrize("layout", STRIDED)
def test_strided_inputs_and_gradients(rmsnorm, device, dtype, layout):
    """x, weight and the upstream gradient in any layout (A02; LightLLM#1467 for the backward)."""
    make = STRIDED[layout]
    x, grad = (make(lambda *s, seed=i: randn(*s, dtype=dtype, device=device, seed=seed)) for i in (0, 1))
    weight = leaf(randn(528, dtype=dtype, device=device, seed=2)[::2])
    got = assert_grads(rmsnorm, leaf(x), weight, grad)
    again = assert_grads(rmsnorm, leaf(x.contiguous()), weight, grad.contiguous())
    assert same_bits(got[0], again[0])
    assert same_bits(got[1], again[1])


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
@dtypes
def test_zero_input_and_few_rows(rmsnorm, device, dtype):
    """The weight gradient is random with fewer rows than blocks (A12, flash-attention#781); N12 for zeros."""
    weight = leaf(randn(4, dtype=dtype, device=device))
    for shape in ((4,), (1, 4)):
        for _ in range(10):
            _ = torch.full((4096,), math.nan, dtype=F32, device=device)  # what a later allocation may find
            x = leaf(torch.zeros(shape, dtype=dtype, device=device))
            rmsnorm.rms_norm(x, weight).sum().backward()
            assert not weight.grad.any()
            assert bool(x.grad.isfinite().all())
            weight.grad = None
    for rows in range(1, 18):
        x, grad, weight = tensors(device, dtype, (rows, 40), (rows, 40), 40)
        assert_grads(rmsnorm, leaf(x), leaf(weight), grad)


@pytest.mark.kernels_ci
@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8), (3, 0)], ids=str)
def test_zero_size(rmsnorm, device, shape):
    """Zero tokens launch an empty grid and the error breaks a later call (S14, sglang#23609), backward."""
    x, weight = leaf(torch.empty(shape, device=device)), leaf(torch.ones(shape[-1], device=device))
    (rmsnorm.rms_norm(x, weight).sum() + sum(t.sum() for t in rmsnorm.add_rms_norm(x, x, weight))).backward()
    assert x.grad.shape == shape
    assert weight.grad.shape == weight.shape
    assert not weight.grad.any()
    assert torch.ones(3, device=device).sum().item() == 3


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradcheck(rmsnorm, device, options):
    """Finite differences in fp64; rounding to fp64 is no rounding, so before_weight has a slope as well."""
    if device.type != "cpu":
        pytest.skip("fp64 is for the CPU; fp32 finite differences say nothing")
    inputs = tuple(map(leaf, tensors(device, F64, (3, 5), (3, 5), 5)))
    assert torch.autograd.gradcheck(lambda *a: rmsnorm.rms_norm(*a, 1e-3, **options), inputs[1:])
    assert torch.autograd.gradcheck(lambda *a: rmsnorm.add_rms_norm(*a, 1e-3, **options), inputs)


def test_true_grads_are_autograds(rmsnorm):
    """The formula that the gradients are measured with is what autograd makes of the reference."""
    x, weight, grad = map(leaf, tensors("cpu", F64, (4, 9), 9, (4, 9)))
    for options in OPTIONS:
        y = rmsnorm.reference.rms_norm(x, weight, 1e-3, **options)
        torch.testing.assert_close(
            true_grads(x, weight, grad, 1e-3, **options)[:2], torch.autograd.grad(y, (x, weight), grad)
        )


# ---- in training code --------------------------------------------------------------------------------------


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
    assert all(same_bits(a, b) for a, b in zip(plain, recomputed, strict=True))


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
        assert all(same_bits(a, b) for a, b in zip(first, grads(x, grad), strict=True))
    assert same_bits(first[0][3:5], grads(x[3:5], grad[3:5])[0])


# ---- the tests are able to fail ----------------------------------------------------------------------------

CAUGHT = (
    ("no_weight_grad", test_grads, {"dtype": F32, "width": 33}),
    ("no_mean_term", test_grads, {"dtype": BF16, "width": 33}),
    ("no_offset", test_grads, {"dtype": BF16, "width": 128}),
    ("no_eps", test_grads, {"dtype": F32, "width": 128}),
    ("overwrites_grad", test_grads, {"dtype": F32, "width": 128}),
    ("overwrites_grad", test_gradient_is_not_overwritten_for_a_residual, {}),
    ("bf16_rstd", test_statistic_is_not_saved_in_low_precision, {}),
    ("bf16_weight_grad", test_weight_grad_over_many_rows, {"shape": (16384, 128), "weight_dtype": F32}),
    ("bf16_weight_grad", test_weight_grad_over_many_rows, {"shape": (16384, 128), "weight_dtype": BF16}),
    ("no_grad_residual", test_residual_grads, {"dtype": BF16, "which": "both"}),
    ("no_grad_residual", test_residual_grads, {"dtype": F32, "which": "both"}),
    ("row_stride", test_strided_inputs_and_gradients, {"dtype": F32, "layout": "slice of a fused qkv"}),
)


@pytest.mark.kernels_ci
@pytest.mark.parametrize(("flaw", "test", "case"), CAUGHT, ids=lambda v: getattr(v, "__name__", None))
def test_flaw_is_caught(rmsnorm, device, flaw, test, case):
    """Each mistake that a backward could make fails the test that is there for it, and its absence passes."""
    test(flawed(rmsnorm, None), device, **case)
    with pytest.raises(AssertionError):
        test(flawed(rmsnorm, flaw), device, **case)
