# SPDX-License-Identifier: Apache-2.0
"""Registration and torch.compile: opcheck, fake tensors, whole graphs, recompiles, fresh processes."""

from __future__ import annotations

import pytest
import torch
from cases import MODULATORS, Case, make, parts
from vendor.checks import randn, same_bits, short
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
FORMS = ("none", "sample", "sample, two dims", "unbind, per token", "expanded", "table and token", "two rows")


# ---- registration ------------------------------------------------------------------------------------------

CALLS = {  # which ops, and whether their inputs may require a gradient
    "ada_norm": (False,),
    "gate_residual": (False,),
    "gate_residual_ada_norm": (False,),
    "ada_norm_train": (False, True),
    "gate_residual_train": (False, True),
    "gate_residual_ada_norm_train": (False, True),
    "ada_norm_backward": (False, True),
}
ops_and_grad = pytest.mark.parametrize(("name", "grad"), [(n, g) for n, gs in CALLS.items() for g in gs])


def raw_arguments(ops, name, case, grad=False, wanted=(True, True)):
    """What the op of this name takes, made of a call; the backward op's upstream gradients are made up."""
    layer = case.norm == "layer"
    given = case.map(lambda t: t.detach().requires_grad_(grad))
    flat = [part for m in MODULATORS for part in (*parts(getattr(given, m)), None, None)[:2]]
    modulated = (*flat[2:], given.weight, given.bias)
    if name.startswith("ada_norm") and name != "ada_norm_backward":
        return given.x, *modulated, case.eps, layer
    if name != "ada_norm_backward":
        sums = (given.residual, given.x, *flat[:2])
        return (
            sums
            if name.startswith("gate_residual") and "ada" not in name
            else (*sums, *modulated, case.eps, layer)
        )
    with torch.no_grad():
        arguments = raw_arguments(ops, "gate_residual_ada_norm_train", case)
        _, total, mean, rstd = ops.gate_residual_ada_norm_train(*arguments)
    upstream = [
        t.requires_grad_(grad)
        for t in (randn(*case.x.shape, dtype=case.x.dtype, device=case.x.device, seed=i) for i in (8, 9))
    ]
    return (
        *upstream,
        total,
        given.x,
        *flat,
        given.weight,
        given.bias,
        mean if layer else None,
        rstd,
        layer,
        *wanted,
    )


def laid_out(layout, device, dtype):
    """A call on x and residual of this layout, beside rows of modulators in fp32."""
    x, residual = views(OPCHECK_LAYOUTS[layout], 2, device, dtype)
    return Case(x, residual, *[randn(x.shape[-1], device=device, seed=i) for i in range(2, 7)], norm="layer")


def check(ops, name, grad, case):
    """All of opcheck; but not the gradient of the backward op, which is refused on purpose."""
    differentiable = not (grad and name == "ada_norm_backward")
    check_op(getattr(ops, name), raw_arguments(ops, name, case, grad), differentiable=differentiable)


@pytest.mark.parametrize("form", FORMS)
def test_opcheck_of_forms(ops, device, form):
    """Shapes of the gradients, and their strides, differ from what the fake op says (C03, pytorch#177115)."""
    case = make(device, BF16, (2, 3, 8), form, affine=form == "none", other=F32, norm="layer")
    check(ops, "gate_residual_ada_norm_train", True, case)
    check(ops, "gate_residual_train", True, case)


@pytest.mark.parametrize("layout", OPCHECK_LAYOUTS)
def test_opcheck_of_layouts(ops, device, layout):
    """Strides of the fake outputs differ from the real ones, and nothing noticed (C03, pytorch#177115)."""
    check(ops, "gate_residual_ada_norm_train", True, laid_out(layout, device, F32))
    check(ops, "ada_norm_backward", False, laid_out(layout, device, F32))


@ops_and_grad
def test_opcheck(ops, device, name, grad):
    """Every op, in half precision too, with fp32 parameters."""
    check(ops, name, grad, make(device, F32, (2, 3, 8)))
    check(ops, name, grad, make(device, BF16, (2, 3, 8), "table and token", other=F32, norm="layer"))
    check(ops, name, grad, make(device, F16, (2, 3, 8), "none", affine=False))


@pytest.mark.kernels_ci
@pytest.mark.parametrize("name", CALLS)
def test_fake_tensors(ops, device, name):
    """rmsnorm crashes under compile for want of a fake rule (C02, kernels-community#272)."""
    for norm in ("rms", "layer"):
        cases = [make(device, BF16, (2, 3, 8), form, other=F32, norm=norm) for form in FORMS]
        cases += [make(device, F32, (2, 3, 8), ("sample", "none", "token"), norm=norm)]
        cases += [laid_out(layout, device, BF16) for layout in OPCHECK_LAYOUTS]
        for case in cases:
            assert_fake_is_real(getattr(ops, name), raw_arguments(ops, name, case))
            if name == "ada_norm_backward":
                for wanted in ((False, False), (True, False), (False, True)):
                    assert_fake_is_real(getattr(ops, name), raw_arguments(ops, name, case, False, wanted))


