# SPDX-License-Identifier: Apache-2.0
"""Sets a benchmark record beside the committed ones of its machine, and names the rows that are slower."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kernelworks import bench_read, report_records
from kernelworks.bench_record import OURS, HostCost, Measurement, Record
from kernelworks.bench_stats import Spread, geometric_mean
from kernelworks.errors import RepositoryError

SLOWER = 1.05  # a row whose time grew by more than this factor is named
SHOWN = 5  # rows without a counterpart that are named, before the rest is counted


@dataclass(frozen=True)
class Row:
    """One row that both have; times in microseconds."""

    label: str
    before: Spread
    now: Spread
    noted: str = ""

    @property
    def change(self) -> float:
        """The time now over the time before, medians both."""
        return self.now.median / self.before.median

    @property
    def is_slower(self) -> bool:
        return self.change > SLOWER

    @property
    def note(self) -> str:
        """What makes a difference worth less, if anything does."""
        overlap = "within the spread of both" if self.now.p10 <= self.before.p90 else ""
        return ", ".join(word for word in (self.noted, overlap) if word)


@dataclass(frozen=True)
class Comparison:
    """A new record beside the committed ones."""

    record: Record
    committed: Mapping[str, Record]  # by name
    rows: tuple[Row, ...]
    unmeasured: tuple[str, ...]  # rows that only the committed ones have, of what was asked for this time
    added: tuple[str, ...]  # rows that only the new one has

    @property
    def slower(self) -> list[Row]:
        """The worst first."""
        return sorted((row for row in self.rows if row.is_slower), key=lambda row: -row.change)


def committed_for(root: Path, record: Record) -> dict[str, Record]:
    """The records under docs/results of the same kernel on the same machine."""
    return {
        name: each
        for name, each in report_records.load(root).items()
        if (each.kernel, machine_of(each)) == (record.kernel, machine_of(record))
    }


def given(path: Path, record: Record) -> dict[str, Record]:
    """One record that was named instead; it must be one that can be compared."""
    other = bench_read.read(path)
    for what, mine, its in (
        ("kernel", record.kernel, other.kernel),
        ("machine", machine_of(record), machine_of(other)),
    ):
        if mine != its:
            raise RepositoryError(f"{path} is of another {what} ({its}) than the new record ({mine})")
    return {path.stem: other}


def machine_of(record: Record) -> str:
    """What a time depends on most: the GPU, or the processor and how many cores of it there are."""
    machine = record.machine
    return f"{machine.cores} cores of {machine.cpu}" if record.device == "cpu" else str(machine.gpu)


def compare(record: Record, committed: Mapping[str, Record]) -> Comparison:
    """Every row of the new record beside its own, and what has no counterpart."""
    if not record.correct:
        wrong = [f"{row.label}: {complaint}" for row in record.measurements for complaint in row.complaints]
        raise RepositoryError(f"the new record is not right, so its times count nothing: {'; '.join(wrong)}")
    before = _timed(committed.values())
    now = _timed([record])
    both = [label for label in now if label in before]
    suites = set(record.suites)
    return Comparison(
        record=record,
        committed=committed,
        rows=tuple(Row(label, before[label][0], *now[label]) for label in both),
        unmeasured=tuple(label for label in before if label not in now and label.split(": ", 1)[0] in suites),
        added=tuple(label for label in now if label not in before),
    )


def _timed(records: Iterable[Record]) -> dict[str, tuple[Spread, str]]:
    """Our times by the label of the row, with a note; of two records that have it, the first one's."""
    found: dict[str, tuple[Spread, str]] = {}
    for record in records:
        for row in record.measurements:
            note = "launch-bound" if row.launch_bound else ""
            found.setdefault(_label(row), (row.times[OURS], note))
        for cost in record.host:
            found.setdefault(_label(cost), (cost.times[OURS], "host"))
    return found


def _label(row: Measurement | HostCost) -> str:
    if isinstance(row, Measurement):
        return f"{row.suite}: {row.label}"
    return f"host cost: {row.name} {'x'.join(map(str, row.shape))} {row.dtype}"


def lines(found: Comparison) -> Iterator[str]:
    """Markdown, for a person or for the summary of a CI job."""
    record = found.record
    where = f"{record.kernel} on {machine_of(record)}"
    if not found.committed:
        yield f"### {where}: nothing to compare with"
        yield ""
        yield f"There is no committed record of this machine; this run has {len(found.added)} rows."
        return
    slower = found.slower
    verdict = f"{len(slower)} of {len(found.rows)} rows" if slower else f"none of {len(found.rows)} rows"
    yield f"### {where}: {verdict} more than {SLOWER - 1:.0%} slower than the committed record"
    yield ""
    for name, each in found.committed.items():
        yield f"- committed: `{name}`, {_run(each)}"
    yield f"- this run: {_run(record)}"
    if found.rows:
        mean = geometric_mean([row.change for row in found.rows])
        yield f"- geometric mean of the times now over those before: {mean:.3f}"
    for what, labels in (("not measured this time", found.unmeasured), ("new", found.added)):
        if labels:
            more = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
            yield f"- {what}: {', '.join(labels[:SHOWN])}{more}"
    if slower:
        yield ""
        yield "| row | before, us | now, us | change | |"
        yield "| --- | ---: | ---: | ---: | --- |"
        for row in slower:
            change = f"+{row.change - 1:.1%}"
            yield f"| {row.label} | {row.before.median:.2f} | {row.now.median:.2f} | {change} | {row.note} |"


def _run(record: Record) -> str:
    commit = f"commit {record.commit[:12]}" if record.commit else "commit unknown"
    rates = [row.copy_rate for row in record.measurements]
    copy = f", memory copies {max(rates) / 1e9:,.0f} GB/s" if rates else ""
    return f"{commit}, torch {record.machine.torch}, {record.date[:10]}{copy}"
