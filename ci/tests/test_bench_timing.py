# SPDX-License-Identifier: Apache-2.0
"""How many buffers and calls, whose turn it is, and what a sample is."""

from __future__ import annotations

import gc
import time

import pytest
import torch

from kernelworks import bench_timing

MB = 1 << 20


@pytest.mark.parametrize("moved", [2 * MB, 33 * MB, 149 * MB, 512 * MB])
def test_buffers_exceed_three_times_the_cache(moved: int) -> None:
    buffers = bench_timing.buffers_for(moved, 50 * MB)
    assert buffers * moved > 150 * MB
    assert buffers >= 2
    assert buffers == 2 or (buffers - 1) * moved <= 150 * MB


@pytest.mark.parametrize("moved", [2 * MB, 33 * MB, 149 * MB, 512 * MB, 5000 * MB])
def test_a_graph_is_long_and_uses_each_buffer_equally(moved: int) -> None:
    buffers = bench_timing.buffers_for(moved, 50 * MB)
    calls = bench_timing.calls_for(moved, buffers)
    assert calls % buffers == 0
    assert calls >= bench_timing.GRAPH_CALLS[0]
    assert calls < bench_timing.GRAPH_CALLS[1] + buffers


def test_samples_are_interleaved_and_each_goes_first_in_turn() -> None:
    order: list[str] = []

    def sampler(name: str) -> float:
        order.append(name)
        assert not gc.isenabled()
        return float(len(order))

    samples = bench_timing.interleaved({"a": lambda: sampler("a"), "b": lambda: sampler("b")}, 3)
    assert "".join(order) == "abbaab"
    assert samples == {"a": [1.0, 4.0, 5.0], "b": [2.0, 3.0, 6.0]}
    assert gc.isenabled()


def test_a_budget_ends_the_rounds_but_not_before_the_fewest() -> None:
    def slow() -> float:
        time.sleep(0.002)
        return 0.0

    assert len(bench_timing.interleaved({"a": slow}, 50, budget=0.0)["a"]) == bench_timing.FEWEST_SAMPLES


def test_a_short_call_is_repeated_until_it_can_be_timed_and_over_all_inputs() -> None:
    seen: list[int] = []
    sets = [(torch.tensor(0),), (torch.tensor(1),)]
    sample = bench_timing.cpu_sampler(lambda x: seen.append(int(x)), sets)
    seen.clear()
    microseconds = sample()
    assert len(seen) > 50
    assert set(seen) == {0, 1}
    assert 0 < microseconds < 1000


def test_a_sample_is_the_time_of_one_call() -> None:
    sample = bench_timing.cpu_sampler(lambda: time.sleep(0.005), [()])
    assert 5000 <= sample() < 50_000


def test_a_call_that_is_not_timed_comes_before_the_one_that_is() -> None:
    seen: list[float] = []

    def call() -> None:
        time.sleep(0.1 if len(seen) % 2 == 0 else 0.005)
        seen.append(0)

    sample = bench_timing.cpu_sampler(call, [()])
    seen[:] = [0] * (len(seen) + len(seen) % 2)
    before = len(seen)
    assert sample() < 100_000  # the slow one came first, and is not in it
    assert len(seen) == before + 2


def test_the_time_of_a_spacer_is_taken_off_what_is_mixed_with_it() -> None:
    assert bench_timing.apart([7.0, 8.0, 9.5], [2.0, 2.0, 100.0]) == (5.0, 6.0, 7.5)


def test_the_copy_rate_is_bytes_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench_timing.COPY_ELEMENTS, "cpu", (1 << 22,))
    assert 1e8 < bench_timing.copy_rate("cpu") < 1e13


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_graph_replays_calls_over_rotating_inputs() -> None:
    sets = [(torch.full((1 << 20,), float(i), device="cuda"),) for i in range(3)]
    captured = bench_timing.capture(lambda x: x + 1, sets, 6)
    assert captured.sample() > 0
    assert [float(output[0]) for output in captured.outputs] == [1.0, 2.0, 3.0]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_graph_with_spacers_calls_them_in_between() -> None:
    x, counter = torch.zeros(4, device="cuda"), torch.zeros(1, device="cuda")
    captured = bench_timing.capture(lambda x: x + counter, [(x,), (x,)], 4, between=lambda: counter.add_(1))
    captured.graph.replay()
    torch.cuda.synchronize()
    assert [float(output[0]) for output in captured.outputs] == [2.0, 3.0]
    assert bench_timing.capture(bench_timing.spacer(), [()], 4).sample() > 0
