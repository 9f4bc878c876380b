# SPDX-License-Identifier: Apache-2.0
"""Devices, streams, graphs, threads and instruction sets: where the op runs must not change what it gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checks import child_environment, leaf, same_bits, tensors, ulp_distance

BF16, F32 = torch.bfloat16, torch.float32


def step(rmsnorm, x, residual, weight):
    """Both ops, forward and backward: y, residual_out and the three gradients."""
    given = [leaf(t) for t in (x, residual, weight)]
    y, total = rmsnorm.add_rms_norm(*given)
    z = rmsnorm.rms_norm(total, given[2], rounding="before_weight")
    return [y, total, z, *torch.autograd.grad((y + z).float().square().sum() + total.sum(), given)]


def all_same(first, second):
    return all(same_bits(a, b) for a, b in zip(first, second, strict=True))


# ---- several GPUs ------------------------------------------------------------------------------------------


@pytest.mark.cuda
def test_second_gpu(rmsnorm):
    """All zeros on cuda:1 while cuda:0 is right (D01, apex#770); outputs on the current device (D03)."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    inputs = tensors("cuda:0", BF16, (33, 520), (33, 520), 520)
    expected = step(rmsnorm, *inputs)
    got = step(rmsnorm, *(t.to("cuda:1") for t in inputs))
    assert torch.cuda.current_device() == 0
    assert all(t.device == torch.device("cuda:1") for t in got)
    assert all_same([t.to("cuda:0") for t in got], expected)
    with pytest.raises(ValueError, match=r"^rms_norm: weight .*cuda:1.*cuda:0"):
        rmsnorm.rms_norm(inputs[0], inputs[2].to("cuda:1"))


# ---- streams and graphs ------------------------------------------------------------------------------------


@pytest.mark.cuda
def test_side_stream(rmsnorm, device):
    """Work is queued on the current stream: input that the stream has yet to write is waited for (D04)."""
    inputs = tensors(device, BF16, (4096, 1024), (4096, 1024), 1024)
    expected = step(rmsnorm, *inputs)
    late = [torch.zeros_like(t) for t in inputs]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # about 0.1 s, in which another stream would read zeros
        for empty, full in zip(late, inputs, strict=True):
            empty.copy_(full)
        got = step(rmsnorm, *late)
    stream.synchronize()
    assert all_same(got, expected)


@pytest.mark.cuda
@pytest.mark.kernels_ci
def test_graph_replay(rmsnorm, device):
    """Kernels on the legacy stream escape the capture and replay stale data (D04, SageAttention#371)."""
    x, residual, weight = tensors(device, BF16, (64, 1024), (64, 1024), 1024)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # warm-up on another shape, as the capture must not be a first call
        step(rmsnorm, *tensors(device, BF16, (3, 128), (3, 128), 128))
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(rmsnorm, x, residual, weight)
    for seed in (1, 2):
        for tensor in (x, residual):
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        torch.cuda.synchronize()
        assert all_same(captured, step(rmsnorm, x, residual, weight))


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


def run_python(code, *args, timeout=300, **environment):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True, text=True, timeout=timeout, cwd="/", env=child_environment(**environment),
    )  # fmt: skip


WRONG_ARCH = """
import sys
from pathlib import Path
import torch
from kernels import get_local_kernel
rmsnorm = get_local_kernel(Path(sys.argv[1]))
try:
    rmsnorm.rms_norm(torch.ones(3, 8, device="cuda"))
except RuntimeError as error:
    print("REFUSED", error)
assert torch.ones(3, device="cuda").sum().item() == 3
major, minor = torch.cuda.get_device_capability()
print("ALIVE", f"{major}.{minor}")
"""


@pytest.mark.cuda
def test_gpu_without_code():
    """A kernel without code for the GPU prints and calls exit(1) (D07, kernels#707)."""
    build = os.environ.get("KERNELWORKS_WRONG_ARCH_BUILD")
    if not build:
        pytest.skip("KERNELWORKS_WRONG_ARCH_BUILD names no variant that was built for another GPU")
    done = run_python(WRONG_ARCH, Path(build).resolve())
    assert done.returncode == 0, done.stderr
    refusal = next(line for line in done.stdout.splitlines() if line.startswith("REFUSED"))
    capability = done.stdout.split("ALIVE ")[1].strip()
    assert "rms_norm: " in refusal
    assert capability in refusal


ISA = """
import sys
import torch
from kernels import get_kernel
sys.path.insert(0, sys.argv[2])
from checks import randn
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
NEEDS = {
    "portable": set(),
    "avx2": {"avx2", "fma", "f16c"},
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
}


def cpu_flags():
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return set(next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), []))


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_instruction_sets_agree(device, tmp_path, isa):
    """The path for CPUs without AVX-512 is broken, and nobody runs it (D12, kernels-community#360)."""
    if device.type != "cpu":
        pytest.skip("the CPU's")
    if not NEEDS[isa] <= cpu_flags():
        pytest.skip(f"this CPU has no {isa}")
    results = {}
    for name in ("portable", isa):
        file = tmp_path / f"{name}.pt"
        done = run_python(ISA, file, Path(__file__).parent, KERNELWORKS_CPU_ISA=name)
        assert done.returncode == 0, done.stderr
        results[name] = torch.load(file)
    for a, b in zip(results["portable"], results[isa], strict=True):
        # Sums in another order: an ulp in the result, or as much of the row where terms cancel.
        close = (a.double() - b.double()).abs() <= 4e-7 * b.double().abs().amax()
        assert bool(((ulp_distance(a, b) <= 1) | close).all())


def test_unknown_instruction_set(device):
    """A misspelt KERNELWORKS_CPU_ISA is never an illegal instruction: it is refused, or ignored."""
    if device.type != "cpu":
        pytest.skip("the CPU's")
    code = (
        "import torch; from kernels import get_kernel\n"
        "k = get_kernel('kernelworks/rmsnorm', version=1, backend='cpu')\n"
        "try: k.rms_norm(torch.ones(2, 8))\n"
        "except (RuntimeError, ValueError) as error: assert 'KERNELWORKS_CPU_ISA' in str(error)\n"
    )
    done = run_python(code, KERNELWORKS_CPU_ISA="sse9")
    assert done.returncode == 0, done.stderr


# ---- threads -----------------------------------------------------------------------------------------------


@pytest.mark.kernels_ci
@pytest.mark.parametrize(("rows", "width"), [(3000, 130), (3, 70001), (1, 4096)])
def test_number_of_threads_changes_nothing(rmsnorm, device, rows, width):
    """Forward and gradients are bit-equal with one thread and with more: no sum is split by threads."""
    if device.type != "cpu":
        pytest.skip("threads are the CPU's")
    x, residual, weight = tensors(device, BF16, (rows, width), (rows, width), width)
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(step(rmsnorm, x, residual, weight.float()))
    assert all(all_same(results[0], other) for other in results[1:])


def test_called_from_several_python_threads(rmsnorm, device):
    """Calls from several threads at once do not share a buffer."""
    from concurrent.futures import ThreadPoolExecutor

    cases = [tensors(device, F32, (rows, 264), (rows, 264), 264) for rows in (1, 7, 130, 64)]
    expected = [step(rmsnorm, *case) for case in cases]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda case: step(rmsnorm, *case), cases * 8))
    assert all(all_same(a, b) for a, b in zip(got, expected * 8, strict=True))
