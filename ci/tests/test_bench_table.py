# SPDX-License-Identifier: Apache-2.0
"""What a person reads: conditions, rows, and what they come to; of a wrong run only the mismatch."""

from __future__ import annotations

from bench_records import MACHINE, error, measurement, record

from kernelworks import bench_table
from kernelworks.bench_record import HostCost


def text(*arguments: object, **changes: object) -> str:
    return "\n".join(bench_table.lines(record(*arguments, **changes)))  # type: ignore[arg-type]


def test_the_conditions_are_stated() -> None:
    found = text(measurement(), notes={"slow": "is slow", "absent": "is not here"})
    assert "toy version 1, at commit 0123456789ab + changes" in found
    assert "a-variant, dev build of commit unknown" in found
    assert "equal work" in found
    assert "every call allocates its outputs" in found
    assert "copy rate in this run, read and written: 200.0 GB/s (threads 1)" in found
    assert "slow: is slow" in found
    assert "absent" not in found


def test_a_row_has_times_ratio_rate_and_error() -> None:
    found = text(measurement())
    (row,) = [line.split() for line in found.splitlines() if line.startswith("a model")]
    figures = "10.00 10.00-10.00 20.00 30.00 2.00x 100 50 0.50 1.0e-03 1.0e-02 0.50 -"
    assert " ".join(row) == f"a model 4x1024 bfloat16 1 {figures}"
    assert "geometric mean of vs best over 1 rows: 2.000x" in found
    assert "smallest: 2.000x at a model 4x1024 bfloat16, threads 1, beside torch" in found


def test_on_a_gpu_l2_is_cold_and_launch_bound_rows_are_marked() -> None:
    rows = [
        measurement(ours=2.0, threads=None, bytes=40_000, copy_rate=4e12),
        measurement(ours=10.0, threads=None, bytes=44_000_000, copy_rate=4e12),
    ]
    host = HostCost("twice", (4, 4096), "bfloat16", {"ours": (9.0,), "torch": (10.0,)})
    found = text(*rows, device="cuda", host=(host,))
    assert "cold L2" in found
    assert "launch-bound" in found
    assert "in cache" in found
    assert "over 1 rows, 1 left out" in found
    assert "launch-bound rows, not counted: 10.00x to 10.00x" in found
    assert "threads" not in found
    assert "host time of one eager twice 4x4096 bfloat16, us: ours 9.00, torch 10.00" in found


def test_the_error_of_each_peer_is_in_the_row_and_marked_if_it_rounds_otherwise() -> None:
    """M08."""
    errors = {"ours": (error(),), "torch": (error(ulps=0.75),), "slow": (error(ulps=1.25),)}
    found = text(
        measurement(errors=errors),
        rounding={"slow": "twice"},
        notes={"slow": "is slow"},
        packages={"torch": {"a-package": "1.2"}},
    )
    assert "0.75 1.25*" in found
    assert "torch: a-package 1.2" in found
    assert "slow: is slow; * rounds twice" in found


def test_calls_among_other_kernels_have_columns_of_their_own() -> None:
    apart = {"ours": (12.0,) * 3, "torch": (18.0,) * 3}
    found = text(measurement(apart=apart))
    assert "apart: the same calls with a short kernel" in found
    (row,) = [line.split() for line in found.splitlines() if line.startswith("a model")]
    assert " 2.00x 100 50 12.00 1.50x " in " ".join(row)
    assert "apart" not in text(measurement())


def test_a_missing_peer_is_named() -> None:
    found = text(measurement(), missing={"quack": "No module named 'quack'"})
    assert "missing: quack (No module named 'quack')" in found


def test_a_wrong_run_shows_the_mismatch_and_no_figure() -> None:
    wrong = measurement(
        errors={"ours": (error(complaint="y is 3 ulp from fp64"),), "torch": (error(),)}, samples={}
    )
    found = text(wrong)
    assert found == (
        "toy: WRONG RESULT, so nothing is claimed\n"
        "  a model 4x1024 bfloat16, threads 1: ours: y is 3 ulp from fp64"
    )
    assert "no case was run" in text()


def test_figures_are_short_and_aligned_to_the_right() -> None:
    assert [bench_table.short(value) for value in (3.666, 42.0, 123.45, 12345.6)] == [
        "3.67",
        "42.00",
        "123.5",
        "12,346",
    ]
    assert list(bench_table.columns([["name", "us"], ["a", "12.00"], ["long name", "1.00"]])) == [
        "name          us",
        "a          12.00",
        "long name   1.00",
    ]
    assert MACHINE.cpu == "a CPU"
