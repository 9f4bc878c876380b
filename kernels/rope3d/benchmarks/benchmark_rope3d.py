# SPDX-License-Identifier: Apache-2.0
"""rope3d beside its peers: the cases of `kernelworks bench`, and a class for `kernels benchmark`.

A row of a case is a token, its shape (samples, tokens, lanes of q in all heads). Ours works angles out from
coordinates; peers are given the tables that their models make, in the dtype in which they make them, and
the making is not timed. The bytes of a case are those of q and k alone, in and out. Pairs turn without
becoming longer, but one lane of a pair may become small, so results are compared with the largest of their
token.
"""

from __future__ import annotations

import functools
import importlib
import math

import torch
import torch.nn.functional as F
from kernels.benchmark import Benchmark

EPS = 1e-6
SECTIONS = [16, 24, 24]  # pairs of Qwen2.5-VL that turn by frame, row and column


def normal(shape, dtype, device, generator, size=1.0):
    return (size * torch.randn(shape, generator=generator, device=device, dtype=torch.float32)).to(dtype)


# The inputs: q, k, where tokens are, how fast pairs turn, and the tables that a model would make of that.


def frequencies(head, axes, device):
    """inv_freq and axis of so many coordinates, which the pairs take in turn; the first may stand still."""
    pairs = head // 2
    each = pairs // axes
    exponents = torch.arange(each, device=device, dtype=torch.float32) / max(each, 1)
    still = torch.zeros(pairs - axes * each, device=device)
    inv_freq = torch.cat([still, (10000.0**-exponents).repeat_interleave(axes)])
    axis = torch.arange(pairs, device=device, dtype=torch.int32) % axes
    return inv_freq, axis


