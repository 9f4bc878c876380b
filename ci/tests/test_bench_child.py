# SPDX-License-Identifier: Apache-2.0
"""The measuring process, without the process: what it asks of a case, and when it stops."""

from __future__ import annotations

import math
from typing import Any

import pytest
from bench_records import RMSNORM, rmsnorm

from kernelworks import bench_case, bench_child, bench_timing, bench_trial
from kernelworks.bench_record import Request

FILE = RMSNORM / "benchmarks/benchmark_rmsnorm.py"
OFFERED = bench_case.read(FILE)
SMOKE = bench_case.select(OFFERED, ["smoke"])


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_timing, "SHORTEST_SAMPLE", 1e-4)


def session(kernel: Any, *peers: str, **changes: Any) -> bench_trial.Session:
    values: dict[str, Any] = {
        "repo_id": "",
        "version": 1,
        "device": "cpu",
        "file": str(FILE),
        "suites": ("smoke",),
    }
    values |= {"dtypes": ("bfloat16",), "peers": peers, "threads": (1,), "repeats": 3}
    return bench_trial.Session(Request(**{**values, **changes}), kernel, peers, (1,), copy_rates={1: 1e10})


def test_a_right_kernel_is_timed_beside_its_peers() -> None:
    found = list(bench_child.rows(session(rmsnorm(), "torch", "unfused"), SMOKE))
    assert [row.name for row in found] == ["LTX-Video", "qk-norm", "qk views", "add", "train"]
    for row in found:
        assert list(row.samples) == ["ours", "torch", "unfused"]
        assert {len(samples) for samples in row.samples.values()} == {3}
        assert list(row.errors) == ["ours", "torch", "unfused"]
        assert not row.complaints


def test_the_first_wrong_row_ends_the_run_untimed() -> None:
    wrong = rmsnorm(lambda y, calls: y * math.nan)
    (row,) = bench_child.rows(session(wrong, "torch"), SMOKE)
    assert row.samples == {}
    assert row.complaints == ["ours: y has 65536 values of 65536 that are not finite"]


def test_a_wrong_peer_ends_the_run_too() -> None:
    case = SMOKE[0]
    peers = {"torch": lambda: lambda x, weight: 1.01 * x * weight}
    (row,) = bench_child.rows(
        session(rmsnorm(), "torch"), (bench_case.Case(**{**vars(case), "peers": peers}),)
    )
    assert row.samples == {}
    assert row.complaints[0].startswith("torch: y is ")


def test_missing_peers_are_named_with_the_reason_and_those_of_other_cases_are_not() -> None:
    def uninstalled() -> Any:
        raise ImportError("No module named 'quack'")

    def refusing() -> Any:
        raise ValueError("only widths below 64\nand more")

    peers = {**SMOKE[0].peers, "quack": uninstalled, "liger": refusing}
    case = bench_case.Case(**{**vars(SMOKE[0]), "peers": peers})
    running = session(rmsnorm(), "torch", "quack", "liger", "apex")
    (row,) = bench_child.rows(running, (case,))
    assert list(row.samples) == ["ours", "torch"]
    assert running.missing == {
        "quack": "No module named 'quack'",
        "liger at LTX-Video 2x16x2048 bfloat16": "ValueError: only widths below 64",
    }


def test_a_peer_for_another_device_is_missing_with_that_reason() -> None:
    running = session(rmsnorm(), "torch", "quack")
    running.about = OFFERED.peers
    case = bench_case.Case(**{**vars(SMOKE[0]), "peers": {**SMOKE[0].peers, "quack": lambda: None}})
    (row,) = bench_child.rows(running, (case,))
    assert list(row.samples) == ["ours", "torch"]
    assert running.missing == {"quack": "runs on cuda only"}


def test_without_a_gpu_nothing_is_timed_apart() -> None:
    (row,) = bench_child.rows(session(rmsnorm(), "torch"), SMOKE[:1])
    assert row.apart == {}


def test_what_is_timed_apart_is_interleaved_with_the_rest_and_rid_of_the_spacers() -> None:
    trial = bench_trial.Trial(
        errors={},
        samplers=lambda: {"ours": lambda: 3.0, "torch": lambda: 5.0},
        buffers=2,
        calls=2,
        apart=lambda: {"spacer": lambda: 2.0, "ours": lambda: 5.5, "torch": lambda: 7.0},
    )
    samples, apart = bench_trial.timed(trial, 2, math.inf)
    assert samples == {"ours": (3.0, 3.0), "torch": (5.0, 5.0)}
    assert apart == {"ours": (3.5, 3.5), "torch": (5.0, 5.0)}


def test_inputs_are_the_same_in_every_run_and_differ_between_sets() -> None:
    request = session(rmsnorm()).request
    first, again = (
        bench_trial.inputs_of(SMOKE[0], request, dtype, 2) for dtype in 2 * [bench_child.torch.float32]
    )
    assert first[0][0].equal(again[0][0])
    assert not first[0][0].equal(first[1][0])


def test_threads_are_one_and_all_unless_asked_for() -> None:
    assert bench_child.threads_of(session(None, threads=()).request, 8) == (1, 8)
    assert bench_child.threads_of(session(None, threads=()).request, 1) == (1,)
    assert bench_child.threads_of(session(None, threads=(4, 2)).request, 8) == (4, 2)
    assert bench_child.threads_of(session(None, device="cuda", threads=()).request, 8) == (None,)
