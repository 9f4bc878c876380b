# SPDX-License-Identifier: Apache-2.0
"""RMSNorm beside its peers: the cases of `kernelworks bench`, and a class for `kernels benchmark`.

Every peer does the work that we do: the same inputs, dtypes and eps, and each output allocated by the call.
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from kernels.benchmark import Benchmark

EPS = 1e-6


# The inputs. `mean` is the mean of the weights.


def forward_inputs(shape, dtype, device, generator, mean=1.0):
    """x and weight."""
    x = torch.randn(shape, generator=generator, device=device, dtype=dtype)
    noise = torch.randn(shape[-1], generator=generator, device=device, dtype=torch.float32)
    return x, (mean + 0.1 * mean * noise).to(dtype)


def add_inputs(shape, dtype, device, generator, mean=1.0):
    """x, residual and weight."""
    x, weight = forward_inputs(shape, dtype, device, generator, mean)
    return x, torch.randn(shape, generator=generator, device=device, dtype=dtype), weight


def train_inputs(shape, dtype, device, generator, mean=1.0):
    """x and weight, both to be trained, and the gradient that comes back."""
    x, dy, weight = add_inputs(shape, dtype, device, generator, mean)
    return x.requires_grad_(), weight.requires_grad_(), dy


# Ours and the peers: callables on those inputs.


def ours_forward(kernel):
    return lambda x, weight: kernel.rms_norm(x, weight, EPS)


def ours_add(kernel):
    return lambda x, residual, weight: kernel.add_rms_norm(x, residual, weight, EPS)


def torch_forward(x, weight):
    return F.rms_norm(x, weight.shape, weight, EPS)


def unfused_forward(x, weight):
    """The arithmetic of transformers' LlamaRMSNorm and Qwen3RMSNorm."""
    wide = x.to(torch.float32)
    variance = wide.pow(2).mean(-1, keepdim=True)
    return weight * (wide * torch.rsqrt(variance + EPS)).to(x.dtype)


def added(forward):
    """The same after a residual addition, whose sum is an output too."""

    def call(x, residual, weight):
        total = x + residual
        return forward(total, weight), total

    return call


def trained(forward):
    """The same with its backward: y, dx and dw."""

    def call(x, weight, dy):
        y = forward(x, weight)
        return y, *torch.autograd.grad(y, (x, weight), dy)

    return call


def compiled(function):
    return torch.compile(function, dynamic=False)


# The truth, in fp64, of the chosen rows (a slice or an index).


def forward_truth(kernel, rows, x, weight):
    return (kernel.reference.rms_norm(x.flatten(0, -2)[rows], weight, EPS),)


def add_truth(kernel, rows, x, residual, weight):
    x, residual = (t.flatten(0, -2)[rows] for t in (x, residual))
    return kernel.reference.add_rms_norm(x, residual, weight, EPS)


def train_truth(kernel, rows, x, weight, dy):
    x, weight = (t.detach().double().requires_grad_() for t in (x.flatten(0, -2)[rows], weight))
    with torch.enable_grad():
        y = kernel.reference.rms_norm(x, weight, EPS)
        return y.detach(), *torch.autograd.grad(y, (x, weight), dy.flatten(0, -2)[rows].double())


def traffic(tensors, vectors):
    """Bytes of so many tensors of the shape, and so many of the last dimension: each read or written once."""
    return lambda shape, itemsize: (tensors * math.prod(shape) + vectors * shape[-1]) * itemsize


