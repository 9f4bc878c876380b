# SPDX-License-Identifier: Apache-2.0
"""Ratios, what counts, and a JSON document that lacks nothing."""

from __future__ import annotations

import json
import math

import pytest
from bench_records import error, measurement, record

from kernelworks.bench_record import Measurement


def test_the_ratio_is_to_the_fastest_peer() -> None:
    row = measurement(ours=10.0)
    assert (row.best_peer, row.ratio, row.rate) == ("torch", 2.0, 100e9)
    alone = measurement(samples={"ours": (10.0,)})
    assert (alone.best_peer, alone.ratio) == (None, None)


def test_only_a_gpu_has_launch_bound_rows() -> None:
    def on_gpu(ours: float, moved: int) -> Measurement:
        return measurement(ours=ours, threads=None, copy_rate=4e12, bytes=moved)

    assert on_gpu(3.9, 40_000_000).launch_bound
    assert on_gpu(10.0, 7_000_000).launch_bound
    assert not on_gpu(10.0, 40_000_000).launch_bound
    assert not measurement(ours=1.0).launch_bound


def test_launch_bound_rows_do_not_count() -> None:
    rows = [
        measurement(ours=10.0, threads=None, bytes=40_000_000, copy_rate=4e12),
        measurement(ours=2.0, threads=None, bytes=40_000, copy_rate=4e12),
    ]
    assert record(*rows).mean_ratio == pytest.approx(2.0)
    assert record(rows[1]).mean_ratio is None


def test_a_rate_that_memory_cannot_give_is_marked() -> None:
    assert not measurement(ours=10.0, copy_rate=100e9).above_memory
    assert measurement(ours=10.0, copy_rate=90e9).above_memory


def test_the_document_is_complete() -> None:
    document = json.loads(record(measurement()).to_json())
    for key in ("commit", "dirty", "command", "date", "build", "machine", "suites", "repeats", "missing"):
        assert key in document, key
    for key in ("gpu", "driver", "clocks", "cpu", "cores", "python", "torch", "cuda", "triton", "l2_bytes"):
        assert key in document["machine"], key
    (row,) = document["measurements"]
    assert row["samples"]["torch"] == [20.0, 20.0, 20.0]
    assert row["times"]["ours"] == {"median": 10.0, "p10": 10.0, "p90": 10.0}
    assert row["errors"]["ours"][0]["ulps"] == 0.5
    assert (row["ratio"], row["share_of_copy"], row["launch_bound"]) == (2.0, 0.5, False)
    assert document["correct"] is True


def test_a_wrong_run_has_no_figures() -> None:
    wrong = record(
        measurement(complaint="y is wrong", errors={"ours": (error(ulps=math.inf, complaint="bad"),)})
    )
    document = json.loads(wrong.to_json())
    assert document["correct"] is False
    assert "mean_ratio" not in document
    (row,) = document["measurements"]
    assert row["samples"] == {}
    assert "ratio" not in row
    assert row["errors"]["ours"][0]["ulps"] == "inf"
    assert wrong.measurements[0].complaints == ["ours: bad"]


def test_the_floor_is_the_time_that_memory_needs() -> None:
    assert measurement(copy_rate=200e9, bytes=1_000_000).floor == pytest.approx(5.0)


def test_times_among_other_kernels_have_a_ratio_of_their_own() -> None:
    row = measurement(apart={"ours": (12.0,), "torch": (18.0,), "slow": (17.0,)})
    assert (row.ratio, row.ratio_apart) == (2.0, pytest.approx(17 / 12))
    assert measurement().ratio_apart is None


def test_an_empty_run_is_not_a_correct_one() -> None:
    assert not record().correct
