# SPDX-License-Identifier: Apache-2.0
"""Registration and torch.compile: opcheck, fake tensors, whole graphs, recompiles, fresh processes."""

from __future__ import annotations

import pytest
import torch
from vendor.checks import randn, same_bits, short, tensors
from vendor.compiling import (
    assert_fake_is_real,
    assert_one_graph,
    check_op,
    inductor,
    unique_graphs,
    with_grads,
)
from vendor.layouts import OPCHECK_LAYOUTS, views
from vendor.machine import run_python

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


# ---- registration ------------------------------------------------------------------------------------------

CALLS = {  # which ops, and whether their inputs may require a gradient
    "rms_norm": (False,),
    "add_rms_norm": (False,),
    "rms_norm_train": (False, True),
    "add_rms_norm_train": (False, True),
    "rms_norm_backward": (False, True),
}


ops_and_grad = pytest.mark.parametrize(("name", "grad"), [(n, g) for n, gs in CALLS.items() for g in gs])


def check(ops, name, grad, arguments):
    """All of opcheck; but not the gradient of the backward op, which is refused on purpose."""
    check_op(getattr(ops, name), arguments, differentiable=not (grad and name == "rms_norm_backward"))


@pytest.mark.parametrize("weighted", [True, False], ids=["weight", "no weight"])
@pytest.mark.parametrize("layout", OPCHECK_LAYOUTS)
@ops_and_grad
def test_opcheck(ops, device, name, grad, layout, weighted):
    """Strides of the fake outputs differ from the real ones, and nothing noticed (C03, pytorch#177115)."""
    check(ops, name, grad, raw_arguments(ops, name, device, F32, OPCHECK_LAYOUTS[layout], grad, weighted))


@pytest.mark.parametrize("dtype", short([F16, BF16], [BF16]), ids=["float16", "bfloat16"])
@ops_and_grad
def test_opcheck_half(ops, device, name, grad, dtype):
    """The same in half precision, with an fp32 weight and the other rounding."""
    sliced = OPCHECK_LAYOUTS["sliced"]
    check(ops, name, grad, raw_arguments(ops, name, device, dtype, sliced, grad, F32, True))


def raw_arguments(ops, name, device, dtype, layout, grad, weighted, before_weight=False):
    x, residual, upstream, other = views(layout, 4, device, dtype)
    weight_dtype = weighted if isinstance(weighted, torch.dtype) else dtype
    weight = randn(x.shape[-1], dtype=weight_dtype, device=device, seed=5) if weighted else None
    rstd = ops.rms_norm_train(x, weight, 1e-6, 0.0, before_weight)[1]
    for tensor in (x, residual, weight, upstream, other):
        if tensor is not None:
            tensor.requires_grad_(grad)
    options = (weight, 1e-6, 0.5, before_weight)
    if name == "rms_norm_backward":
        return upstream, other, x, weight, rstd, 0.5, before_weight, weighted is not False
    return (x, residual, *options) if name.startswith("add_") else (x, *options)


@pytest.mark.kernels_ci
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("layout", OPCHECK_LAYOUTS)
def test_fake_tensors(ops, device, name, layout):
    """rmsnorm crashes under compile for want of a fake rule (C02, kernels-community#272)."""
    arguments = raw_arguments(ops, name, device, BF16, OPCHECK_LAYOUTS[layout], False, F32)
    assert_fake_is_real(getattr(ops, name), arguments)


# ---- torch.compile -----------------------------------------------------------------------------------------


def train(rmsnorm):
    def step(x, residual, weight, eps):
        y, total = rmsnorm.add_rms_norm(x, residual, weight, eps)
        z = rmsnorm.rms_norm(total * 2, weight, eps, weight_offset=1.0, rounding="before_weight")
        return y, total, z

    return step


@pytest.mark.kernels_ci
@pytest.mark.parametrize("dtype", [BF16, F32], ids=["bfloat16", "float32"])
def test_whole_graph_forward_and_backward(rmsnorm, device, dtype):
    """fullgraph=True through both ops and their backward gives the bits of the eager call."""
    inputs = tensors(device, dtype, (6, 40), (6, 40), 40)
    step = train(rmsnorm)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for got, expected in zip(with_grads(compiled, inputs, 1e-6), with_grads(step, inputs, 1e-6), strict=True):
        torch.testing.assert_close(got, expected)
    with torch.no_grad():
        for got, expected in zip(compiled(*inputs, 1e-6), step(*inputs, 1e-6), strict=True):
            assert same_bits(got, expected)


