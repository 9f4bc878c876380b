# SPDX-License-Identifier: Apache-2.0
"""Registration and torch.compile: opcheck, fake tensors, whole graphs."""

from __future__ import annotations

import shutil

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck
from torch.utils._triton import has_triton

from .checks import leaf


def inductor(device):
    """inductor where its compiler is installed; otherwise all of torch.compile but the code generation."""
    compiler = any(map(shutil.which, ("g++", "clang++"))) and (device.type == "cpu" or has_triton())
    return "inductor" if compiler else "aot_eager"


def check_op(op, arguments, *, differentiable=True):
    """All of opcheck; but not the gradient of an op that refuses to have one."""
    utilities = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    if not differentiable:
        utilities.remove("test_aot_dispatch_dynamic")
    opcheck(op.default, arguments, test_utils=utilities)


def assert_fake_is_real(op, arguments):
    """Fake tensors give outputs of the shapes, dtypes, devices and strides of the real ones."""
    real = op(*arguments)
    with FakeTensorMode() as mode:
        fake = op(*(mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments))
    pairs = [(real, fake)] if isinstance(real, torch.Tensor) else zip(real, fake, strict=True)
    for a, b in pairs:
        assert (a.shape, a.dtype, a.device, a.stride()) == (b.shape, b.dtype, b.device, b.stride())


def with_grads(step, inputs, *options):
    """The outputs of `step`, a tuple, and the gradients of all inputs."""
    leaves = [leaf(t) for t in inputs]
    outputs = step(*leaves, *options)
    return [*outputs, *torch.autograd.grad(sum(t.float().square().sum() for t in outputs), leaves)]


def unique_graphs():
    """How many graphs have been compiled since the last reset of torch._dynamo.utils.counters."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def assert_one_graph(step, *inputs):
    explained = torch._dynamo.explain(step)(*inputs)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)
