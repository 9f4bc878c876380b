# SPDX-License-Identifier: Apache-2.0
"""Gradients against fp64: those of a rotation, which are the rotation back, and those of a norm in front."""

from __future__ import annotations

import math

import pytest
import torch
from cases import KINDS, kinds, layouts, make
from checks import assert_grads, assert_turned, gradients, upstream
from test_shapes import LAYOUTS, view
from vendor.checks import all_same, dtypes, floats, leaf, randn, same_bits, short
from vendor.machine import need_cpu

BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64
NORMED = [kind for kind, (_, norm) in KINDS.items() if norm]
normed = pytest.mark.parametrize("kind", NORMED)


def trained(case):
    return case.with_inputs([leaf(t) for t in case.inputs])


@pytest.mark.kernels_ci
@dtypes
@layouts
@kinds
def test_grads(rope3d, device, kind, interleaved, dtype):
    """q, k and weights, shared angles and those of each sample, all lanes turning and some."""
    for pairs in (8, 3):
        for per_sample in (True, False):
            given = {"pairs": pairs, "interleaved": interleaved, "per_sample": per_sample}
            assert_grads(rope3d, make(rope3d.reference, device, dtype, kind, **given))


@dtypes
@kinds
@pytest.mark.parametrize("width", short((1, 2, 7, 33, 128, 769, 2048), (33,)))
def test_width(rope3d, device, width, kind, dtype):
    """Tails of every length, backward (S03)."""
    given = {"shape": (2, 3, 2, width), "pairs": width // 2}
    assert_grads(rope3d, make(rope3d.reference, device, dtype, kind, **given))


@kinds
def test_without_k_and_without_weights(rope3d, device, kind):
    """One tensor alone; a norm that has nothing to learn."""
    case = make(rope3d.reference, device, BF16, kind)
    whole = assert_grads(rope3d, case)
    alone = assert_grads(rope3d, case.but(k=None, k_weight=None))
    assert same_bits(alone[0], whole[0])
    assert_grads(rope3d, case.but(q_weight=None, k_weight=None))
    assert_grads(rope3d, case.but(q_weight=None))


@normed
def test_weights_of_another_dtype(rope3d, device, kind):
    """bf16 input with an fp32 weight: each gradient has its input's dtype (A15, sglang#32807)."""
    for dtype in floats(device):
        for other in floats(device):
            assert_grads(rope3d, make(rope3d.reference, device, dtype, kind, weight_dtype=other))


@pytest.mark.kernels_ci
@kinds
@pytest.mark.parametrize("reduce", [torch.sum, torch.mean])
def test_expanded_upstream_gradient(rope3d, device, kind, reduce):
    """.sum().backward() sends an expanded scalar with stride 0 (A02, quack#88)."""
    for dtype in floats(device):
        case = make(rope3d.reference, device, dtype, kind)
        scale = [1.0 if reduce is torch.sum else 1 / x.numel() for x in (case.q, case.k)]
        ours = trained(case)
        sum(reduce(out) for out in ours.run(rope3d)).backward()
        ones = [torch.full_like(x, s) for x, s in zip((case.q, case.k), scale, strict=True)]
        expected = assert_grads(rope3d, case, ones)
        assert all_same([t.grad for t in ours.inputs], expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["rope3d", "head norm", "full norm"])
def test_strided_inputs_and_gradients(rope3d, device, layout, kind):
    """q, k and upstream gradients in any layout (A02; LightLLM#1467 for the backward)."""
    for dtype in (BF16, F32):
        case = make(rope3d.reference, device, dtype, kind, shape=(2, 6, 4, 48), k_heads=4)
        case = case.but(q=view(layout, device, dtype), k=view(layout, device, dtype, 1))
        grads = [view(layout, device, dtype, seed) for seed in (2, 3)]
        got = assert_grads(rope3d, case, grads)
        packed = case.map(torch.Tensor.contiguous, "q", "k")
        assert all_same(got, assert_grads(rope3d, packed, [g.contiguous() for g in grads]))


@normed
@pytest.mark.parametrize("shape", [(3, 1365, 1, 128)], ids=str)
def test_weight_grads_over_many_tokens(rope3d, device, kind, shape):
    """The weight gradient is reduced in bf16 over the rows (A09, Liger-Kernel#950)."""
    for weight_dtype in (BF16, F32):
        assert_grads(
            rope3d, make(rope3d.reference, device, BF16, kind, shape=shape, weight_dtype=weight_dtype)
        )


@pytest.mark.kernels_ci
@normed
def test_zero_input_and_few_tokens(rope3d, device, kind):
    """The weight gradient is random with fewer rows than blocks (A12, flash-attention#781); N12 for zeros."""
    for dtype in floats(device):
        case = trained(
            make(rope3d.reference, device, dtype, kind, shape=(1, 1, 1, 4)).map(torch.zeros_like, "q", "k")
        )
        for _ in range(10):
            _ = torch.full((4096,), math.nan, dtype=F32, device=device)  # what a later allocation may find
            got = gradients(case, case.run(rope3d), [torch.ones_like(x) for x in (case.q, case.k)])
            assert not any(g.any() for g in got[2:])
            assert all(bool(g.isfinite().all()) for g in got)
        for tokens in (1, 2, 3, 15, 16, 17):
            assert_grads(rope3d, make(rope3d.reference, device, dtype, kind, shape=(1, tokens, 2, 10)))


@normed
def test_statistic_is_not_saved_in_low_precision(rope3d, device, kind):
    """A reciprocal rms saved in bf16 spoils the backward (A10, helion#2273).

    With a gradient that turns back to ones the two terms cancel to a hundredth, which shows the error.
    """
    still = {"shape": (1, 8, 1, 1024), "k_heads": 1, "weights": False}
    case = make(rope3d.reference, device, BF16, kind, **still)
    case = case.map(lambda t: (1 + t.float() * 0.01).to(BF16), "q", "k").map(
        torch.zeros_like, "inv_freq", "sin"
    )
    case = case.map(torch.ones_like, "cos")
    assert_grads(rope3d, case, [torch.ones_like(t) for t in (case.q, case.k)])


@normed
def test_saved_rstd(rope3d, ops, device, kind):
    """The saved statistic is fp32 (fp64 for fp64), one for what is normalised together, and right (A10)."""
    for dtype in floats(device):
        case = make(rope3d.reference, device, dtype, kind)
        angles = (case.coords, case.inv_freq, case.axis, None, None)
        if case.coords is None:
            half = [t[..., ::2] for t in (case.cos, case.sin)]
            angles = (None, None, None, *half)
        elif dtype == F64:
            angles = (case.coords.double(), case.inv_freq.double(), case.axis, None, None)
        full = case.norm == "full"
        out = ops.rms_norm_rope3d_train(case.q, case.k, None, None, *angles, 1e-3, full, True)
        for x, rstd in zip((case.q, case.k), out[2:], strict=True):
            dims = (-2, -1) if full else -1
            truth = torch.rsqrt(x.double().square().mean(dims) + 1e-3)
            assert rstd.dtype == (F64 if dtype == F64 else F32)
            torch.testing.assert_close(rstd.double(), truth, rtol=1e-6, atol=0)


@pytest.mark.kernels_ci
@kinds
@pytest.mark.parametrize("shape", [(0, 5, 3, 16), (2, 0, 3, 16), (2, 5, 3, 0)], ids=str)
def test_zero_size(rope3d, device, kind, shape):
    """Zero tokens launch an empty grid and the error breaks a later call (S14, sglang#23609), backward."""
    case = trained(make(rope3d.reference, device, F32, kind, shape=shape))
    sum(out.sum() for out in case.run(rope3d)).backward()
    assert [t.grad.shape for t in case.inputs] == [t.shape for t in case.inputs]
    assert not any(t.grad.any() for t in case.inputs)
    assert torch.ones(3, device=device).sum().item() == 3


@layouts
@kinds
def test_gradcheck(rope3d, device, kind, interleaved):
    """Finite differences in fp64; twice for a rotation, which is linear (A06, apex#410)."""
    need_cpu(device)
    case = make(rope3d.reference, device, F64, kind, shape=(1, 2, 2, 5), k_heads=1, interleaved=interleaved)
    case = trained(case)

    def run(*inputs):
        return tuple(case.with_inputs(inputs).run(rope3d))

    assert torch.autograd.gradcheck(run, case.inputs)
    if case.norm is None:
        assert torch.autograd.gradgradcheck(run, case.inputs)


@pytest.mark.kernels_ci
@layouts
def test_there_and_back(rope3d, device, interleaved):
    """The gradient of a rotation turns back: of the turned tensor, it gives the tensor."""
    for kind in ("rope3d", "apply_rotary"):
        case = trained(make(rope3d.reference, device, F32, kind, interleaved=interleaved))
        outputs = case.run(rope3d)
        back = gradients(case, outputs, [t.detach() for t in outputs])
        for got, x in zip(back, (case.q, case.k), strict=True):
            assert_turned(got, x.detach().double(), F32, case)


def test_upstream_gradients_are_of_any_tensors(rope3d, device):
    """Gradients are measured with autograd through the reference, and that with finite differences."""
    for kind in KINDS:
        case = trained(make(rope3d.reference, "cpu", F64, kind, shape=(1, 2, 1, 4), k_heads=1))
        run = lambda *inputs, case=case: tuple(case.with_inputs(inputs).truth(rope3d.reference))  # noqa: E731
        assert torch.autograd.gradcheck(run, case.inputs)
    assert len(upstream(case)) == 2
    assert randn(1, device=device).device.type == device.type
