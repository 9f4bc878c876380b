# SPDX-License-Identifier: Apache-2.0
"""Registration and torch.compile: opcheck, fake tensors, whole graphs, recompiles, fresh processes."""

from __future__ import annotations

import pytest
import torch
from cases import kinds, make
from test_shapes import LAYOUTS, view
from vendor.checks import all_same, randn, same_bits, short
from vendor.compiling import (
    assert_fake_is_real,
    assert_one_graph,
    check_op,
    inductor,
    unique_graphs,
    with_grads,
)
from vendor.machine import run_python

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

BF16, F32 = torch.bfloat16, torch.float32

# ---- registration ------------------------------------------------------------------------------------------

CALLS = {  # which ops, and whether their inputs may require a gradient
    "rope3d": (False,),
    "rope3d_train": (False, True),
    "rope3d_": (False,),
    "apply_rotary": (False,),
    "apply_rotary_train": (False, True),
    "apply_rotary_": (False,),
    "rms_norm_rope3d": (False,),
    "rms_norm_rope3d_train": (False, True),
    "rms_norm_rope3d_backward": (False, True),
}
ops_and_grad = pytest.mark.parametrize(("name", "grad"), [(n, g) for n, gs in CALLS.items() for g in gs])
CHECKED = ("heads first", "every second lane", "q alone", "expanded heads", "empty")


def raw_arguments(rope3d, ops, name, device, dtype, layout, grad, weight_dtype=None):
    """What the op takes: q and k in this layout, and everything else that there is."""
    kind = "apply_rotary" if name.startswith("apply") else "full norm" if name.startswith("rms") else "rope3d"
    shape = (2, 0, 4, 48) if layout == "empty" else (2, 6, 4, 48)
    given = {
        "shape": shape,
        "k_heads": 4,
        "interleaved": layout != "slice of a fused qkv",
        "weight_dtype": weight_dtype,
    }
    case = make(rope3d.reference, device, dtype, kind, **given)
    if layout in LAYOUTS and not (name.endswith("_") and layout.startswith("expanded")):
        case = case.but(q=view(layout, device, dtype), k=view(layout, device, dtype, 1))
    if layout == "q alone":
        case = case.but(k=None, k_weight=None)
    for tensor in case.inputs:
        tensor.requires_grad_(grad)
    if kind == "apply_rotary":
        width = 24
        halves = slice(None, None, 2) if case.interleaved else slice(width)
        return case.q, case.k, case.cos[..., halves], case.sin[..., halves], case.interleaved, False
    where = (case.coords, case.inv_freq, case.axis)
    if kind == "rope3d":
        return case.q, case.k, *where, case.interleaved, False
    both = (case.q, case.k, case.q_weight, case.k_weight)
    if name != "rms_norm_rope3d_backward":
        return *both, *where, None, None, 1e-6, True, case.interleaved
    rstds = list(ops.rms_norm_rope3d_train(*both, *where, None, None, 1e-6, True, case.interleaved)[2:])
    grads = [
        randn(*x.shape, dtype=dtype, device=device, seed=9) if x is not None else None
        for x in (case.q, case.k)
    ]
    wanted = case.k is not None
    if not wanted:
        rstds[1] = None
    rstds = [None if t is None else t.detach() for t in rstds]
    return *grads, *both, *rstds, *where, None, None, True, case.interleaved, True, wanted


@pytest.mark.parametrize("layout", CHECKED[:3])
@ops_and_grad
def test_opcheck(rope3d, ops, device, name, grad, layout):
    """Strides of the fake outputs differ from the real ones, and nothing noticed (C03, pytorch#177115)."""
    arguments = raw_arguments(rope3d, ops, name, device, F32, layout, grad)
    differentiable = not (grad and name == "rms_norm_rope3d_backward")
    check_op(getattr(ops, name), arguments, differentiable=differentiable)


@ops_and_grad
def test_opcheck_half(rope3d, ops, device, name, grad):
    """The same in half precision, with fp32 weights, on slices and in the other layout of pairs."""
    arguments = raw_arguments(rope3d, ops, name, device, BF16, "slice of a fused qkv", grad, F32)
    check_op(getattr(ops, name), arguments, differentiable=not (grad and name == "rms_norm_rope3d_backward"))


@pytest.mark.kernels_ci
@pytest.mark.parametrize("name", [name for name in CALLS if not name.endswith("_")])
@pytest.mark.parametrize("layout", CHECKED)
def test_fake_tensors(rope3d, ops, device, name, layout):
    """An op crashes under compile for want of a fake rule (C02, kernels-community#272)."""
    arguments = raw_arguments(rope3d, ops, name, device, BF16, layout, False, F32)
    assert_fake_is_real(getattr(ops, name), arguments)