def places(tokens, axes, device):
    """Coordinates as of a video of about 16 rows and columns, or one after the other."""
    index = torch.arange(tokens, device=device)
    grid = (index // 256, index // 16 % 16, index % 16) if axes == 3 else (index,)
    return torch.stack(grid, -1).float()


def size_of(heads, samples, tokens, head):
    """(B, T, H, D), or (B, T, D) as LTX-Video has it, which turns before it splits heads."""
    return (samples, tokens, head) if heads == 1 else (samples, tokens, heads, head)


def turning_inputs(
    shape, dtype, device, generator, size=1.0, *, heads, axes, table, interleaved, first=False
):
    """q, k, coords, inv_freq, axis, cos and sin. `first`: views with heads before tokens."""
    samples, tokens, width = shape
    head = width // heads[0]
    q, k = (normal(size_of(n, samples, tokens, head), dtype, device, generator, size) for n in heads)
    coords = places(tokens, axes, device)
    inv_freq, axis = frequencies(head, axes, device)
    angle = coords[:, axis.long()] * inv_freq
    both = angle.repeat_interleave(2, -1) if interleaved else torch.cat([angle, angle], -1)
    per_sample = both.expand(samples, -1, -1).contiguous()
    cos, sin = per_sample.cos().to(table or dtype), per_sample.sin().to(table or dtype)
    if first:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    return q, k, coords, inv_freq, axis, cos, sin


def wan_inputs(*args, **options):
    """The same, and the tables as quack wants them, with an entry for each pair."""
    *inputs, cos, sin = turning_inputs(*args, **options)
    return *inputs, cos, sin, *(t[0, :, 0::2].contiguous() for t in (cos, sin))


def mrope_inputs(*args, **options):
    """The same for Qwen2.5-VL, whose pairs have an axis by section, and which makes tables of each axis."""
    q, k, coords, _, _, cos, sin = turning_inputs(*args, **options)
    inv_freq, _ = frequencies(q.shape[-1], 1, q.device)
    sections = torch.tensor(SECTIONS, device=q.device)
    axis = torch.arange(3, dtype=torch.int32, device=q.device).repeat_interleave(sections)
    angle = (coords.T[:, None, :, None] * inv_freq).expand(-1, q.shape[0], -1, -1)
    both = torch.cat([angle, angle], -1)
    return q, k, coords, inv_freq, axis, both.cos().to(cos.dtype), both.sin().to(sin.dtype)


def normed_inputs(shape, dtype, device, generator, size=1.0, *, full, **options):
    """The same, with a weight for q and for k behind them."""
    inputs = turning_inputs(shape, dtype, device, generator, size, **options)
    lengths = [t[0, 0].numel() if full else t.shape[-1] for t in inputs[:2]]
    return *inputs, *(1 + normal((n,), dtype, device, generator, 0.1) for n in lengths)


def tokens_first(call, first):
    """The same with results that have tokens before heads, as the check wants them."""
    return (lambda *tensors: tuple(t.transpose(1, 2) for t in call(*tensors))) if first else call


# Ours.


def ours_turned(kernel, *, interleaved, first=False):
    def call(q, k, coords, inv_freq, axis, *_):
        return kernel.rope3d(q, k, coords, inv_freq, axis, interleaved=interleaved, heads_first=first)

    return tokens_first(call, first)


def ours_tables(kernel, *, interleaved, first=False):
    def call(q, k, _coords, _inv_freq, _axis, cos, sin, *_):
        return kernel.apply_rotary(q, k, cos, sin, interleaved=interleaved, heads_first=first)

    return tokens_first(call, first)


def ours_normed(kernel, *, interleaved, full, first=False):
    options = {"norm": "full" if full else "head", "interleaved": interleaved, "heads_first": first}

    def call(q, k, coords, inv_freq, axis, _cos, _sin, q_weight, k_weight):
        return kernel.rms_norm_rope3d(q, k, q_weight, k_weight, coords, inv_freq, axis, eps=EPS, **options)

    return tokens_first(call, first)


# The peers' expressions, as models write them.


def ltx_turn(x, cos, sin):
    """diffusers' apply_rotary_emb of LTX-Video, in fp32, over the inner dimension."""
    real, imaginary = x.unflatten(2, (-1, 2)).unbind(-1)
    turned = torch.stack([-imaginary, real], dim=-1).flatten(2)
    return (x.float() * cos + turned.float() * sin).to(x.dtype)


def wan_turn(x, cos, sin):
    """diffusers' apply_rotary_emb of Wan, whose tables have an entry for each lane too."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos.unsqueeze(2)[..., 0::2], sin.unsqueeze(2)[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2).type_as(x)


def qwen_turn(x, cos, sin):
    """transformers' apply_rotary_pos_emb, on heads before tokens, in x's dtype."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def both(turn, first=False):
    def call(q, k, _coords, _inv_freq, _axis, cos, sin, *_):
        return turn(q, cos, sin), turn(k, cos, sin)

    return tokens_first(call, first)


def both_by_angles(turn, interleaved, first=False):
    """The same, with the tables made in the same graph."""

    def call(q, k, coords, inv_freq, axis, cos, *_):
        angle = (coords[:, axis.long()] * inv_freq).unsqueeze(0)
        lanes = angle.repeat_interleave(2, -1) if interleaved else torch.cat([angle, angle], -1)
        cos, sin = lanes.cos().to(cos.dtype), lanes.sin().to(cos.dtype)
        return turn(q, cos, sin), turn(k, cos, sin)

    return tokens_first(call, first)


def mrope_turns(q, k, _coords, _inv_freq, _axis, cos, sin):
    """transformers' apply_multimodal_rotary_pos_emb."""
    cos, sin = (
        torch.cat([part[i % 3] for i, part in enumerate(table.split(SECTIONS * 2, dim=-1))], -1)
        for table in (cos, sin)
    )
    return qwen_turn(q, cos, sin), qwen_turn(k, cos, sin)


def both_normed(turn, full, first=False, around=lambda call: call):
    """The same behind the norm of the model: over all heads, or over one, with torch's rms_norm.

    `around` compiles each half by itself, which Inductor makes more of than of both in one graph.
    """

    def norms(q, k, q_weight, k_weight):
        return tuple(norm(x, weight) for x, weight in ((q, q_weight), (k, k_weight)))

    def norm(x, weight):
        flat = x.flatten(2) if full else x
        return F.rms_norm(flat, weight.shape, weight, EPS).view(x.shape)

    def turns(q, k, cos, sin):
        return turn(q, cos, sin), turn(k, cos, sin)

    norms, turns = around(norms), around(turns)

    def call(q, k, _coords, _inv_freq, _axis, cos, sin, q_weight, k_weight):
        return turns(*norms(q, k, q_weight, k_weight), cos, sin)

    return tokens_first(call, first)


def liger_turn():
    """Writes over q and k unless they are copied: it is given copies, as the model's own tensors live on."""
    apply = importlib.import_module("liger_kernel.ops.rope").LigerRopeFunction.apply
    return tokens_first(
        lambda q, k, _coords, _inv_freq, _axis, *tables: apply(q.clone(), k.clone(), *tables), True
    )


def liger_mrope():
    apply = importlib.import_module("liger_kernel.ops.qwen2vl_mrope").LigerQwen2VLMRopeFunction.apply
    return tokens_first(
        lambda q, k, _coords, _inv_freq, _axis, *tables: apply(q.clone(), k.clone(), *tables, SECTIONS), True
    )


def quack_turn():
    apply = importlib.import_module("quack.rotary").apply_rotary_emb

    def call(q, k, _coords, _inv_freq, _axis, _cos, _sin, cos, sin):
        return apply(q, cos, sin, interleaved=True), apply(k, cos, sin, interleaved=True)

    return call


def trained(forward, inputs, where):
    """The same with its backward: the outputs, then the gradients of these inputs."""

    def call(*tensors):
        outputs = forward(*tensors[:inputs])
        return *outputs, *torch.autograd.grad(outputs, [tensors[i] for i in where], tensors[inputs:])

    return call


def compiled(function):
    return torch.compile(function, dynamic=False, fullgraph=True)


# The truth, in fp64, of the chosen tokens (a slice or an index of those of all samples).


def chosen(rows, q, k, coords, *, first):
    """These tokens of q and k as (1, rows, H, D) in fp64, and where they are."""
    if first:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    if q.dim() == 3:
        q, k = q.unsqueeze(2), k.unsqueeze(2)
    index = torch.arange(q.shape[0] * q.shape[1], device=q.device)[rows]
    return *(t.flatten(0, 1)[rows].unsqueeze(0).double() for t in (q, k)), coords[index % q.shape[1]]


def turned_truth(kernel, rows, q, k, coords, inv_freq, axis, *_, interleaved, first=False):
    q, k, coords = chosen(rows, q, k, coords, first=first)
    angle = kernel.reference.angles(coords, inv_freq, axis)
    return tuple(
        kernel.reference.rotate(x, angle.cos(), angle.sin(), interleaved=interleaved)[0] for x in (q, k)
    )


def normed_truth(
    kernel, rows, q, k, coords, inv_freq, axis, _cos, _sin, *rest, interleaved, full, first=False
):
    q, k, coords = chosen(rows, q, k, coords, first=first)
    angle = kernel.reference.angles(coords, inv_freq, axis)
    norm = functools.partial(kernel.reference.rms_norm, eps=EPS, norm="full" if full else "head")
    return tuple(
        kernel.reference.rotate(norm(x, weight), angle.cos(), angle.sin(), interleaved=interleaved)[0]
        for x, weight in ((q, rest[0]), (k, rest[1]))
    )


def train_inputs(shape, dtype, device, generator, size=1.0, *, where, **options):
    """Those of a norm, of which some are to be trained, and a gradient for each output."""
    inputs = list(normed_inputs(shape, dtype, device, generator, size, **options))
    for i in where:
        inputs[i] = inputs[i].detach().requires_grad_()
    return *inputs, *(normal(t.shape, dtype, device, generator, size) for t in inputs[:2])


def train_truth(kernel, rows, *tensors, **options):
    """The gradient of a weight is a sum, here over these tokens; the bench adds up."""
    q, k, coords, inv_freq, axis, cos, sin, q_weight, k_weight, *grads = tensors
    dq, dk, _ = chosen(rows, *grads, coords, first=False)
    leaves = [
        t.double().requires_grad_() for t in chosen(rows, q.detach(), k.detach(), coords, first=False)[:2]
    ]
    coords = chosen(rows, q, k, coords, first=False)[2]
    weights = [t.detach().double().requires_grad_() for t in (q_weight, k_weight)]
    with torch.enable_grad():
        outputs = normed_truth(
            kernel, slice(None), *leaves, coords, inv_freq, axis, cos, sin, *weights, **options
        )
        wanted = torch.autograd.grad(outputs, (*leaves, *weights), (dq[0], dk[0]))
    return *(t.detach() for t in outputs), wanted[0][0], wanted[1][0], wanted[2], wanted[3]


# The work.


def output_shapes(shape, *, heads):
    samples, tokens, width = shape
    return tuple(size_of(n, samples, tokens, width // heads[0]) for n in heads)


def traffic(shape, itemsize, *, heads, times=2):
    samples, tokens, width = shape
    return times * samples * tokens * (width // heads[0]) * sum(heads) * itemsize


def work(turn, *, heads, axes, table, interleaved, first=False, peers=None):
    """q and k turned, without a table."""
    expression = both(turn, first)
    return {
        "inputs": functools.partial(
            turning_inputs, heads=heads, axes=axes, table=table, interleaved=interleaved, first=first
        ),
        "ours": functools.partial(ours_turned, interleaved=interleaved, first=first),
        "peers": {
            "torch": lambda: expression,
            "compile": lambda: compiled(expression),
            "compile angles": lambda: compiled(both_by_angles(turn, interleaved, first)),
            **(peers or {}),
        },
        "truth": functools.partial(turned_truth, interleaved=interleaved, first=first),
        "outputs": {"q": "row", "k": "row"},
        "output_shapes": functools.partial(output_shapes, heads=heads),
        "bytes": functools.partial(traffic, heads=heads),
    }


def normed(turn, base, *, full, heads, axes, table, interleaved, first=False):
    """The norm in front."""
    expression = both_normed(turn, full, first)
    options = {"interleaved": interleaved, "full": full, "first": first}
    return {
        **base,
        "inputs": functools.partial(
            normed_inputs,
            full=full,
            heads=heads,
            axes=axes,
            table=table,
            interleaved=interleaved,
            first=first,
        ),
        "ours": functools.partial(ours_normed, **options),
        "peers": {
            "torch": lambda: expression,
            "compile": lambda: compiled(expression),
            "compile apart": lambda: both_normed(turn, full, first, compiled),
        },
        "truth": functools.partial(normed_truth, **options),
    }


LTX_FORM = {"heads": (1, 1), "axes": 3, "table": torch.float32, "interleaved": True}
WAN_FORM = {"heads": (40, 40), "axes": 3, "table": torch.float32, "interleaved": True}
QWEN_FORM = {"heads": (32, 8), "axes": 1, "table": None, "interleaved": False, "first": True}
MROPE_FORM = {"heads": (28, 4), "axes": 3, "table": None, "interleaved": False, "first": True}
LTX = work(ltx_turn, **LTX_FORM)
WAN = {
    **work(wan_turn, **WAN_FORM, peers={"quack": quack_turn}),
    "inputs": functools.partial(wan_inputs, **WAN_FORM),
}
QWEN = work(qwen_turn, **QWEN_FORM, peers={"liger": liger_turn})
MROPE = {
    **work(qwen_turn, **MROPE_FORM, peers={"liger": liger_mrope}),
    "inputs": functools.partial(mrope_inputs, **MROPE_FORM),
}
MROPE_TURNS = tokens_first(mrope_turns, True)
MROPE["peers"] |= {"torch": lambda: MROPE_TURNS, "compile": lambda: compiled(MROPE_TURNS)}


def by_tables(base, **options):
    """The same by the model's tables, which are then what it is about: no peer makes them."""
    peers = {name: peer for name, peer in base["peers"].items() if name != "compile angles"}
    return {**base, "ours": functools.partial(ours_tables, **options), "peers": peers}


TABLES = {
    "LTX tables": by_tables(LTX, interleaved=True),
    "Wan tables": by_tables(WAN, interleaved=True),
    "Qwen3 tables": by_tables(QWEN, interleaved=False, first=True),
}
LTX_NORM = normed(ltx_turn, LTX, full=True, **LTX_FORM)
WAN_NORM = normed(wan_turn, WAN, full=True, **WAN_FORM)
QWEN_NORM = normed(qwen_turn, QWEN, full=False, **QWEN_FORM)
TRAINED = (0, 1, 7, 8)
TRAIN = {
    **LTX_NORM,
    "inputs": functools.partial(train_inputs, where=TRAINED, full=True, **LTX_FORM),
    "ours": lambda kernel: trained(LTX_NORM["ours"](kernel), 9, TRAINED),
    "peers": {
        "torch": lambda: trained(both_normed(ltx_turn, True), 9, TRAINED),
        "compile": lambda: trained(compiled(both_normed(ltx_turn, True)), 9, TRAINED),
        "compile apart": lambda: trained(both_normed(ltx_turn, True, around=compiled), 9, TRAINED),
    },
    "truth": functools.partial(train_truth, interleaved=True, full=True),
    "outputs": {"q": "row", "k": "row", "dq": "row", "dk": "row", "dq_weight": "sum", "dk_weight": "sum"},
    "output_shapes": lambda shape: (*output_shapes(shape, heads=(1, 1)) * 2, shape[-1:], shape[-1:]),
    "bytes": functools.partial(traffic, heads=(1, 1), times=5),  # forward, then dy and x in, dx out
    "grad": True,
}

PEERS = {
    "torch": {
        "note": "the model's expression, tables given",
        "rounding": "Qwen3's after each product, and each norm before it turns, and so it is less exact",
    },
    "compile": {"note": "the same expression, in one graph", "packages": ["triton"]},
    "compile angles": {
        "note": "coordinates to angles and tables in the same graph",
        "packages": ["triton"],
    },
    "compile apart": {
        "note": "the norms in one graph and the rotations in another",
        "rounding": "each norm before it turns",
        "packages": ["triton"],
    },
    "liger": {
        "note": "turns in place: its copies of q and k are counted",
        "rounding": "tables of the model's dtype",
        "packages": ["liger-kernel", "triton"],
        "devices": ["cuda"],
    },
    "quack": {
        "note": "one tensor at a time",
        "packages": ["quack-kernels", "nvidia-cutlass-dsl"],
        "devices": ["cuda"],
    },
}
# What a call costs before the kernel runs: on a CPU the input is so small that little else is left.
TINY = {"cuda": "1x4x4096", "cpu": "1x1x64"}
HOST = {
    "rope3d": (LTX, TINY),
    "apply_rotary": (TABLES["LTX tables"], TINY),
    "rms_norm_rope3d": (LTX_NORM, TINY),
}
VIDEO, SEQUENCE, PREFILL = "2x2310x2048 2x6930x2048 1x32760x1536", "1x32760x5120 1x75600x5120", "1x8192x4096"
CASES = [
    {"suite": "rope", "name": "LTX", "shapes": VIDEO, **LTX},
    {"suite": "rope", "name": "Wan", "shapes": SEQUENCE, **WAN},
    {"suite": "rope", "name": "Qwen3", "shapes": PREFILL, **QWEN},
    {"suite": "rope", "name": "Qwen2.5-VL", "shapes": "1x8192x3584", **MROPE},
    {"suite": "tables", "name": "LTX tables", "shapes": VIDEO, **TABLES["LTX tables"]},
    {"suite": "tables", "name": "Wan tables", "shapes": "1x32760x5120", **TABLES["Wan tables"]},
    {"suite": "tables", "name": "Qwen3 tables", "shapes": PREFILL, **TABLES["Qwen3 tables"]},
    {"suite": "norm", "name": "LTX norm", "shapes": VIDEO, **LTX_NORM},
    {"suite": "norm", "name": "Wan norm", "shapes": "1x32760x5120", **WAN_NORM},
    {"suite": "norm", "name": "Qwen3 norm", "shapes": PREFILL, **QWEN_NORM},
    {"suite": "train", "name": "train LTX norm", "shapes": "2x2310x2048", **TRAIN},
    {"suite": "smoke", "name": "LTX", "shapes": "2x16x192", **LTX},
    {"suite": "smoke", "name": "Qwen3", "shapes": "2x16x2048", **QWEN},
    {"suite": "smoke", "name": "Qwen2.5-VL", "shapes": "1x16x3584", **MROPE},
    {"suite": "smoke", "name": "Wan tables", "shapes": "1x8x2560", **TABLES["Wan tables"]},
    {"suite": "smoke", "name": "Qwen3 norm", "shapes": "1x16x2048", **QWEN_NORM},
    {"suite": "smoke", "name": "train LTX norm", "shapes": "2x16x192", **TRAIN},
]


class Rope3D(Benchmark):
    """Wall time of one call beside the model's own; `kernelworks bench` measures device time, and more peers.

    The runner wants results within 0.01 of the model's, so they are made small: nearly all are below 0.5,
    where bfloat16 is finer than that. The check in `prepare` is the strict one.
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
        truths = work["truth"](self.kernel, slice(None), *self.inputs)
        for name, output, truth in zip(work["outputs"], self.call(*self.inputs), truths, strict=True):
            rows = output.reshape(math.prod(shape[:-1]), -1).double()
            error = (rows - truth.reshape(rows.shape)).norm() / truth.norm()
            if not error < torch.finfo(self.dtype).eps / 2:
                raise RuntimeError(f"{name} at {shape} is {error:.3g} away from fp64, relative to its size")

    def setup_ltx(self):
        self.prepare(LTX, 2, 1024, 2048)

    def benchmark_ltx(self):
        self.out = self.call(*self.inputs)[0]

    def verify_ltx(self):
        return self.peer(*self.inputs)[0]

    setup_ltx_tables = functools.partialmethod(prepare, TABLES["LTX tables"], 2, 1024, 2048)
    benchmark_ltx_tables = benchmark_ltx
    verify_ltx_tables = verify_ltx
