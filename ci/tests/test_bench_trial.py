# SPDX-License-Identifier: Apache-2.0
"""One row on a GPU, without one: the graph is a stand-in that calls again, what is asked of it is real."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bench_records import RMSNORM, rmsnorm

from kernelworks import bench_case, bench_child, bench_timing, bench_trial, bench_verify
from kernelworks.bench_record import Request

OFFERED = bench_case.read(RMSNORM / "benchmarks/benchmark_rmsnorm.py")
VIEWS = next(case for case in OFFERED.cases if case.name == "qk views" and case.suite == "smoke")


class Graph:
    """Calls once for each set, and again into the same outputs at a replay."""

    def __init__(self, call: Callable[..., Any], sets: Sequence[Any], between: Any) -> None:
        self.call, self.sets, self.between = call, sets, between
        self.outputs = tuple(call(*each) for each in sets)

    def replay(self) -> None:
        for inputs, outputs in zip(self.sets, self.outputs, strict=True):
            again = bench_verify.as_outputs(self.call(*inputs))
            for old, new in zip(bench_verify.as_outputs(outputs), again, strict=True):
                old.copy_(new)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """Every graph that is captured."""
    graphs: list[Graph] = []

    def capture(call: Any, sets: Any, calls: int, between: Any = None) -> Any:
        assert calls % len(sets) == 0
        graphs.append(Graph(call, sets, between))
        time = 3.0 if between is None else 5.0
        return SimpleNamespace(graph=graphs[-1], outputs=graphs[-1].outputs, sample=lambda: time)

    monkeypatch.setattr(bench_timing, "capture", capture)
    monkeypatch.setattr(bench_timing, "spacer", lambda: lambda: torch.zeros(1))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return graphs


def session(kernel: Any, *peers: str) -> bench_trial.Session:
    request = Request("", 1, "cpu", "", ("smoke",), ("bfloat16",), peers, (), 3)
    return bench_trial.Session(request, kernel, peers, (None,), l2=1 << 16, copy_rates={None: 4e12})


def measured(running: bench_trial.Session) -> Any:
    return bench_child.measure(running, VIEWS, "bfloat16", None)


def test_what_is_timed_is_the_graph_that_was_verified_and_one_with_spacers(captured: list[Graph]) -> None:
    row = measured(session(rmsnorm(), "torch"))
    assert row.complaints == []
    assert row.samples == {"ours": (3.0,) * 3, "torch": (3.0,) * 3}
    assert row.apart == {"ours": (2.0,) * 3, "torch": (2.0,) * 3}  # 5 with a spacer, which takes 3 alone
    assert row.buffers > 1
    assert [graph.between is not None for graph in captured] == [False, False, True, False, True]
    assert [error.output for error in row.errors["ours"]] == ["q", "k", "q", "k"]  # of the first and last set


def test_an_output_that_a_replay_does_not_write_is_wrong(captured: list[Graph]) -> None:
    """M05: what capturing left in the buffers does not count."""
    kernel, calls = rmsnorm(), [0]
    right = kernel.rms_norm

    def lazy(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        calls[0] += 1
        done = right(x, weight, eps)
        return done if calls[0] <= 2 + 2 * len(captured[-1].sets) else torch.full_like(done, math.nan)

    kernel.rms_norm = lazy
    captured.append(Graph(lambda: None, [], None))
    row = measured(session(kernel))
    assert row.samples == {}
    assert "not finite" in row.complaints[0]


def test_a_peer_that_cannot_be_captured_is_missing_and_one_of_ours_is_an_error(
    captured: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = bench_timing.capture

    def refuse(call: Any, sets: Any, calls: int, between: Any = None) -> Any:
        if between is not None and len(captured) >= 4:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        return usual(call, sets, calls, between)

    monkeypatch.setattr(bench_timing, "capture", refuse)
    running = session(rmsnorm(), "torch")
    row = measured(running)
    assert list(row.samples) == list(row.errors) == list(row.apart) == ["ours"]
    assert running.missing == {
        "torch at qk views 8x6144 bfloat16": "not captured in a CUDA graph: "
        "operation not permitted when stream is capturing"
    }
    with pytest.raises(RuntimeError, match="not permitted"):
        measured(session(rmsnorm()))
