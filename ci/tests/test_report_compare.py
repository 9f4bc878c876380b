# SPDX-License-Identifier: Apache-2.0
"""A new record beside the committed ones: what is named, what is not, and what cannot be compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench_records import MACHINE, measurement, record

from kernelworks import bench_read, report_compare
from kernelworks.bench_record import HostCost, Record
from kernelworks.cli import main
from kernelworks.errors import RepositoryError

ROOT = Path(__file__).resolve().parents[2]


def write(path: Path, content: Record) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content.to_json())
    return path


def text(new: Record, *old: Record) -> str:
    committed = {f"old-{place}": each for place, each in enumerate(old)}
    return "\n".join(report_compare.lines(report_compare.compare(new, committed)))


def test_rows_more_than_five_per_cent_slower_are_named_the_worst_first() -> None:
    before = record(
        *(measurement(100.0, name=name) for name in ("same", "slightly", "slow", "worst", "fast"))
    )
    times = {"same": 100.0, "slightly": 104.9, "slow": 105.2, "worst": 150.0, "fast": 50.0}
    found = report_compare.compare(
        record(*(measurement(time, name=name) for name, time in times.items())), {"old": before}
    )
    assert [row.label.split()[1] for row in found.slower] == ["worst", "slow"]
    said = "\n".join(report_compare.lines(found))
    assert "2 of 5 rows more than 5% slower" in said
    assert "| seed: worst 4x1024 bfloat16, threads 1 | 100.00 | 150.00 | +50.0% |  |" in said
    assert "slightly" not in said


def test_nothing_slower_is_said_without_a_table() -> None:
    said = text(record(measurement(10.0)), record(measurement(10.0)))
    assert "none of 1 rows more than 5% slower" in said
    assert "geometric mean of the times now over those before: 1.000" in said
    assert "| row |" not in said


def test_a_difference_within_the_spread_says_so() -> None:
    wide = measurement(10.0, samples={"ours": (9.0, 10.0, 20.0), "torch": (30.0,)})
    row = measurement(11.0, samples={"ours": (10.0, 11.0, 19.0), "torch": (30.0,)})
    assert "| +10.0% | within the spread of both |" in text(record(row), record(wide))


def test_the_cost_on_the_host_counts_too() -> None:
    cost = HostCost("call", (4,), "float32", {"ours": (10.0,), "torch": (9.0,)})
    before = record(measurement(), host=(cost,))
    now = record(measurement(), host=(replace(cost, samples={"ours": (12.0,), "torch": (9.0,)}),))
    assert "| host cost: call 4 float32 | 10.00 | 12.00 | +20.0% | host |" in text(now, before)


def test_rows_without_a_counterpart_are_named() -> None:
    before = record(measurement(name="gone"), measurement(name="kept"))
    now = record(measurement(name="kept"), measurement(name="fresh"))
    said = text(now, before)
    assert "- not measured this time: seed: gone" in said
    assert "- new: seed: fresh" in said
    many = record(*(measurement(name=f"r{number}") for number in range(8)))
    said = text(many, before)
    assert "r4 4x1024 bfloat16, threads 1 and 3 more" in said
    assert "r5" not in said
    partial = replace(now, suites=("other",))
    assert "not measured" not in text(partial, before), "of a suite that nobody asked for"


def test_several_committed_records_stand_together() -> None:
    now = record(measurement(20.0, name="a"), measurement(10.0, name="b"))
    said = text(now, record(measurement(10.0, name="a")), record(measurement(10.0, name="b")))
    assert "1 of 2 rows" in said
    assert "`old-0`" in said
    assert "`old-1`" in said


def test_a_wrong_result_is_refused() -> None:
    with pytest.raises(RepositoryError, match=r"not right, so its times count nothing: a model .* off"):
        text(record(measurement(complaint="off")), record(measurement()))


def test_only_records_of_this_machine_are_compared(tmp_path: Path) -> None:
    results = tmp_path / "docs/results"
    for name, machine in (
        ("mine", MACHINE),
        ("other", replace(MACHINE, cpu="another CPU")),
        ("wider", replace(MACHINE, cores=64)),
    ):
        write(results / f"{name}.json", record(measurement(), machine=machine))
    write(results / "kernel.json", record(measurement(), kernel="other"))
    write(results / "gpu.json", record(measurement(), device="cuda", machine=replace(MACHINE, gpu="H200")))
    assert list(report_compare.committed_for(tmp_path, record(measurement()))) == ["mine"]
    gpu = record(measurement(), device="cuda", machine=replace(MACHINE, gpu="H200", cpu="whatever"))
    assert list(report_compare.committed_for(tmp_path, gpu)) == ["gpu"]
    assert "There is no committed record of this machine" in text(record(measurement()))


def test_the_committed_records_are_those_of_the_project() -> None:
    committed = bench_read.read(ROOT / "docs/results/rmsnorm-h200.json")
    found = report_compare.compare(committed, report_compare.committed_for(ROOT, committed))
    assert "rmsnorm-h200" in found.committed
    assert len(found.rows) >= len(committed.measurements)
    assert found.slower == []


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kernels").mkdir()
    old = write(tmp_path / "docs/results/toy.json", record(measurement(10.0)))
    new = write(tmp_path / "new.json", record(measurement(12.0)))
    root = ("--root", str(tmp_path))
    assert main(["report", "--compare", str(new), *root]) == 0
    said = capsys.readouterr().out
    assert "toy on 2 cores of a CPU: 1 of 1 rows more than 5% slower" in said
    assert "committed: `toy`, commit 0123456789ab" in said
    assert main(["report", "--compare", str(new), "--beside", str(old), *root]) == 0
    assert capsys.readouterr().out == said


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kernels").mkdir()
    new = write(tmp_path / "new.json", record(measurement()))
    other = write(tmp_path / "other.json", record(measurement(), kernel="other"))
    (tmp_path / "broken.json").write_text(json.dumps({"format": 99}))
    root = ("--root", str(tmp_path))
    for words, sentence in (
        (["--compare", str(tmp_path / "none.json")], "none.json: No such file or directory"),
        (["--compare", str(tmp_path / "broken.json")], "has format 99"),
        (["--compare", str(new), "--beside", str(other)], "is of another kernel (other)"),
        (["--beside", str(other)], "name the new record with --compare"),
    ):
        assert main(["report", *words, *root]) == RepositoryError.exit_code
        assert sentence in capsys.readouterr().err
