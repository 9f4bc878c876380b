# SPDX-License-Identifier: Apache-2.0
"""Devices, streams, graphs, threads and instruction sets: where the op runs must not change what it gives."""

from __future__ import annotations

import pytest
import torch
from cases import make
from vendor.checks import all_same, leaf
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
def step(adaln):
    """All ops, forward and backward: what they return, and the gradients of everything."""

    def run(x, residual, gate, table, temb, shift, weight, bias):
        given = [leaf(t) for t in (x, residual, gate, table, temb, shift, weight, bias)]
        x, residual, gate, table, temb, shift, weight, bias = given
        scale, affine = (table, temb), {"weight": weight, "bias": bias}
        y, total = adaln.gate_residual_ada_norm(residual, x, gate, scale, shift, norm="layer", **affine)
        z = adaln.ada_norm(adaln.gate_residual(total, y, (table, gate)), shift, scale)
        loss = (y + z).float().square().sum() + total.sum()
        return [y, total, z, *torch.autograd.grad(loss, given)]

    return run


def inputs(device, dtype, shape, other=F32, form="sample"):
    case = make(device, dtype, shape, (form, "table and sample", "token"), other=other)
    return list(case.tensors().values())


# ---- several GPUs ------------------------------------------------------------------------------------------


@pytest.mark.cuda
def test_second_gpu(adaln, step):
    """All zeros on cuda:1 while cuda:0 is right (D01, apex#770); outputs on the current device (D03)."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    given = inputs("cuda:0", BF16, (3, 11, 520))
    expected = step(*given)
    got = step(*(t.to("cuda:1") for t in given))
    assert torch.cuda.current_device() == 0
    assert all(t.device == torch.device("cuda:1") for t in got)
    assert all_same([t.to("cuda:0") for t in got], expected)
    with pytest.raises(ValueError, match=r"^ada_norm: scale .*cuda:1.*cuda:0"):
        adaln.ada_norm(given[0], given[2].to("cuda:1"))


# ---- streams and graphs ------------------------------------------------------------------------------------


@pytest.mark.cuda
def test_side_stream(step, device):
    """Work is queued on the current stream: input that the stream has yet to write is waited for (D04)."""
    given = inputs(device, BF16, (4, 1024, 1024))
    expected = step(*given)
    assert all_same(on_a_late_stream(step, given), expected)


@pytest.mark.cuda
@pytest.mark.kernels_ci
def test_graph_replay(step, device):
    """Kernels on the legacy stream escape the capture and replay stale data (D04, SageAttention#371)."""
    given = inputs(device, BF16, (2, 32, 1024))
    graph, outputs = captured(step, given, inputs(device, BF16, (1, 3, 128)))
    for seed in (1, 2):
        refill(given, seed)
        graph.replay()
        torch.cuda.synchronize()
        assert all_same(outputs, step(*given))


CAPTURE_FIRST = """
import torch
from kernels import get_kernel
adaln = get_kernel("kernelworks/adaln", version=1)
def run(rows, width):
    x = torch.ones(1, rows, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    scale = torch.ones(width, device="cuda", requires_grad=True)
    return x, scale
def step(x, scale):
    y, total = adaln.gate_residual_ada_norm(x, x, scale, scale)
    return y, total, *torch.autograd.grad(y.float().sum() + total.float().sum(), (x, scale))
step(*run(2, 64))
torch.cuda.synchronize()
given = run(5, 768)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y, total, dx, dscale = step(*given)
graph.replay()
torch.cuda.synchronize()
assert (y == 2).all() and (total == 2).all()
assert torch.allclose(dscale, torch.full_like(dscale, 10), atol=1e-3)
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
    ones = 'torch.ones(3, 8, device="cuda")'
    assert_refused_without_code(
        ada_norm=f"kernel.ada_norm({ones}, {ones})",
        gate_residual=f"kernel.gate_residual({ones}, {ones}, {ones})",
    )


ISA = """
import sys
import torch
from kernels import get_kernel
sys.path.insert(0, sys.argv[2])
from cases import make
from checks import backward, upstream
from vendor.checks import leaf
adaln = get_kernel("kernelworks/adaln", version=1, backend="cpu")
torch.set_num_threads(1)
results = []
for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
    for width in (1, 3, 33, 128, 769, 8200):
        for other in dict.fromkeys((dtype, torch.float32)):
            for norm, form in (("rms", "sample"), ("layer", "table and token"), ("layer", "none")):
                case = make("cpu", dtype, (2, 5, width), form, other=other, norm=norm, eps=1e-2)
                # with few digits in a gate the sum is exact, and its rounding the same however it is formed
                gates = [name for name in case.tensors() if name.startswith("gate")]
                case = case.map(lambda t: (t * 4).round() / 4, gates).map(leaf)
                outputs = case.run(adaln)
                results += [t.detach() for t in outputs]
                results += backward(case, outputs, upstream(case)).values()
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
    assert_misspelt_instruction_set("kernelworks/adaln", "kernel.ada_norm(torch.ones(2, 8))")


# ---- threads -----------------------------------------------------------------------------------------------


@pytest.mark.kernels_ci
@pytest.mark.parametrize("shape", [(1, 3000, 130), (300, 10, 130), (1, 3, 70001), (1, 1, 4096)], ids=str)
def test_number_of_threads_changes_nothing(step, device, shape):
    """Forward and gradients are bit-equal with one thread and with more: no sum is split by threads."""
    need_cpu(device)
    first, *others = by_threads(step, inputs(device, BF16, shape))
    assert all(all_same(first, other) for other in others)


def test_called_from_several_python_threads(step, device):
    """Calls from several threads at once do not share a buffer."""
    cases = [inputs(device, F32, (2, rows, 264)) for rows in (1, 7, 130, 64)]
    expected = [step(*case) for case in cases]
    got = from_python_threads(step, cases * 8)
    assert all(all_same(a, b) for a, b in zip(got, expected * 8, strict=True))
