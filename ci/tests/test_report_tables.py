# SPDX-License-Identifier: Apache-2.0
"""Records as Markdown: what is claimed, what is not, and what Markdown would misread."""

from __future__ import annotations

from dataclasses import replace

from bench_records import MACHINE, error, measurement, record

from kernelworks import report_tables


def test_the_short_form_has_the_best_peer_and_the_conditions() -> None:
    found = list(report_tables.lines(record(measurement()), "short"))
    assert found[0] == "| case | shape | threads | us | GB/s | % of copy | best peer | its us | ratio |"
    assert found[1] == "| --- | ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: |"
    assert found[2] == "| a model | 4x1024 | 1 | 10.00 | 100 | 50 | torch | 20.00 | 2.00x |"
    text = " ".join(found[4:])
    assert text.startswith("a CPU, torch 2.13, bfloat16, 2026-01-01, commit 0123456789ab; copy rate 200 ")
    assert text.endswith("geometric mean of 1 ratios 2.00x; beside torch, slow.")


def test_no_speed_up_is_claimed_from_a_launch_bound_row() -> None:
    """M04."""
    row = measurement(ours=2.0, threads=None, bytes=40_000, copy_rate=4e12)
    gpu = replace(MACHINE, gpu="NVIDIA H200")
    found = list(report_tables.lines(record(row, device="cuda", machine=gpu), "short"))
    assert found[2] == "| a model | 4x1024 | 2.00 | 20.0 | 0 | torch | 20.00 | launch-bound |"
    text = " ".join(found[4:])
    assert text.startswith("NVIDIA H200, ")
    assert "device time, cold L2;" in text
    assert "geometric mean" not in text


def test_what_differs_between_rows_has_a_column_and_a_missing_peer_is_named() -> None:
    rows = (measurement(), measurement(dtype="float32", samples={"ours": (10.0,)}))
    missing = {"quack": "No module named 'quack'", "slow at a model 4x1024 float32": "ValueError"}
    found = list(report_tables.lines(record(*rows, missing=missing), "short"))
    assert found[0].startswith("| case | shape | dtype | threads |")
    assert found[3].endswith("| - | - | - |")
    assert "missing: quack, slow;" in " ".join(found[5:])


def test_the_full_form_has_everything() -> None:
    """M08, M09."""
    errors = {"ours": (error(),), "torch": (error(),), "slow": (error(ulps=1.25),)}
    made = record(
        measurement(errors=errors),
        machine=replace(MACHINE, clocks={"clocks.sm": "1980 MHz"}),
        rounding={"slow": "twice"},
        missing={"quack": "No module named 'quack'"},
    )
    text = "\n".join(report_tables.lines(made, "full"))
    assert "- toy version 1, at commit 0123456789ab + changes" in text
    assert "- repeat it: `kernelworks bench toy`" in text
    assert "- right after work: clocks.sm 1980 MHz" in text
    assert "| 10.00 | 10.00-10.00 | 20.00 | 30.00 | 2.00x | 100 | 50 |" in text
    assert r"| 0.50 | 1.0e-03 | 1.0e-02 | 0.50 1.25\* |" in text
    assert "- missing: quack (No module named 'quack')" in text
    assert r"- slow: \* rounds twice" in text


def test_a_paragraph_is_broken_between_words() -> None:
    found = list(report_tables.paragraph(iter(["one two", "three"]), width=8))
    assert found == ["one two", "three"]
