# SPDX-License-Identifier: Apache-2.0
"""The records of docs/results, and the part of them that a page asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernelworks import bench_read
from kernelworks.bench_record import Measurement, Record
from kernelworks.errors import RepositoryError

RESULTS = Path("docs/results")
# What a page may choose rows by, and how a row answers.
FILTERS = ("suites", "cases", "dtypes", "threads")


@dataclass(frozen=True)
class Wanted:
    """What a page asks for: records by their names, in a form, and of their rows those that pass."""

    records: tuple[str, ...]
    form: str
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # filter to the values that pass

    @property
    def name(self) -> str:
        """Of a file that is made of this, as `rmsnorm-h200-bfloat16`."""
        values = [value for values in self.chosen.values() for value in values]
        return "-".join([self.records[0], *values]).replace(" ", "-")


def load(root: Path) -> dict[str, Record]:
    """Every record, by the name of its file."""
    found = {path.stem: bench_read.read(path) for path in sorted((root / RESULTS).glob("*.json"))}
    for name, record in found.items():
        if not record.correct:
            raise RepositoryError(
                f"{RESULTS / name}.json holds a wrong result, from which nothing may be claimed; "
                "mend the kernel and run `kernelworks bench` again"
            )
    return found


def choose(records: Mapping[str, Record], wanted: Wanted, where: Path) -> Record:
    """One record that holds all that is wanted."""
    for name in wanted.records:
        if name not in records:
            raise RepositoryError(
                f"{where} asks for the record {name!r}; {RESULTS} has {', '.join(records) or 'none'}"
            )
    record = merge([records[name] for name in wanted.records], where)
    rows = tuple(row for row in record.measurements if passes(row, wanted.chosen))
    if not rows:
        raise RepositoryError(f"{where}: no row of {', '.join(wanted.records)} passes {dict(wanted.chosen)}")
    return replace(record, measurements=rows)


def passes(row: Measurement, chosen: Mapping[str, Sequence[str]]) -> bool:
    """Whether the row is one of those asked for."""
    said = {"suites": row.suite, "cases": row.name, "dtypes": row.dtype, "threads": str(row.threads)}
    return all(said[name] in values for name, values in chosen.items())


def merge(records: Sequence[Record], where: Path) -> Record:
    """Several runs as one: of the same kernel at the same commit, on the same machine with the same torch."""
    first = records[0]
    for other in records[1:]:
        for what, mine, its in (
            ("kernel", first.kernel, other.kernel),
            ("commit", first.commit, other.commit),
            ("build", first.build, other.build),
            ("GPU", first.machine.gpu, other.machine.gpu),
            ("CPU", first.machine.cpu, other.machine.cpu),
            ("torch", first.machine.torch, other.machine.torch),
        ):
            if mine != its:
                raise RepositoryError(f"{where} puts records together whose {what} differs: {mine}, {its}")
    return replace(
        first,
        command="; ".join(record.command for record in records),
        suites=tuple(suite for record in records for suite in record.suites),
        measurements=tuple(row for record in records for row in record.measurements),
        host=first.host,
        missing={who: reason for record in records for who, reason in record.missing.items()},
        notes={who: note for record in records for who, note in record.notes.items()},
        rounding={who: how for record in records for who, how in record.rounding.items()},
        packages={who: names for record in records for who, names in record.packages.items()},
    )
