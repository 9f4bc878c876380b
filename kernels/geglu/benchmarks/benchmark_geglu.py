# SPDX-License-Identifier: Apache-2.0
"""geglu beside its peers: the cases of `kernelworks bench`, and a class for `kernels benchmark`.

Every peer does the work that we do: the same inputs and dtypes, and each output allocated by the call. The
shape of a case is that of the result, (..., D); what comes in is a packed x of (..., 2D), value first, as
diffusers has it, or two tensors. A result is compared with the largest of its row: eager torch forms 1 + erf,
which far down the tail is no more than its own rounding error.
"""

from __future__ import annotations

import functools
import importlib
import math

import torch
import torch.nn.functional as F
from kernels.benchmark import Benchmark


def normal(shape, dtype, device, generator, size=1.0):
    return (size * torch.randn(shape, generator=generator, device=device, dtype=torch.float32)).to(dtype)


def packed_inputs(shape, dtype, device, generator, size=1.0):
    """x, of two halves."""
    return (normal((*shape[:-1], 2 * shape[-1]), dtype, device, generator, size),)


def split_inputs(shape, dtype, device, generator, size=1.0):
    """value and gate."""
    return tuple(normal(shape, dtype, device, generator, size) for _ in range(2))


def train_inputs(shape, dtype, device, generator, size=1.0):
    """x, to be trained, and a gradient."""
    (x,) = packed_inputs(shape, dtype, device, generator, size)
    return x.requires_grad_(), normal(shape, dtype, device, generator, size)


# Ours and the peers: callables on those inputs.


def ours_packed(kernel, approximate):
    return lambda x: kernel.geglu(x, approximate=approximate)


def ours_split(kernel, approximate):
    return lambda value, gate: kernel.geglu_split(value, gate, approximate=approximate)


def torch_split(approximate):
    return lambda value, gate: value * F.gelu(gate, approximate=approximate)


def on_halves(function):
    return lambda x: function(*x.chunk(2, dim=-1))


def liger_split():
    """Its gate comes first, and it has the tanh form alone."""
    apply = importlib.import_module("liger_kernel.ops.geglu").LigerGELUMulFunction.apply
    return lambda value, gate: apply(gate, value)


def trained(forward):
    """The same with its backward: y and dx."""

    def call(x, dy):
        y = forward(x)
        return y, *torch.autograd.grad(y, (x,), dy)

    return call


def compiled(function):
    return torch.compile(function, dynamic=False)


# The truth, in fp64, of the chosen rows (a slice or an index).


def packed_truth(kernel, rows, x, *, approximate):
    return (kernel.reference.geglu(x.flatten(0, -2)[rows].double(), approximate=approximate),)


def split_truth(kernel, rows, value, gate, *, approximate):
    value, gate = (t.flatten(0, -2)[rows].double() for t in (value, gate))
    return (kernel.reference.geglu_split(value, gate, approximate=approximate),)


def train_truth(kernel, rows, x, dy, *, approximate):
    x = x.detach().flatten(0, -2)[rows].double().requires_grad_()
    with torch.enable_grad():
        y = kernel.reference.geglu(x, approximate=approximate)
        return y.detach(), *torch.autograd.grad(y, (x,), dy.flatten(0, -2)[rows].double())


def traffic(tensors):
    """Bytes of so many tensors of the result's shape."""
    return lambda shape, itemsize: tensors * math.prod(shape) * itemsize


def packed(approximate):
    function = on_halves(torch_split(approximate))
    peers = {"torch": lambda: function, "compile": lambda: compiled(function)}
    return {
        "inputs": packed_inputs,
        "ours": functools.partial(ours_packed, approximate=approximate),
        "peers": peers if approximate == "none" else {**peers, "liger": lambda: on_halves(liger_split())},
        "truth": functools.partial(packed_truth, approximate=approximate),
        "outputs": {"y": "row"},
        "bytes": traffic(3),
    }


def train(approximate):
    work = packed(approximate)
    function = work["peers"]["torch"]()
    peers = {"torch": lambda: trained(function), "compile": lambda: trained(compiled(function))}
    if "liger" in work["peers"]:
        peers["liger"] = lambda: trained(work["peers"]["liger"]())
    return {
        **work,
        "inputs": train_inputs,
        "ours": lambda kernel: trained(work["ours"](kernel)),
        "peers": peers,
        "truth": functools.partial(train_truth, approximate=approximate),
        "outputs": {"y": "row", "dx": "row"},
        "output_shapes": lambda shape: (shape, (*shape[:-1], 2 * shape[-1])),
        "bytes": traffic(8),  # forward: two halves in, y out; backward: dy and the halves, and theirs out
        "grad": True,
    }


