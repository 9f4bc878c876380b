# SPDX-License-Identifier: Apache-2.0
"""Devices, streams, graphs, threads and instruction sets: where the op runs must not change what it gives."""

from __future__ import annotations

import pytest
import torch
from vendor.checks import all_same, leaf, randn
from vendor.concurrency import by_threads, captured, from_python_threads, on_a_late_stream, refill
from vendor.machine import (
    TESTS,
    assert_instruction_set_agrees,
    assert_misspelt_instruction_set,
    assert_refused_without_code,
    need_cpu,
    run_python,
)

BF16, F32 = torch.bfloat16, torch.float32


@pytest.fixture
def step(rope3d):
    """Everything, forward and backward: rotations by coordinates and by tables, a norm, and one in place."""

    def run(q, k, weight, coords):
        inv_freq = 100.0 ** -(torch.arange(q.shape[-1] // 2, device=q.device) / q.shape[-1])
        angle = coords * inv_freq
        cos, sin = angle.cos().repeat_interleave(2, -1), angle.sin().repeat_interleave(2, -1)
        given = [leaf(t) for t in (q, k, weight)]
        out = rope3d.rope3d(*given[:2], coords, inv_freq)
        tabled = rope3d.apply_rotary(*out, cos, sin, interleaved=True)
        normed = rope3d.rms_norm_rope3d(*tabled, given[2], None, coords, inv_freq, interleaved=False)
        grads = torch.autograd.grad(sum(t.float().square().sum() for t in (*out, *normed)), given)
        written = [q.clone(), k.clone()]
        rope3d.rope3d_(*written, coords, inv_freq)
        return [*out, *tabled, *normed, *grads, *written]

    return run


def inputs_on(device, dtype, shape, seed=0):
    """q and k of one and of two heads, a weight, and coordinates."""
    batch, tokens, width = shape
    sizes = ((batch, tokens, 2, width), (batch, tokens, 1, width))
    q, k = (randn(*size, dtype=dtype, device=device, seed=seed + i) for i, size in enumerate(sizes))
    return [
        q,
        k,
        randn(width, device=device, seed=seed + 2),
        randn(tokens, 1, device=device, seed=seed + 3) * 50,
    ]


# ---- several GPUs ------------------------------------------------------------------------------------------


@pytest.mark.cuda
def test_second_gpu(rope3d, step):
    """All zeros on cuda:1 while cuda:0 is right (D01, apex#770); outputs on the current device (D03)."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    inputs = inputs_on("cuda:0", BF16, (2, 33, 64))
    expected = step(*inputs)
    got = step(*(t.to("cuda:1") for t in inputs))
    assert torch.cuda.current_device() == 0
    assert all(t.device == torch.device("cuda:1") for t in got)
    assert all_same([t.to("cuda:0") for t in got], expected)
    with pytest.raises(ValueError, match=r"^rope3d: coords .*cuda:1.*cuda:0"):
        rope3d.rope3d(inputs[0], None, inputs[3].to("cuda:1"), torch.ones(32, device="cuda:0"))


# ---- streams and graphs ------------------------------------------------------------------------------------


@pytest.mark.cuda
def test_side_stream(step, device):
    """Work is queued on the current stream: input that the stream has yet to write is waited for (D04)."""
    inputs = inputs_on(device, BF16, (2, 2048, 128))
    expected = step(*inputs)
    assert all_same(on_a_late_stream(step, inputs), expected)


@pytest.mark.cuda
@pytest.mark.kernels_ci
def test_graph_replay(step, device):
    """Kernels on the legacy stream escape the capture and replay stale data (D04, SageAttention#371)."""
    inputs = inputs_on(device, BF16, (2, 64, 128))
    graph, outputs = captured(step, inputs, inputs_on(device, BF16, (1, 3, 64)))
    for seed in (1, 2):
        refill([inputs[0], inputs[1], inputs[3]], seed)
        graph.replay()
        torch.cuda.synchronize()
        assert all_same(outputs, step(*inputs))


CAPTURE_FIRST = """
import torch
from kernels import get_kernel
rope3d = get_kernel("kernelworks/rope3d", version=1)
inv_freq = torch.zeros(32, device="cuda")
def step(q, k, weight, coords):
    out = rope3d.rope3d(q, k, coords, inv_freq)
    normed = rope3d.rms_norm_rope3d(*out, weight, None, coords, inv_freq)
    return [*normed, *torch.autograd.grad(sum(t.float().sum() for t in normed), (q, k, weight))]
def inputs(tokens):
    q = torch.ones(1, tokens, 2, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    sizes = (1, tokens, 1, 64), (64,)
    k, weight = (torch.ones(size, device="cuda", dtype=q.dtype, requires_grad=True) for size in sizes)
    return q, k, weight, torch.ones(tokens, 1, device="cuda")
step(*inputs(3))
torch.cuda.synchronize()
given, graph = inputs(7), torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = step(*given)
graph.replay()
torch.cuda.synchronize()
assert all((t == 1).all() for t in out[:2]) and (out[4] == 14).all()
print("captured")
"""


@pytest.mark.cuda
def test_capture_of_a_first_call():
    """A hidden sync or allocation makes capture fail (D06, pytorch#78549), seen in a fresh process."""
    done = run_python(CAPTURE_FIRST)
    assert "captured" in done.stdout, done.stderr


# ---- fresh processes ---------------------------------------------------------------------------------------


@pytest.mark.cuda
def test_gpu_without_code():
    """A kernel without code for the GPU prints and calls exit(1) (D07, kernels#707)."""
    ones = "(torch.ones(size, device='cuda') for size in ((1, 3, 2, 8), (1, 3, 2, 8), (3, 1), 4))"
    assert_refused_without_code(rope3d=f"kernel.rope3d(*{ones})")


ISA = """
import sys
import torch
from kernels import get_kernel
sys.path.insert(0, sys.argv[2])
from cases import KINDS, make
from checks import upstream
rope3d = get_kernel("kernelworks/rope3d", version=1, backend="cpu")
torch.set_num_threads(1)
results = []
for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
    for width in (2, 33, 770):
        for kind in KINDS:
            for interleaved in (True, False):
                shape = {"shape": (2, 3, 2, width), "interleaved": interleaved, "weight_dtype": torch.float32}
                case = make(rope3d.reference, "cpu", dtype, kind, **shape)
                case = case.with_inputs([t.requires_grad_() for t in case.inputs])
                outputs = case.run(rope3d)
                grads = torch.autograd.grad(outputs, case.inputs, upstream(case))
                results += [t.detach() for t in (*outputs, *grads)]
torch.save(results, sys.argv[1])
"""


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_instruction_sets_agree(device, tmp_path, isa):
    """The path for CPUs without AVX-512 is broken, and nobody runs it (D12, kernels-community#360)."""
    need_cpu(device)
    assert_instruction_set_agrees(ISA, isa, tmp_path)


def test_unknown_instruction_set(device):
    """A misspelt KERNELWORKS_CPU_ISA is never an illegal instruction: it is refused, or ignored."""
    need_cpu(device)
    assert_misspelt_instruction_set(
        "kernelworks/rope3d", "kernel.rope3d(torch.ones(1, 3, 2, 8), None, torch.ones(3, 1), torch.ones(4))"
    )


GUARDED = """
import ctypes, mmap, sys
import torch
from kernels import get_kernel
sys.path.insert(0, sys.argv[1])
from cases import KINDS, make
from vendor.checks import all_same
rope3d = get_kernel("kernelworks/rope3d", version=1, backend="cpu")
libc, kept = ctypes.CDLL(None), []

def at_the_end(tensor):  # of a page, before one that nobody may touch
    size = tensor.numel() * tensor.element_size()
    pages = -(-size // mmap.PAGESIZE) + 1
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + (pages - 1) * mmap.PAGESIZE
    assert libc.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, 0) == 0
    kept.append(memory)
    moved = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(),
                             offset=(pages - 1) * mmap.PAGESIZE - size).view(tensor.shape)
    return moved.copy_(tensor)

for dtype in (torch.bfloat16, torch.float32, torch.float64):
    for kind in KINDS:
        for width, pairs in ((2, 1), (33, 16), (40, 20), (130, 37)):
            for interleaved in (True, False):
                case = make(rope3d.reference, "cpu", dtype, kind, shape=(2, 3, 2, width), pairs=pairs,
                            interleaved=interleaved, table_dtype=dtype)
                names = ("q", "k", "coords", "inv_freq", "axis", "cos", "sin", "q_weight", "k_weight")
                outputs = case.run(rope3d)
                assert all_same(case.map(at_the_end, *names).run(rope3d), outputs)
                if case.cos is not None:  # views that end with the first entry of the last pair
                    cut = [at_the_end(t.flatten()[:-1]) for t in (case.cos, case.sin)]
                    given = [t.as_strided((2, 3, pairs), (6 * pairs, 2 * pairs, 2)) for t in cut]
                    if interleaved and case.norm is None:
                        got = rope3d.apply_rotary(case.q, case.k, *given, interleaved=True, per_pair=True)
                        assert all_same(got, outputs)
print("guarded")
"""


@pytest.mark.parametrize("isa", ["portable", "best"])
def test_nothing_beyond_the_ends_is_read(device, isa):
    """A table read out of bounds (S27, vllm#43676): everything ends where memory ends."""
    need_cpu(device)
    done = run_python(GUARDED, TESTS, KERNELWORKS_CPU_ISA=isa)
    assert done.returncode == 0, done.stderr
    assert "guarded" in done.stdout


# ---- threads -----------------------------------------------------------------------------------------------


@pytest.mark.kernels_ci
@pytest.mark.parametrize("shape", [(2, 1500, 66), (3, 1, 30000), (1, 700, 128)], ids=str)
def test_number_of_threads_changes_nothing(step, device, shape):
    """Forward and gradients are bit-equal with one thread and with more: no sum is split by threads."""
    need_cpu(device)
    first, *others = by_threads(step, inputs_on(device, BF16, shape))
    assert all(all_same(first, other) for other in others)


def test_called_from_several_python_threads(step, device):
    """Calls from several threads at once do not share a buffer."""
    cases = [inputs_on(device, F32, (1, tokens, 66)) for tokens in (1, 7, 130, 64)]
    expected = [step(*case) for case in cases]
    got = from_python_threads(step, cases * 8)
    assert all(all_same(a, b) for a, b in zip(got, expected * 8, strict=True))