# ---- torch.compile -----------------------------------------------------------------------------------------


def block(adaln):
    """Three calls as a transformer's block makes them; modulators are slices of one embedding."""

    def step(x, residual, table, temb, weight, eps):
        shift, scale, gate = (temb.unbind(2)[i] for i in range(3))
        y = adaln.ada_norm(residual, (table[1], scale), shift, eps, norm="layer", weight=weight)
        y, total = adaln.gate_residual_ada_norm(y + x, x * 2, (table[2], gate), scale, (table[0], shift), eps)
        return y, total, adaln.gate_residual(total, y, temb[:, 0, 0])

    return step


def inputs(device, dtype, batch=2, tokens=5, per_token=False, width=40):
    x, residual = (randn(batch, tokens, width, dtype=dtype, device=device, seed=i) for i in range(2))
    table, weight = randn(3, width, device=device, seed=2), randn(width, device=device, seed=4)
    return (
        x,
        residual,
        table,
        randn(batch, tokens if per_token else 1, 3, width, device=device, seed=3),
        weight,
    )


@pytest.mark.kernels_ci
@pytest.mark.parametrize("per_token", [False, True], ids=["a row for each sample", "a row for each token"])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=["bfloat16", "float32"])
def test_whole_graph_forward_and_backward(adaln, device, dtype, per_token):
    """fullgraph=True through all ops and their backward gives the bits of the eager call."""
    given, step = inputs(device, dtype, per_token=per_token), block(adaln)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for got, expected in zip(with_grads(compiled, given, 1e-6), with_grads(step, given, 1e-6), strict=True):
        torch.testing.assert_close(got, expected)
    with torch.no_grad():
        for got, expected in zip(compiled(*given, 1e-6), step(*given, 1e-6), strict=True):
            assert same_bits(got, expected)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_inductor(adaln, device, training):
    """The whole road, code generation included, on strided inputs; in training with sizes that may change."""
    x, residual, table, temb, _ = inputs(device, BF16)
    given = (x.repeat(1, 1, 3)[..., 40:80], residual, table, temb)

    def step(x, residual, table, temb):
        gate, scale, shift = temb.unbind(2)
        y, total = adaln.gate_residual_ada_norm(residual, x * 2, gate, (table[0], scale), shift)
        return y * 2, total

    def run(function):
        return with_grads(function, given) if training else function(*given)

    compiled = torch.compile(step, fullgraph=True, dynamic=training, backend=inductor(device))
    with torch.inference_mode(not training):
        for got, expected in zip(run(compiled), run(step), strict=True):
            largest = float(expected.detach().abs().max())
            torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2 * largest)


@pytest.mark.parametrize("training", short([False, True], [False]), ids=["inference", "training"])
def test_recompiles(adaln, device, training):
    """Recompiles for each new length or eps (C06, pytorch#149405)."""
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(block(adaln), fullgraph=True, dynamic=True, backend="aot_eager")
    for graphs, eps in enumerate((1e-6, 1e-5), start=1):
        for tokens in (7, 64, 333, 1024, 1536, 4097):
            given = inputs(device, F32, tokens=tokens, per_token=not training)
            if training:
                with_grads(compiled, given, eps)
            else:
                with torch.no_grad():
                    compiled(*given, eps)
        # one for all lengths, and one more for another eps at most
        assert unique_graphs() <= graphs


@pytest.mark.kernels_ci
def test_no_graph_breaks(adaln, device):
    """Look-ups in Python on the hot path are not traceable (C09, diffusers#13151)."""
    assert_one_graph(block(adaln), *inputs(device, F32), 1e-6)


def test_refusals_are_the_same_under_compile(adaln, device):
    """A wrong scale, and one that means two things, are refused with the same sentence while tracing."""
    x, square = torch.ones(3, 3, 8, device=device), torch.ones(3, 8, device=device)
    for scale, words in ((torch.ones(9, device=device), "scale has shape"), (square, "two dimensions")):
        compiled = torch.compile(lambda x, s: adaln.ada_norm(x, s), backend="aot_eager")
        with pytest.raises(Exception, match=rf"ada_norm: scale .*{words.removeprefix('scale ')}"):
            compiled(x, scale)
        torch._dynamo.reset()


FRESH = """
import os, sys
import torch
from kernels import get_kernel
device, backend, compiler = sys.argv[1:]
assert not os.path.exists("build.toml")
adaln = get_kernel("kernelworks/adaln", version=1, backend=backend if backend != "None" else None)
def step(x, residual, table, temb):
    gate, scale = temb.split(1, dim=1)
    y, total = adaln.gate_residual_ada_norm(residual, x, gate, (table, scale), table, norm="layer")
    return adaln.ada_norm(y + total, scale)
def run(function):
    shapes = ((4, 3, 64), (4, 3, 64), (64,), (4, 2, 64))
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.randn(shape, generator=generator).to(device).requires_grad_() for shape in shapes]
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