ERF, TANH = packed("none"), packed("tanh")
TRAIN_ERF, TRAIN_TANH = train("none"), train("tanh")
SPLIT = {
    "inputs": split_inputs,
    "ours": functools.partial(ours_split, approximate="tanh"),
    "peers": {
        "torch": lambda: torch_split("tanh"),
        "compile": lambda: compiled(torch_split("tanh")),
        "liger": liger_split,
    },
    "truth": functools.partial(split_truth, approximate="tanh"),
    "outputs": {"y": "row"},
    "bytes": traffic(3),
}

PEERS = {
    "torch": {"rounding": "gelu(gate) too, and so it is less exact"},
    "compile": {"packages": ["triton"]},
    "liger": {
        "note": "tanh alone; of a packed x it copies the halves first",
        "rounding": "gelu(gate) too, and so it is less exact",
        "packages": ["liger-kernel", "triton"],
        "devices": ["cuda"],
    },
}
# What a call costs before the kernel runs: on a CPU the input is so small that little else is left.
HOST = {
    "geglu": (ERF, {"cuda": "4x4096", "cpu": "1x64"}),
    "geglu_split": (SPLIT, {"cuda": "4x4096", "cpu": "1x64"}),
}
# Hidden widths of diffusion models and of language models, few rows; then halves that lie off 16 bytes.
SHAPES = "2x1024x5120 2x4096x8192 8192x10240 8192x14336 128x14336 1x14336"
CASES = [
    {"suite": "erf", "name": "erf", "shapes": SHAPES, **ERF},
    {"suite": "tanh", "name": "tanh", "shapes": SHAPES, **TANH},
    {"suite": "split", "name": "tanh split", "shapes": SHAPES, **SPLIT},
    {"suite": "odd", "name": "erf", "shapes": "8192x3420 8192x3421 65536x64", **ERF},
    {"suite": "train", "name": "train erf", "shapes": "2x1024x5120 2x4096x8192 8192x14336", **TRAIN_ERF},
    {"suite": "train", "name": "train tanh", "shapes": "2x1024x5120 2x4096x8192 8192x14336", **TRAIN_TANH},
    *(
        {"suite": "smoke", "name": name, "shapes": "2x16x256", **work}
        for name, work in (("erf", ERF), ("tanh", TANH), ("tanh split", SPLIT), ("train erf", TRAIN_ERF))
    ),
]


class GEGLU(Benchmark):
    """Wall time of one call beside torch's own; `kernelworks bench` measures device time, and more peers.

    The runner wants results within 0.01 of torch's, so they are made small: nearly all are below 0.5, where
    bfloat16 is finer than that. The check in `prepare` is the strict one.
    """

    seed = 0
    dtype = torch.bfloat16

    def prepare(self, work, *shape):
        """Make the inputs, and compare our results with fp64."""
        generator = torch.Generator(self.device).manual_seed(self.seed)
        self.inputs = work["inputs"](shape, self.dtype, self.device, generator, size=0.25)
        self.call = work["ours"](self.kernel)
        self.peer = work["peers"]["torch"]()
        outputs = self.call(*self.inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        truths = work["truth"](self.kernel, slice(None), *self.inputs)
        for name, output, truth in zip(work["outputs"], outputs, truths, strict=True):
            error = (output.detach().double().view_as(truth) - truth).norm() / truth.norm()
            if not error < torch.finfo(self.dtype).eps / 2:
                raise RuntimeError(f"{name} at {shape} is {error:.3g} away from fp64, relative to its size")

    def result(self, call, index):
        """One call, and of its outputs the one to compare."""
        outputs = call(*self.inputs)
        return outputs[index].detach() if isinstance(outputs, tuple) else outputs

    def setup_erf(self):
        self.prepare(ERF, 2, 1024, 5120)

    def benchmark_erf(self):
        self.out = self.result(self.call, 0)

    def verify_erf(self):
        return self.result(self.peer, 0)

    setup_tanh = functools.partialmethod(prepare, TANH, 2, 1024, 5120)
    benchmark_tanh = benchmark_erf
    verify_tanh = verify_erf

    setup_split = functools.partialmethod(prepare, SPLIT, 2, 1024, 5120)
    benchmark_split = benchmark_erf
    verify_split = verify_erf

    setup_forward_backward = functools.partialmethod(prepare, TRAIN_ERF, 2, 256, 5120)

    def benchmark_forward_backward(self):
        self.out = self.result(self.call, 1)  # dx

    def verify_forward_backward(self):
        return self.result(self.peer, 1)
