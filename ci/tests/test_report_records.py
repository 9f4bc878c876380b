# SPDX-License-Identifier: Apache-2.0
"""Which rows a page gets, and which records may stand together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bench_records import MACHINE, measurement, record

from kernelworks import report_records
from kernelworks.errors import RepositoryError
from kernelworks.report_records import Wanted

PAGE = Path("README.md")
ROWS = (
    measurement(suite="seed", dtype="bfloat16", threads=1),
    measurement(suite="seed", dtype="float32", threads=2),
    measurement(suite="wide", name="other", dtype="float32", threads=2),
)


def chosen(**filters: str) -> list[int]:
    wanted = Wanted(("a",), "full", {key: tuple(value.split(",")) for key, value in filters.items()})
    found = report_records.choose({"a": record(*ROWS)}, wanted, PAGE)
    return [ROWS.index(row) for row in found.measurements]


def test_rows_are_chosen_by_every_filter() -> None:
    assert chosen() == [0, 1, 2]
    assert chosen(suites="wide,add") == [2]
    assert chosen(cases="a model") == [0, 1]
    assert chosen(dtypes="float32", suites="seed") == [1]
    assert chosen(threads="2") == [1, 2]
    with pytest.raises(RepositoryError, match=r"README\.md: no row of a passes"):
        chosen(suites="none")


def test_a_record_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(RepositoryError, match=r"README.md asks for the record 'b'; docs/results has a"):
        report_records.choose({"a": record(*ROWS)}, Wanted(("b",), "full"), PAGE)


def test_runs_of_one_build_on_one_machine_may_stand_together() -> None:
    first = record(ROWS[0], missing={"quack": "why"}, command="one", suites=("seed",))
    second = record(ROWS[2], command="two", suites=("wide",), packages={"torch": {"a": "1"}})
    merged = report_records.choose({"a": first, "b": second}, Wanted(("a", "b"), "full"), PAGE)
    assert merged.measurements == (ROWS[0], ROWS[2])
    assert merged.command == "one; two"
    assert merged.suites == ("seed", "wide")
    assert (merged.missing, merged.packages) == ({"quack": "why"}, {"torch": {"a": "1"}})


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"commit": "f" * 40}, "commit"),
        ({"kernel": "another"}, "kernel"),
        ({"machine": replace(MACHINE, torch="2.14")}, "torch"),
        ({"machine": replace(MACHINE, gpu="another")}, "GPU"),
    ],
)
def test_runs_that_differ_may_not(changes: dict[str, object], what: str) -> None:
    both = {"a": record(ROWS[0]), "b": record(ROWS[1], **changes)}
    with pytest.raises(RepositoryError, match=f"puts records together whose {what} differs"):
        report_records.choose(both, Wanted(("a", "b"), "full"), PAGE)


def test_nothing_is_made_of_a_wrong_result(tmp_path: Path) -> None:
    """M05."""
    folder = tmp_path / report_records.RESULTS
    folder.mkdir(parents=True)
    (folder / "a.json").write_text(record(measurement(complaint="y is wrong")).to_json())
    with pytest.raises(RepositoryError, match=r"docs/results/a\.json holds a wrong result"):
        report_records.load(tmp_path)


def test_a_file_is_named_after_what_is_chosen() -> None:
    assert Wanted(("a", "b"), "plots").name == "a"
    assert Wanted(("a",), "plots", {"cases": ("qk views",), "threads": ("2",)}).name == "a-qk-views-2"
