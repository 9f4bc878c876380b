# SPDX-License-Identifier: Apache-2.0
"""RMSNorm beside its peers: the cases of `kernelworks bench`, and a class for `kernels benchmark`.

Every peer does the work that we do: the same inputs, dtypes and eps, and each output allocated by the call.
docs/benchmarking.md of the repository says what a file like this one holds.
"""

from __future__ import annotations

import functools
import importlib
import math

import torch
import torch.nn.functional as F
from kernels.benchmark import Benchmark

EPS = 1e-6
Q_HEADS, K_HEADS, HEAD = 32, 8, 128


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


def heads_inputs(shape, dtype, device, generator, packed=False):
    """q and k as views of a fused projection q, k, v, or each packed, with a weight for each.

    The weights come a second time, repeated for every head, as quack wants them to read views in place.
    """
    tokens, width = shape
    assert width == (Q_HEADS + 2 * K_HEADS) * HEAD
    qkv = torch.randn(shape, generator=generator, device=device, dtype=dtype)
    q, k, _ = qkv.view(tokens, -1, HEAD).split((Q_HEADS, K_HEADS, K_HEADS), 1)
    if packed:
        q, k = q.contiguous(), k.contiguous()
    noise = torch.randn(2, HEAD, generator=generator, device=device, dtype=torch.float32)
    weights = (1 + 0.1 * noise).to(dtype)
    q_weights, k_weights = (w.repeat(n, 1) for w, n in zip(weights, (Q_HEADS, K_HEADS), strict=True))
    return q, k, *weights, q_weights, k_weights


def packed_inputs(*arguments):
    return heads_inputs(*arguments, packed=True)


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


def liger_forward():
    """Its "gemma" casts are ours: fp32 throughout, rounded once."""
    norm = liger().LigerRMSNormFunction.apply
    return lambda x, weight: norm(x, weight, EPS, 0.0, "gemma", False)


def liger_add():
    norm = liger().LigerFusedAddRMSNormFunction.apply
    return lambda x, residual, weight: norm(x, residual, weight, EPS, 0.0, "gemma", False)


def liger():
    return importlib.import_module("liger_kernel.ops")


def quack_forward():
    norm = importlib.import_module("quack").rmsnorm
    return lambda x, weight: norm(x, weight, eps=EPS)


def quack_add():
    norm = importlib.import_module("quack").rmsnorm
    return lambda x, residual, weight: norm(x, weight, residual=residual, eps=EPS, prenorm=True)


def on_heads(forward):
    """The same for q and for k."""
    return lambda q, k, q_weight, k_weight, *_: (forward(q, q_weight), forward(k, k_weight))


def quack_heads():
    forward = quack_forward()
    return lambda q, k, _q, _k, q_weights, k_weights: (forward(q, q_weights), forward(k, k_weights))


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


def heads_truth(kernel, rows, q, k, q_weight, k_weight, *_):
    return tuple(kernel.reference.rms_norm(x[rows], w, EPS) for x, w in ((q, q_weight), (k, k_weight)))


def train_truth(kernel, rows, x, weight, dy):
    x, weight = (t.detach().double().requires_grad_() for t in (x.flatten(0, -2)[rows], weight))
    with torch.enable_grad():
        y = kernel.reference.rms_norm(x, weight, EPS)
        return y.detach(), *torch.autograd.grad(y, (x, weight), dy.flatten(0, -2)[rows].double())


def traffic(tensors, vectors):
    """Bytes of so many tensors of the shape, and so many of the last dimension: each read or written once."""
    return lambda shape, itemsize: (tensors * math.prod(shape) + vectors * shape[-1]) * itemsize


