# SPDX-License-Identifier: Apache-2.0
"""Times calls: medians of interleaved samples, on a CPU by the clock, on a GPU by replayed CUDA graphs."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kernelworks.bench_case import Call, Tensors

MICRO = 1e6
SHORTEST_SAMPLE = 2e-3  # seconds; on a CPU a shorter call is repeated within its sample
LONG_CALL = 0.5  # seconds; on a CPU a shorter call is preceded by one that is not timed
FEWEST_SAMPLES = 5  # however long a CPU case takes
CPU_BUDGET = 4.0  # seconds for one row on a CPU, once the fewest samples are there
L2_TIMES = 3  # rotating buffers are larger than the L2 cache by this
GRAPH_LENGTH = 1e-3  # seconds of work in a graph, by the roughest estimate, so that its launch is lost in it
GRAPH_CALLS = (8, 200)
ROUGH_RATE = 4e12  # bytes a second, for that estimate only
WARM_UP = 3
HEAD_START = 1_000_000  # GPU cycles for the host to enqueue a whole sample behind
COPY_ELEMENTS = {"cpu": (1 << 25,), "cuda": (1 << 26, 1 << 28)}
COPY_CALLS = 5
SPACER_ELEMENTS = 1 << 16  # of 4 bytes: too little to push anything out of L2
COPY_SAMPLES = {"cpu": 7, "cuda": 20}
HOST_CALLS = 100  # at most ten launches each: fewer than the 1,024 that a stream queues before the host waits
HOST_SAMPLES = 21


def buffers_for(moved: int, l2: int) -> int:
    """How many sets of inputs and outputs, taken in turn, no longer fit the cache; two at least."""
    return max(2, math.floor(L2_TIMES * l2 / moved) + 1)


def calls_for(moved: int, buffers: int) -> int:
    """How many calls make a graph that is long beside its own launch; each buffer is used equally often."""
    fewest, most = GRAPH_CALLS
    wanted = min(max(math.ceil(GRAPH_LENGTH * ROUGH_RATE / moved), fewest), most)
    return math.ceil(wanted / buffers) * buffers


@contextmanager
def no_collection() -> Iterator[None]:
    """Python's collector must not run within a sample."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def interleaved(
    samplers: Mapping[str, Callable[[], float]], repeats: int, budget: float = math.inf
) -> dict[str, list[float]]:
    """Samples in turn, each round starting with another, so that drift and neighbours meet all alike."""
    names = list(samplers)
    samples: dict[str, list[float]] = {name: [] for name in names}
    started = time.perf_counter()
    with no_collection():
        for round_ in range(repeats):
            if round_ >= FEWEST_SAMPLES and time.perf_counter() - started > budget:
                break
            turn = round_ % len(names)
            for name in (*names[turn:], *names[:turn]):
                samples[name].append(samplers[name]())
    return samples


def cpu_sampler(call: Call, sets: Sequence[Tensors]) -> Callable[[], float]:
    """Samples microseconds per call, over sets of inputs in turn; the call must be warm already.

    Before each sample comes a call that is not timed, so that the timed one finds the memory of its results
    where it left it, as in a loop; not what a peer left, or what the system (and the host of a virtual
    machine) took back while a slow peer ran.
    """

    def seconds(times: int) -> float:
        start = time.perf_counter()
        for index in range(times):
            call(*sets[index % len(sets)])
        return time.perf_counter() - start

    times = 1
    while (took := seconds(times)) < SHORTEST_SAMPLE:  # one call misleads, as caches are cold
        times = min(10 * times, math.ceil(1.2 * times * SHORTEST_SAMPLE / max(took, 1e-7)))
    settles = took < LONG_CALL

    def sample() -> float:
        if settles:
            seconds(1)
        return seconds(times) / times * MICRO

    return sample


@dataclass(frozen=True)
class Captured:
    """A CUDA graph of calls over rotating inputs, with the outputs that its replay fills."""

    graph: torch.cuda.CUDAGraph
    outputs: tuple[Any, ...]  # of the last call on each set of inputs
    calls: int

    def sample(self) -> float:
        """Replay once, and return microseconds per call."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        # While the GPU waits, the host enqueues: what is timed then never waits for the host.
        torch.cuda._sleep(HEAD_START)  # type: ignore[no-untyped-call]
        start.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / self.calls


def capture(
    call: Call, sets: Sequence[Tensors], calls: int, between: Callable[[], Any] | None = None
) -> Captured:
    """Capture calls, each of which allocates its outputs from the graph's pool, over the sets in turn.

    An output lives until the next call on the same set of inputs, so outputs rotate as inputs do. `between`
    is called after each.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for index in range(WARM_UP):
            call(*sets[index % len(sets)])
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    outputs: list[Any] = [None] * len(sets)
    with torch.cuda.graph(graph, stream=side):
        for index in range(calls):
            outputs[index % len(sets)] = call(*sets[index % len(sets)])
            if between is not None:
                between()
    return Captured(graph, tuple(outputs), calls)


def spacer() -> Callable[[], Any]:
    """A short kernel, by torch, that has nothing to do with what is measured."""
    source = torch.ones(SPACER_ELEMENTS, device="cuda")
    return partial(torch.neg, source, out=torch.empty_like(source))


def apart(mixed: Sequence[float], spacers: Sequence[float]) -> tuple[float, ...]:
    """What a call adds to a stream of spacers, for each sample of the two mixed."""
    alone = statistics.median(spacers)
    return tuple(sample - alone for sample in mixed)


def copy_rate(device: str) -> float:
    """Bytes a second that an elementwise kernel reads and writes, too much for any cache."""
    return max(_copy_rate(device, elements) for elements in COPY_ELEMENTS[device])


def _copy_rate(device: str, elements: int) -> float:
    source = torch.ones(elements, device=device)
    target = torch.empty_like(source)
    call = partial(torch.neg, source, out=target)
    call()
    sample = capture(call, [()], COPY_CALLS).sample if device == "cuda" else cpu_sampler(call, [()])
    samples = interleaved({"copy": sample}, COPY_SAMPLES[device])["copy"]
    return 2 * source.nbytes / statistics.median(samples) * MICRO


def host_samplers(calls: Mapping[str, Call], inputs: Tensors) -> dict[str, Callable[[], float]]:
    """Samples what a call costs the host, in microseconds: on a GPU many of them, none waited for."""
    if inputs[0].device.type == "cpu":
        return {name: cpu_sampler(call, [inputs]) for name, call in calls.items()}

    def sampler(call: Call) -> Callable[[], float]:
        def sample() -> float:
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(HOST_CALLS):
                call(*inputs)
            seconds = time.perf_counter() - start
            torch.cuda.synchronize()
            return seconds / HOST_CALLS * MICRO

        for _ in range(2):
            sample()
        return sample

    return {name: sampler(call) for name, call in calls.items()}
