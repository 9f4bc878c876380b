# SPDX-License-Identifier: Apache-2.0
"""adaLN beside its peers: the cases of `kernelworks bench`, and a class for `kernels benchmark`.

Every peer does the work that we do: the same inputs, dtypes and eps, and each output allocated by the call.
A row of a case is a token, its shape (samples, tokens, width). Results can cancel, y against its shift as
well as a gated sum, so all are compared with the largest of their row (docs/benchmarking.md).
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from kernels.benchmark import Benchmark

EPS = 1e-6


# The inputs. `size` is that of results: nearly all of them are below five times that.


def normal(shape, dtype, device, generator, size=1.0):
    return (size * torch.randn(shape, generator=generator, device=device, dtype=torch.float32)).to(dtype)


def modulators(shape, dtype, device, generator, size=1.0, tokens=1):
    """Gate, scale and shift as models have them: slices of one projection (samples, tokens, 6, width)."""
    projected = normal((shape[0], tokens, 6, shape[2]), torch.float32, device, generator)
    projected[:, :, 0] *= size
    projected[:, :, 1] = size * (1 + projected[:, :, 1] / 2) - 1
    shift, scale, gate, *_ = projected.to(dtype).unbind(dim=2)
    return gate, scale, shift


def norm_inputs(shape, dtype, device, generator, size=1.0):
    """x, scale and shift."""
    x = normal(shape, dtype, device, generator)
    return x, *modulators(shape, dtype, device, generator, size)[1:]


def token_inputs(shape, dtype, device, generator):
    """The same, with modulators of each token."""
    x = normal(shape, dtype, device, generator)
    return x, *modulators(shape, dtype, device, generator, tokens=shape[1])[1:]


def gate_inputs(shape, dtype, device, generator, size=1.0):
    """residual, x and gate."""
    return fused_inputs(shape, dtype, device, generator, size)[:3]


def fused_inputs(shape, dtype, device, generator, size=1.0):
    """residual, x, gate, scale and shift."""
    residual, x = (normal(shape, dtype, device, generator, size) for _ in range(2))
    return residual, x, *modulators(shape, dtype, device, generator, size)


def table_inputs(shape, dtype, device, generator, wide=False):
    """x, then the table and the embedding of the timestep of scale, and of shift; `wide`: those in fp32."""
    x = normal(shape, dtype, device, generator)
    dtype = torch.float32 if wide else dtype
    _, scale, shift = modulators(shape, dtype, device, generator)
    table = normal((6, shape[2]), dtype, device, generator, size=0.1)
    return x, table[1], scale, table[0], shift


def train_inputs(shape, dtype, device, generator, size=1.0, *, inputs, outputs):
    """Those of `inputs`, all to be trained, and a gradient for each of so many outputs."""
    trained = (t.detach().requires_grad_() for t in inputs(shape, dtype, device, generator, size))
    return *trained, *(normal(shape, dtype, device, generator, size) for _ in range(outputs))


# Ours and the peers: callables on those inputs. The peers' are the expressions of models.


def ours_norm(kernel, norm):
    return lambda x, scale, shift: kernel.ada_norm(x, scale, shift, EPS, norm=norm)


def ours_tables(kernel, norm):
    def call(x, scale_table, scale_temb, shift_table, shift_temb):
        return kernel.ada_norm(x, (scale_table, scale_temb), (shift_table, shift_temb), EPS, norm=norm)

    return call


def ours_gate(kernel):
    return kernel.gate_residual


def ours_fused(kernel, norm):
    def call(residual, x, gate, scale, shift):
        return kernel.gate_residual_ada_norm(residual, x, gate, scale, shift, EPS, norm=norm)

    return call


def normalised(x, norm):
    if norm == "layer":
        return F.layer_norm(x, x.shape[-1:], None, None, EPS)
    return F.rms_norm(x, x.shape[-1:], None, EPS)


def model_norm(norm):
    return lambda x, scale, shift: normalised(x, norm) * (1 + scale) + shift


def model_tables(norm, wide):
    """LTX-Video computes in the dtype of x; Wan, `wide`, in fp32, and rounds once."""

    def call(x, scale_table, scale_temb, shift_table, shift_temb):
        scale, shift = scale_table + scale_temb, shift_table + shift_temb
        return (normalised(x.float() if wide else x, norm) * (1 + scale) + shift).to(x.dtype)

    return call


def model_gate(residual, x, gate):
    return residual + x * gate


def model_fused(norm):
    def call(residual, x, gate, scale, shift):
        total = residual + x * gate
        return normalised(total, norm) * (1 + scale) + shift, total

    return call


def trained(forward, inputs):
    """The same with its backward: the outputs, then the gradients of the first so many inputs."""

    def call(*tensors):
        outputs = forward(*tensors[:inputs])
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return *outputs, *torch.autograd.grad(outputs, tensors[:inputs], tensors[inputs:])

    return call


def peers(function, around=lambda call: call):
    return {
        "torch": lambda: around(function),
        "compile": lambda: around(torch.compile(function, dynamic=False, fullgraph=True)),
    }


# The truth, in fp64, of the chosen rows (a slice or an index).


def rows_of(rows, x, *others):
    """These rows of each in fp64; of a modulator, the rows that belong to them."""
    index = torch.arange(math.prod(x.shape[:-1]), device=x.device)[rows]
    place = index // x.shape[1], index % x.shape[1]
    return tuple(t.expand(x.shape)[place].double() for t in (x, *others))


def norm_truth(kernel, rows, *inputs, norm, dtype=None):
    return (kernel.reference.ada_norm(*rows_of(rows, *inputs), EPS, norm=norm),)


def table_truth(kernel, rows, *inputs, norm):
    x, scale_table, scale_temb, shift_table, shift_temb = rows_of(rows, *inputs)
    scale, shift = (scale_table, scale_temb), (shift_table, shift_temb)
    return (kernel.reference.ada_norm(x, scale, shift, EPS, norm=norm),)


def gate_truth(kernel, rows, *inputs):
    return (kernel.reference.gate_residual(*rows_of(rows, *inputs)),)


def fused_truth(kernel, rows, *inputs, norm, dtype=None):
    """What is normalised is the rounded sum; a gradient passes as if it were not."""
    residual, x, gate, scale, shift = rows_of(rows, *inputs)
    total = kernel.reference.gate_residual(residual, x, gate)
    rounded = total + (total.to(dtype or inputs[0].dtype).double() - total).detach()
    return kernel.reference.ada_norm(rounded, scale, shift, EPS, norm=norm), total


def train_truth(kernel, rows, *tensors, truth, inputs):
    """The gradient of a modulator is a sum, here over these rows; the bench adds up."""
    x = tensors[0]
    leaves = [t.detach().double().requires_grad_() for t in tensors[:inputs]]
    with torch.enable_grad():
        outputs = truth(kernel, rows, *leaves, dtype=x.dtype)
        gradients = torch.autograd.grad(outputs, leaves, rows_of(rows, x, *tensors[inputs:])[1:])
    return *(t.detach() for t in outputs), *(
        t.flatten(0, -2)[rows] if t.shape == x.shape else t for t in gradients
    )


# The work.


def traffic(tensors, each_sample, each=0):
    """Bytes of so many tensors of the shape, of so many modulators of each sample, and of so many rows."""
    return lambda shape, itemsize: (
        (tensors * math.prod(shape) + each_sample * shape[0] * shape[-1] + each * shape[-1]) * itemsize
    )


def ada_norm(norm):
    return {
        "inputs": norm_inputs,
        "ours": functools.partial(ours_norm, norm=norm),
        "peers": peers(model_norm(norm)),
        "truth": functools.partial(norm_truth, norm=norm),
        "outputs": {"y": "row"},
        "bytes": traffic(2, 2),
    }


def tables(norm, wide):
    moved = traffic(0, 2, 2)  # of scale and of shift a table and an embedding
    return {
        "inputs": functools.partial(table_inputs, wide=wide),
        "ours": functools.partial(ours_tables, norm=norm),
        "peers": peers(model_tables(norm, wide)),
        "truth": functools.partial(table_truth, norm=norm),
        "outputs": {"y": "row"},
        "bytes": lambda shape, size: 2 * math.prod(shape) * size + moved(shape, 4 if wide else size),
    }


def fused(norm):
    return {
        "inputs": fused_inputs,
        "ours": functools.partial(ours_fused, norm=norm),
        "peers": peers(model_fused(norm)),
        "truth": functools.partial(fused_truth, norm=norm),
        "outputs": {"y": "row", "residual_out": "row"},
        "bytes": traffic(4, 3),
    }


def train(work, rows, sums, moved):
    """The same with its backward: gradients of `rows` are as large as x, of `sums` as a modulator."""
    inputs, outputs = len(rows) + len(sums), len(work["outputs"])
    kinds = {**work["outputs"], **dict.fromkeys(rows, "row"), **dict.fromkeys(sums, "sum")}
    function = work["peers"]["torch"]()
    return {
        "inputs": functools.partial(train_inputs, inputs=work["inputs"], outputs=outputs),
        "ours": lambda kernel: trained(work["ours"](kernel), inputs),
        "peers": peers(function, lambda call: trained(call, inputs)),
        "truth": functools.partial(train_truth, truth=work["truth"], inputs=inputs),
        "outputs": kinds,
        "output_shapes": lambda shape: [
            (shape[0], 1, shape[2]) if kind == "sum" else shape for kind in kinds.values()
        ],
        "bytes": moved,
        "grad": True,
    }


RMS, LAYER = ada_norm("rms"), ada_norm("layer")
TOKENS = {**RMS, "inputs": token_inputs, "bytes": traffic(4, 0)}
GATE = {
    "inputs": gate_inputs,
    "ours": ours_gate,
    "peers": peers(model_gate),
    "truth": gate_truth,
    "outputs": {"residual_out": "row"},
    "bytes": traffic(3, 1),
}
FUSED_RMS, FUSED_LAYER = fused("rms"), fused("layer")
LTX, WAN = tables("rms", wide=False), tables("layer", wide=True)
# Forward, then backward: dy, x and dx; scale and two gradients.
TRAIN = [train(work, ["dx"], ["dscale", "dshift"], traffic(5, 5)) for work in (RMS, LAYER)]
# Forward, then backward: dy and that of residual_out, x, residual_out, dresidual, dx; gate, scale, gradients.
TRAIN_FUSED = [
    train(work, ["dresidual", "dx"], ["dgate", "dscale", "dshift"], traffic(10, 8))
    for work in (FUSED_RMS, FUSED_LAYER)
]

PEERS = {
    "torch": {
        "note": "what models run; SGLang and TensorRT-LLM have fused kernels, inside their servers",
        "rounding": "after each step, and so it is less exact; with Wan's tables once, as ours",
    },
    "compile": {
        "rounding": "only what it stores, and so it may normalise residual_out unrounded",
        "packages": ["triton"],
    },
}
# What a call costs before the kernel runs: on a CPU the input is so small that little else is left.
TINY = {"cuda": "1x4x4096", "cpu": "1x1x64"}
HOST = {
    "ada_norm rms": (RMS, TINY),
    "ada_norm layer": (LAYER, TINY),
    "gate_residual": (GATE, TINY),
    "gate_residual_ada_norm": (FUSED_RMS, TINY),
}
WORK = {
    "rms": RMS,
    "layer": LAYER,
    "gate": GATE,
    "fused rms": FUSED_RMS,
    "fused layer": FUSED_LAYER,
    "LTX tables": LTX,
    "Wan tables": WAN,
    "each token": TOKENS,
    "train rms": TRAIN[0],
    "train layer": TRAIN[1],
    "train fused rms": TRAIN_FUSED[0],
    "train fused layer": TRAIN_FUSED[1],
}
# LTX-Video at two sizes, Wan 1.3B and 14B, 14B at 720p, Flux, DiT-XL.
FUSED_SHAPES = "2x2310x2048 2x6930x2048 1x32760x1536 1x32760x5120 2x4608x3072 8x256x1152"
SHAPES = FUSED_SHAPES.replace("5120 ", "5120 1x75600x5120 ")
LISTED = [
    ("rms", "rms", SHAPES),
    ("layer", "layer", SHAPES),
    ("gate", "gate", "1x32760x5120 2x2310x2048"),
    ("fused", "fused rms", FUSED_SHAPES),
    ("fused", "fused layer", FUSED_SHAPES),
    ("tables", "LTX tables", "2x2310x2048 2x6930x2048"),
    ("tables", "Wan tables", "1x32760x1536 1x32760x5120"),
    ("tables", "each token", "2x2310x2048"),
    ("train", "train rms", "2x2310x2048 2x4608x3072"),
    ("train", "train layer", "2x2310x2048 2x4608x3072"),
    ("train", "train fused rms", "2x2310x2048"),
    ("train", "train fused layer", "2x2310x2048"),
    *(("smoke", name, "2x16x256") for name in WORK if name not in ("train layer", "train fused rms")),
]
CASES = [{"suite": suite, "name": name, "shapes": shapes, **WORK[name]} for suite, name, shapes in LISTED]


class AdaLN(Benchmark):
    """Wall time of one call beside torch's own; `kernelworks bench` measures device time, and more peers.

    The runner wants results within 0.01 of torch's, so they are made small: nearly all are below 0.5, where
    bfloat16 is finer than that. The check in `prepare` is the strict one.
    """

    seed = 0
    dtype = torch.bfloat16
    size = 0.05

    def prepare(self, work, *shape):
        """Make the inputs, and compare our results with fp64."""
        generator = torch.Generator(self.device).manual_seed(self.seed)
        self.inputs = work["inputs"](shape, self.dtype, self.device, generator, self.size)
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

    def setup_rms(self):
        self.prepare(RMS, 2, 2310, 2048)

    def benchmark_rms(self):
        self.out = self.result(self.call, 0)

    def verify_rms(self):
        return self.result(self.peer, 0)

    setup_layer = functools.partialmethod(prepare, LAYER, 2, 2310, 2048)
    benchmark_layer = benchmark_rms
    verify_layer = verify_rms

    setup_gate_residual = functools.partialmethod(prepare, GATE, 2, 2310, 2048)
    benchmark_gate_residual = benchmark_rms
    verify_gate_residual = verify_rms

    setup_gate_residual_ada_norm = functools.partialmethod(prepare, FUSED_RMS, 2, 2310, 2048)
    benchmark_gate_residual_ada_norm = benchmark_rms
    verify_gate_residual_ada_norm = verify_rms

    setup_forward_backward = functools.partialmethod(prepare, TRAIN[0], 2, 1024, 2048)

    def benchmark_forward_backward(self):
        self.out = self.result(self.call, 1)  # dx

    def verify_forward_backward(self):
        return self.result(self.peer, 1)
