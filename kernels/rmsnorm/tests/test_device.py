# SPDX-License-Identifier: Apache-2.0
"""Devices, streams, graphs, threads and instruction sets: where the op runs must not change what it gives."""

from __future__ import annotations

import pytest
import torch
from vendor.checks import all_same, leaf, tensors
from vendor.concurrency import by_threads, captured, from_python_threads, on_a_late_stream, refill
from vendor.machine import (
    assert_instruction_set_agrees,
    assert_misspelt_instruction_set,
    assert_refused_without_code,
    need_cpu,
    run_python,
)

BF16, F32 = torch.bfloat16, torch.float32


@pytest.fixture
def step(rmsnorm):
    """Both ops, forward and backward: y, residual_out and the three gradients."""

    def run(x, residual, weight):
        given = [leaf(t) for t in (x, residual, weight)]
        y, total = rmsnorm.add_rms_norm(*given)
        z = rmsnorm.rms_norm(total, given[2], rounding="before_weight")
        return [y, total, z, *torch.autograd.grad((y + z).float().square().sum() + total.sum(), given)]

    return run


# ---- several GPUs ------------------------------------------------------------------------------------------


@pytest.mark.cuda
def test_second_gpu(rmsnorm, step):
    """All zeros on cuda:1 while cuda:0 is right (D01, apex#770); outputs on the current device (D03)."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    inputs = tensors("cuda:0", BF16, (33, 520), (33, 520), 520)
    expected = step(*inputs)
    got = step(*(t.to("cuda:1") for t in inputs))
    assert torch.cuda.current_device() == 0
    assert all(t.device == torch.device("cuda:1") for t in got)
    assert all_same([t.to("cuda:0") for t in got], expected)
    with pytest.raises(ValueError, match=r"^rms_norm: weight .*cuda:1.*cuda:0"):
        rmsnorm.rms_norm(inputs[0], inputs[2].to("cuda:1"))


# ---- streams and graphs ------------------------------------------------------------------------------------


@pytest.mark.cuda
def test_side_stream(step, device):
    """Work is queued on the current stream: input that the stream has yet to write is waited for (D04)."""
    inputs = tensors(device, BF16, (4096, 1024), (4096, 1024), 1024)
    expected = step(*inputs)
    assert all_same(on_a_late_stream(step, inputs), expected)


@pytest.mark.cuda
@pytest.mark.kernels_ci
def test_graph_replay(step, device):
    """Kernels on the legacy stream escape the capture and replay stale data (D04, SageAttention#371)."""
    inputs = tensors(device, BF16, (64, 1024), (64, 1024), 1024)
    graph, outputs = captured(step, inputs, tensors(device, BF16, (3, 128), (3, 128), 128))
    for seed in (1, 2):
        refill(inputs[:2], seed)
        graph.replay()
        torch.cuda.synchronize()
        assert all_same(outputs, step(*inputs))


CAPTURE_FIRST = """
import torch
from kernels import get_kernel
rmsnorm = get_kernel("kernelworks/rmsnorm", version=1)
x = torch.ones(5, 768, device="cuda", dtype=torch.bfloat16, requires_grad=True)
weight = torch.ones(768, device="cuda", requires_grad=True)
small = [x.detach()[:2, :64].clone().requires_grad_(), weight.detach()[:64].clone().requires_grad_()]
torch.autograd.grad(rmsnorm.rms_norm(*small).float().sum(), small)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = rmsnorm.rms_norm(x, weight)
    grads = torch.autograd.grad(y.float().sum(), (x, weight))
graph.replay()
torch.cuda.synchronize()
assert (y == 1).all() and torch.allclose(grads[1], torch.full_like(weight, 5))
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
    assert_refused_without_code(rms_norm='kernel.rms_norm(torch.ones(3, 8, device="cuda"))')


ISA = """
import sys
import torch
from kernels import get_kernel
sys.path.insert(0, sys.argv[2])
from vendor.checks import randn
rmsnorm = get_kernel("kernelworks/rmsnorm", version=1, backend="cpu")
torch.set_num_threads(1)
results = []
for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
    for width in (1, 3, 8, 33, 128, 769, 4097):
        x, residual, grad, weight = (randn(9, width, dtype=dtype, seed=seed) for seed in range(4))
        for wide in (dtype, torch.float32):
            for options in ({}, {"rounding": "before_weight"}, {"weight_offset": 1.0}):
                given = [t.clone().requires_grad_() for t in (x, residual, weight[0].to(wide))]
                y, total = rmsnorm.add_rms_norm(*given, **options)
                results += [y.detach(), total.detach(), *torch.autograd.grad([y, total], given, [grad, grad])]
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
    assert_misspelt_instruction_set("kernelworks/rmsnorm", "kernel.rms_norm(torch.ones(2, 8))")


# ---- threads -----------------------------------------------------------------------------------------------


@pytest.mark.kernels_ci
@pytest.mark.parametrize(("rows", "width"), [(3000, 130), (3, 70001), (1, 4096)])
def test_number_of_threads_changes_nothing(step, device, rows, width):
    """Forward and gradients are bit-equal with one thread and with more: no sum is split by threads."""
    need_cpu(device)
    x, residual, weight = tensors(device, BF16, (rows, width), (rows, width), width)
    first, *others = by_threads(step, (x, residual, weight.float()))
    assert all(all_same(first, other) for other in others)


def test_called_from_several_python_threads(step, device):
    """Calls from several threads at once do not share a buffer."""
    cases = [tensors(device, F32, (rows, 264), (rows, 264), 264) for rows in (1, 7, 130, 64)]
    expected = [step(*case) for case in cases]
    got = from_python_threads(step, cases * 8)
    assert all(all_same(a, b) for a, b in zip(got, expected * 8, strict=True))