# ---- torch.compile -----------------------------------------------------------------------------------------


def step_of(rope3d, case):
    """All of a block that turns q and k: twice, so that one call's output is another's input."""

    def step(*inputs):
        outputs = case.with_inputs(inputs).run(rope3d)
        return tuple(case.but(q=outputs[0] * 2, k=outputs[1]).run(rope3d))

    return step


@kinds
def test_whole_graph_forward_and_backward(rope3d, device, kind):
    """fullgraph=True through each function and its backward gives the bits of the eager call."""
    case = make(rope3d.reference, device, BF16, kind)
    step = step_of(rope3d, case)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for got, expected in zip(with_grads(compiled, case.inputs), with_grads(step, case.inputs), strict=True):
        torch.testing.assert_close(got, expected)
    with torch.no_grad():
        assert all_same(compiled(*case.inputs), step(*case.inputs))


@pytest.mark.parametrize("dynamic", [False, True])
def test_inductor(rope3d, device, dynamic):
    """The whole road, code generation included, in training and in inference, on strided inputs."""
    case = make(rope3d.reference, device, BF16, "full norm", shape=(2, 6, 4, 48), k_heads=4)
    case = case.but(q=view("slice of a fused qkv", device, BF16), k=view("heads first", device, BF16, 1))
    step = step_of(rope3d, case)
    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic, backend=inductor(device))
    for got, expected in zip(with_grads(compiled, case.inputs), with_grads(step, case.inputs), strict=True):
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
    with torch.inference_mode():
        for got, expected in zip(compiled(*case.inputs), step(*case.inputs), strict=True):
            torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("training", short([False, True], [False]), ids=["inference", "training"])
def test_recompiles(rope3d, device, training):
    """Recompiles for each new length (C06, pytorch#149405)."""
    torch._dynamo.utils.counters.clear()

    def step(q, k, coords, inv_freq, axis):
        q, k = rope3d.rope3d(q, k, coords, inv_freq, axis)
        return rope3d.rope3d(q, k, coords, inv_freq, axis, interleaved=False)

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (7, 64, 333, 1024, 1536, 2310):
        case = make(rope3d.reference, device, F32, shape=(2, tokens, 3, 16))
        where = (case.coords, case.inv_freq, case.axis)
        if training:
            with_grads(lambda q, k, where=where: compiled(q, k, *where), (case.q, case.k))
        else:
            with torch.no_grad():
                compiled(case.q, case.k, *where)
    assert unique_graphs() == 1


@pytest.mark.kernels_ci
@kinds
def test_no_graph_breaks(rope3d, device, kind):
    """Look-ups in Python on the hot path are not traceable (C09, diffusers#13151)."""
    case = make(rope3d.reference, device, F32, kind)
    assert_one_graph(step_of(rope3d, case), *case.inputs)


def test_refusals_are_the_same_under_compile(rope3d, device):
    """Wrong tables are refused with the same sentence while tracing."""
    compiled = torch.compile(
        lambda q, c: rope3d.apply_rotary(q, None, c, c, interleaved=True), backend="aot_eager"
    )
    with pytest.raises(Exception, match=r"apply_rotary: cos has shape"):
        compiled(torch.ones(2, 5, 3, 16, device=device), torch.ones(4, 16, device=device))


def test_presets_under_compile(rope3d, device):
    """A grid may be made inside of the graph."""
    q = randn(1, 24, 2, 48, dtype=BF16, device=device)

    def step(q):
        rotary = rope3d.presets.wan(48, 2, 3, 4, tokens=q.shape[1], device=q.device)
        return rope3d.rope3d(q, None, *rotary.angles)

    assert same_bits(torch.compile(step, fullgraph=True, backend="aot_eager")(q), step(q))


FRESH = """
import os, sys
import torch
from kernels import get_kernel
device, backend, compiler = sys.argv[1:]
assert not os.path.exists("build.toml")
rope3d = get_kernel("kernelworks/rope3d", version=1, backend=backend if backend != "None" else None)
coords, inv_freq = torch.arange(5, device=device)[:, None], torch.ones(8, device=device)
def step(q, k, weight):
    q, k = rope3d.rope3d(q, k, coords, inv_freq)
    return rope3d.rms_norm_rope3d(q, k, weight, weight, coords, inv_freq)
def run(function):
    shapes = ((2, 5, 3, 16), (2, 5, 1, 16), (16,))
    leaves = [torch.full(shape, 0.5, device=device, requires_grad=True) for shape in shapes]
    out = function(*leaves)
    return [*out, *torch.autograd.grad(sum(t.square().sum() for t in out), leaves)]
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
