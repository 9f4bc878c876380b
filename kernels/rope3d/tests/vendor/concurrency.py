# SPDX-License-Identifier: Apache-2.0
"""Streams, graphs and threads to run a step on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch


def on_a_late_stream(step, inputs):
    """What `step` gives on a side stream that has yet to write the inputs when the call is made."""
    late = [torch.zeros_like(t) for t in inputs]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # about 0.1 s, in which another stream would read zeros
        for empty, full in zip(late, inputs, strict=True):
            empty.copy_(full)
        got = step(*late)
    stream.synchronize()
    return got


def captured(step, inputs, warm_up):
    """A graph of `step`, and the outputs that a replay fills; `warm_up` are inputs of another shape."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # as the capture must not be a first call
        step(*warm_up)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = step(*inputs)
    return graph, outputs


def refill(tensors, seed):
    """Other numbers in the same memory, for a replay to read."""
    for tensor in tensors:
        tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed)))


def by_threads(step, inputs):
    """What `step` gives with one, two and three threads of the CPU."""
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(step(*inputs))
    return results


def from_python_threads(step, cases):
    """What `step` gives for each case, called from four Python threads at once."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda case: step(*case), cases))
