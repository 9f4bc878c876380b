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
    "geglu": (False,),
    "geglu_train": (False, True),
    "geglu_backward": (False, True),
    "geglu_split": (False,),
    "geglu_split_train": (False, True),
    "geglu_split_backward": (False, True),
}

ops_and_grad = pytest.mark.parametrize(("name", "grad"), [(n, g) for n, gs in CALLS.items() for g in gs])


def check(ops, name, grad, arguments):
    """All of opcheck; but not the gradient of the backward ops, which is refused on purpose."""
    check_op(getattr(ops, name), arguments, differentiable=not (grad and name.endswith("_backward")))


def raw_arguments(name, device, dtype, layout, grad, tanh=False, gate_first=False):
    value, gate, upstream = views(layout, 3, device, dtype)
    half = upstream[..., : upstream.shape[-1] // 2]
    for tensor in (value, gate, upstream):
        tensor.requires_grad_(grad)
    if name.startswith("geglu_split"):
        given = (value, gate, tanh)
        return (upstream, *given) if name.endswith("_backward") else given
    given = (value, tanh, gate_first)
    return (half.detach().requires_grad_(grad), *given) if name.endswith("_backward") else given


@pytest.mark.parametrize("layout", OPCHECK_LAYOUTS)
@ops_and_grad
def test_opcheck(ops, device, name, grad, layout):
    """Strides of the fake outputs differ from the real ones, and nothing noticed (C03, pytorch#177115)."""
    check(ops, name, grad, raw_arguments(name, device, F32, OPCHECK_LAYOUTS[layout], grad))


@pytest.mark.parametrize("dtype", short([F16, BF16], [BF16]), ids=["float16", "bfloat16"])
@ops_and_grad
def test_opcheck_half(ops, device, name, grad, dtype):
    """The same in half precision, of the other mode and order."""
    check(ops, name, grad, raw_arguments(name, device, dtype, OPCHECK_LAYOUTS["sliced"], grad, True, True))


@pytest.mark.kernels_ci
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("layout", OPCHECK_LAYOUTS)
def test_fake_tensors(ops, device, name, layout):
    """A crash under compile for want of a fake rule (C02, kernels-community#272)."""
    arguments = raw_arguments(name, device, BF16, OPCHECK_LAYOUTS[layout], False, True, True)
    assert_fake_is_real(getattr(ops, name), arguments)


# ---- torch.compile -----------------------------------------------------------------------------------------


def train(geglu):
    def step(x, weight):
        y = geglu.geglu(x)
        z = geglu.geglu_split(y, weight.expand_as(y) * 2, approximate="tanh")
        return y, z, geglu.geglu(z, approximate="tanh", gate="first")

    return step


@pytest.mark.kernels_ci
@pytest.mark.parametrize("dtype", [BF16, F32], ids=["bfloat16", "float32"])
def test_whole_graph_forward_and_backward(geglu, device, dtype):
    """fullgraph=True through both ops and their backward gives the bits of the eager call."""
    inputs = tensors(device, dtype, (6, 80), 40)
    step = train(geglu)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for got, expected in zip(with_grads(compiled, inputs), with_grads(step, inputs), strict=True):
        torch.testing.assert_close(got, expected)
    with torch.no_grad():
        for got, expected in zip(compiled(*inputs), step(*inputs), strict=True):
            assert same_bits(got, expected)


@pytest.mark.parametrize("dynamic", [False, True])
def test_inductor(geglu, device, dynamic):
    """The whole road, code generation included, in training and in inference, on strided inputs."""
    wide, weight = tensors(device, BF16, (2, 6, 240), 40)
    inputs = (wide[..., 80:160], weight)
    step = train(geglu)
    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic, backend=inductor(device))
    for got, expected in zip(with_grads(compiled, inputs), with_grads(step, inputs), strict=True):
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
    with torch.inference_mode():
        for got, expected in zip(compiled(*inputs), step(*inputs), strict=True):
            torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("training", short([False, True], [False]), ids=["inference", "training"])
def test_recompiles(geglu, device, training):
    """Recompiles for each new length (C06, pytorch#149405)."""
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(train(geglu), fullgraph=True, dynamic=True, backend="aot_eager")
    weight = randn(40, device=device)
    for tokens in (7, 64, 333, 1024, 1536, 4097):
        x = randn(2, tokens, 80, device=device, seed=tokens)
        if training:
            with_grads(compiled, (x, weight))
        else:
            with torch.no_grad():
                compiled(x, weight)
    assert unique_graphs() == 1


@pytest.mark.kernels_ci
def test_no_graph_breaks(geglu, device):
    """Look-ups in Python on the hot path are not traceable (C09, diffusers#13151)."""
    assert_one_graph(train(geglu), randn(3, 80, device=device), randn(40, device=device, seed=1))


def test_refusals_are_the_same_under_compile(geglu, device):
    """An odd width, a gate of another shape, an unknown mode: refused in the same words while tracing."""
    x = torch.ones(3, 8, device=device)
    for call, words in (
        (lambda x: geglu.geglu(x[:, 1:]), r"geglu: x .*even"),
        (lambda x: geglu.geglu_split(x, x[:, 1:]), r"geglu_split: gate .*as value"),
        (lambda x: geglu.geglu(x, approximate="erf"), r"geglu: approximate .*'none' or 'tanh'"),
    ):
        with pytest.raises(Exception, match=words):
            torch.compile(call, backend="aot_eager")(x)


FRESH = """
import os, sys
import torch
from kernels import get_kernel
device, backend, compiler = sys.argv[1:]
assert not os.path.exists("build.toml")
geglu = get_kernel("kernelworks/geglu", version=1, backend=backend if backend != "None" else None)
def step(x, gate):
    return geglu.geglu(x) * geglu.geglu_split(gate, gate, approximate="tanh")
def run(function):
    leaves = [torch.full(shape, 0.5, device=device, requires_grad=True) for shape in ((4, 64), (4, 32))]
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