# A peer is an entry here: a function without arguments that returns the callable. One that raises
# ImportError is reported as missing. A kernel that is compared with the truth has outputs of three kinds:
# "value", each against its own size; "row", against the largest of its row, as terms of that size may
# cancel in it; "sum", over all rows, against the largest of all.
FORWARD = {
    "inputs": forward_inputs,
    "ours": ours_forward,
    "peers": {
        "torch": lambda: torch_forward,
        "unfused": lambda: unfused_forward,
        "compile": lambda: compiled(torch_forward),
    },
    "truth": forward_truth,
    "outputs": {"y": "value"},
    "bytes": traffic(2, 1),
}
ADD = {
    "inputs": add_inputs,
    "ours": ours_add,
    "peers": {
        "torch": lambda: added(torch_forward),
        "unfused": lambda: added(unfused_forward),
        "compile": lambda: compiled(added(torch_forward)),
    },
    "truth": add_truth,
    "outputs": {"y": "value", "residual_out": "value"},
    "bytes": traffic(4, 1),
}
TRAIN = {
    "inputs": train_inputs,
    "ours": lambda kernel: trained(ours_forward(kernel)),
    "peers": {
        "torch": lambda: trained(torch_forward),
        "unfused": lambda: trained(unfused_forward),
        "compile": lambda: trained(compiled(torch_forward)),
    },
    "truth": train_truth,
    "outputs": {"y": "value", "dx": "row", "dw": "sum"},
    "bytes": traffic(5, 3),  # forward: x, y; backward: dy, x, dx; the weight twice, its gradient once
    "grad": True,
}

PEER_NOTES = {"unfused": "rounds before the weight, as the models do, and so is less exact"}
# What a call costs before the kernel runs: on a CPU the input is so small that little else is left.
HOST = {
    "rms_norm": (FORWARD, {"cuda": (4, 4096), "cpu": (1, 64)}),
    "add_rms_norm": (ADD, {"cuda": (4, 4096), "cpu": (1, 64)}),
}

_SHAPES = {
    ("seed", "LTX-Video"): "1x1024x2048 4x1024x2048 2x4096x3072 1x8192x2048 4x4096x3072",
    ("seed", "Qwen3-8B"): "1x128x4096 1x1024x4096 1x4096x4096 1x8192x4096 32768x4096",
    ("seed", "wide"): "8192x8192 4096x16384 1024x65536",
    ("seed", "qk-norm"): "262144x128 65536x64",
    ("add", "add"): "128x4096 4096x4096 32768x4096 8192x8192",
    ("train", "train"): "4096x4096 32768x4096 8192x8192 16384x2048",
    ("smoke", "LTX-Video"): "2x16x2048",
    ("smoke", "qk-norm"): "256x64",
    ("smoke", "add"): "8x4096",
    ("smoke", "train"): "16x1024",
}
CASES = [
    {
        "suite": suite,
        "name": name,
        "shape": tuple(map(int, shape.split("x"))),
        **{"add": ADD, "train": TRAIN}.get(name, FORWARD),
    }
    for (suite, name), shapes in _SHAPES.items()
    for shape in shapes.split()
]


class RMSNorm(Benchmark):
    """Wall time of one call beside torch's own; `kernelworks bench` measures device time, and more peers.

    The runner wants results within 0.01 of torch's. With weights of about 0.1 results are below 1 and the
    spacing of bfloat16 is finer than that; the check in `prepare` is the strict one.
    """

    seed = 0
    dtype = torch.bfloat16

    def prepare(self, work, *shape):
        """Make the inputs, and compare our results with fp64."""
        generator = torch.Generator(self.device).manual_seed(self.seed)
        self.inputs = work["inputs"](shape, self.dtype, self.device, generator, mean=0.1)
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

    def setup_ltx_video(self):
        self.prepare(FORWARD, 4, 1024, 2048)

    def benchmark_ltx_video(self):
        self.out = self.result(self.call, 0)

    def verify_ltx_video(self):
        return self.result(self.peer, 0)

    setup_qwen3_8b = functools.partialmethod(prepare, FORWARD, 1, 1024, 4096)
    benchmark_qwen3_8b = benchmark_ltx_video
    verify_qwen3_8b = verify_ltx_video

    setup_qk_norm = functools.partialmethod(prepare, FORWARD, 65536, 128)
    benchmark_qk_norm = benchmark_ltx_video
    verify_qk_norm = verify_ltx_video

    setup_add_rms_norm = functools.partialmethod(prepare, ADD, 1024, 4096)
    benchmark_add_rms_norm = benchmark_ltx_video
    verify_add_rms_norm = verify_ltx_video

    setup_forward_backward = functools.partialmethod(prepare, TRAIN, 1024, 4096)

    def benchmark_forward_backward(self):
        self.out = self.result(self.call, 1)  # dx

    def verify_forward_backward(self):
        return self.result(self.peer, 1)