FORWARD = {
    "inputs": forward_inputs,
    "ours": ours_forward,
    "peers": {
        "torch": lambda: torch_forward,
        "unfused": lambda: unfused_forward,
        "compile": lambda: compiled(torch_forward),
        "liger": liger_forward,
        "quack": quack_forward,
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
        "liger": liger_add,
        "quack": quack_add,
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
        "liger": lambda: trained(liger_forward()),
        "quack": lambda: trained(quack_forward()),
    },
    "truth": train_truth,
    "outputs": {"y": "value", "dx": "row", "dw": "sum"},
    "bytes": traffic(5, 3),  # forward: x, y; backward: dy, x, dx; the weight twice, its gradient once
    "grad": True,
}

VIEWS = {  # the q and k of Qwen3-8B, each row of the case a token
    "inputs": heads_inputs,
    "ours": lambda kernel: on_heads(ours_forward(kernel)),
    "peers": {
        "torch": lambda: on_heads(torch_forward),
        "unfused": lambda: on_heads(unfused_forward),
        "compile": lambda: compiled(on_heads(torch_forward)),
        "liger": lambda: on_heads(liger_forward()),
        "quack": quack_heads,
    },
    "truth": heads_truth,
    "outputs": {"q": "value", "k": "value"},
    "output_shapes": lambda shape: ((shape[0], Q_HEADS, HEAD), (shape[0], K_HEADS, HEAD)),
    "bytes": lambda shape, itemsize: 2 * (shape[0] * (Q_HEADS + K_HEADS) + 1) * HEAD * itemsize,
}
PACKED = {**VIEWS, "inputs": packed_inputs}

PEERS = {
    "torch": {"note": "copies views first, on a GPU"},
    "unfused": {"rounding": "before the weight too, as the models do, and so it is less exact"},
    "compile": {"packages": ["triton"]},
    "liger": {
        "note": 'with casting_mode "gemma", which rounds as ours, and in_place off; copies views first',
        "packages": ["liger-kernel", "triton"],
        "devices": ["cuda"],
    },
    "quack": {
        "note": "reads views in place, in its per-head mode",
        "rounding": "x + residual after normalising it",
        "packages": ["quack-kernels", "nvidia-cutlass-dsl"],
        "devices": ["cuda"],
    },
}
# What a call costs before the kernel runs: on a CPU the input is so small that little else is left.
HOST = {
    "rms_norm": (FORWARD, {"cuda": "4x4096", "cpu": "1x64"}),
    "add_rms_norm": (ADD, {"cuda": "4x4096", "cpu": "1x64"}),
}
LTX = "1x1024x2048 4x1024x2048 2x4096x3072 1x8192x2048 4x4096x3072"
QWEN3 = "1x128x4096 1x1024x4096 1x4096x4096 1x8192x4096 32768x4096"
CASES = [
    {"suite": "seed", "name": "LTX-Video", "shapes": LTX, **FORWARD},
    {"suite": "seed", "name": "Qwen3-8B", "shapes": QWEN3, **FORWARD},
    {"suite": "wide", "name": "wide", "shapes": "8192x8192 4096x16384 1024x65536", **FORWARD},
    {"suite": "qknorm", "name": "qk-norm", "shapes": "262144x128 65536x64", **FORWARD},
    {"suite": "qknorm", "name": "qk packed", "shapes": "1024x6144 8192x6144", **PACKED},
    {"suite": "qknorm", "name": "qk views", "shapes": "1024x6144 8192x6144", **VIEWS},
    {"suite": "add", "name": "add", "shapes": "128x4096 4096x4096 32768x4096 8192x8192", **ADD},
    {"suite": "train", "name": "train", "shapes": "4096x4096 32768x4096 8192x8192 16384x2048", **TRAIN},
    {"suite": "smoke", "name": "LTX-Video", "shapes": "2x16x2048", **FORWARD},
    {"suite": "smoke", "name": "qk-norm", "shapes": "256x64", **FORWARD},
    {"suite": "smoke", "name": "qk views", "shapes": "8x6144", **VIEWS},
    {"suite": "smoke", "name": "add", "shapes": "8x4096", **ADD},
    {"suite": "smoke", "name": "train", "shapes": "16x1024", **TRAIN},
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