@pytest.mark.parametrize("dynamic", [False, True])
def test_inductor(rmsnorm, device, dynamic):
    """The whole road, code generation included, in training and in inference, on strided inputs."""
    wide, residual, weight = tensors(device, BF16, (2, 6, 120), (2, 6, 40), 40)
    inputs = (wide[..., 40:80], residual, weight)
    step = train(rmsnorm)
    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic, backend=inductor(device))
    for got, expected in zip(with_grads(compiled, inputs, 1e-6), with_grads(step, inputs, 1e-6), strict=True):
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
    with torch.inference_mode():
        for got, expected in zip(compiled(*inputs, 1e-6), step(*inputs, 1e-6), strict=True):
            torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("training", short([False, True], [False]), ids=["inference", "training"])
def test_recompiles(rmsnorm, device, training):
    """Recompiles for each new length or eps (C06, pytorch#149405)."""
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(train(rmsnorm), fullgraph=True, dynamic=True, backend="aot_eager")
    weight = randn(40, device=device)
    for graphs, eps in enumerate((1e-6, 1e-5), start=1):
        for tokens in (7, 64, 333, 1024, 1536, 4097):
            x = randn(2, tokens, 40, device=device, seed=tokens)
            if training:
                with_grads(compiled, (x, x, weight), eps)
            else:
                with torch.no_grad():
                    compiled(x, x, weight, eps)
        # one for all lengths, and one more for another eps at most
        assert unique_graphs() <= graphs


@pytest.mark.kernels_ci
def test_no_graph_breaks(rmsnorm, device):
    """Look-ups in Python on the hot path are not traceable (C09, diffusers#13151)."""
    x, weight = randn(3, 40, device=device), randn(40, device=device, seed=1)
    assert_one_graph(train(rmsnorm), x, x, weight, 1e-6)


def test_refusals_are_the_same_under_compile(rmsnorm, device):
    """A wrong weight is refused with the same sentence while tracing."""
    compiled = torch.compile(lambda x, w: rmsnorm.rms_norm(x, w), backend="aot_eager")
    with pytest.raises(Exception, match=r"rms_norm: weight"):
        compiled(torch.ones(3, 8, device=device), torch.ones(9, device=device))


def test_eps_none_under_compile(rmsnorm, device):
    """eps=None is a default that can be traced, and the same as in eager."""
    x = randn(3, 40, dtype=BF16, device=device, scale=1e-3)
    compiled = torch.compile(lambda t: rmsnorm.rms_norm(t, None, None), fullgraph=True, backend="aot_eager")
    assert same_bits(compiled(x), rmsnorm.rms_norm(x, None, None))


FRESH = """
import os, sys
import torch
from kernels import get_kernel
device, backend, compiler = sys.argv[1:]
assert not os.path.exists("build.toml")
rmsnorm = get_kernel("kernelworks/rmsnorm", version=1, backend=backend if backend != "None" else None)
def step(x, residual, weight):
    y, total = rmsnorm.add_rms_norm(x, residual, weight)
    return rmsnorm.rms_norm(y + total, weight)
def run(function):
    shapes = ((4, 64), (4, 64), (64,))
    leaves = [torch.full(shape, 0.5, device=device, requires_grad=True) for shape in shapes]
    out = function(*leaves)
    return [out, *torch.autograd.grad(out.sum(), leaves)]
for got, expected in zip(run(torch.compile(step, fullgraph=True, backend=compiler)), run(step)):
    torch.testing.assert_close(got, expected)
print("compiled")
"""


@pytest.mark.kernels_ci
def test_fresh_process_elsewhere(device, backend):
    """Crashes in compile, as the loaded package has a hashed name (C01, kernels-community#312)."""
    done = run_python(FRESH, device, backend, "aot_eager")
    assert done.returncode == 0, done.stderr
    assert "compiled" in done.stdout
