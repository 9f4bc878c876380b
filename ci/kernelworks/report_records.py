# SPDX-License-Identifier: Apache-2.0
"""The records of docs/results, and the part of them that a page asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernelworks import bench_read
from kernelworks.bench_model_record import ModelRecord
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
    """Every record of a kernel, by the name of its file."""
    paths = sorted((root / RESULTS).glob("*.json"))
    found = {path.stem: bench_read.read(path) for path in paths if not bench_read.is_model(path)}
    for name, record in found.items():
        if not record.correct:
            raise RepositoryError(
                f"{RESULTS / name}.json holds a wrong result, from which nothing may be claimed; "
                "mend the kernel and run `kernelworks bench` again"
            )
    return found


def load_models(root: Path) -> dict[str, ModelRecord]:
    """Every record of a model, by the name of its file."""
    paths = sorted((root / RESULTS).glob("*.json"))
    found = {path.stem: bench_read.read_model(path) for path in paths if bench_read.is_model(path)}
    for name, record in found.items():
        if not record.correct:
            said = "; ".join(f"{who}: {reason}" for who, reason in record.failures.items()) or "no work"
            raise RepositoryError(
                f"{RESULTS / name}.json holds a run that failed ({said}), from which nothing may be claimed"
            )
    return found


def choose_model(models: Mapping[str, ModelRecord], wanted: Wanted, where: Path) -> ModelRecord:
    """One record of a model, with the works that are asked for as cases=."""
    if len(wanted.records) > 1:
        raise RepositoryError(f"{where}: {wanted.records[0]} is of a model, which stands alone in a table")
    if other := sorted(set(wanted.chosen) - {"cases"}):
        raise RepositoryError(f"{where}: {other[0]}= does not choose among works of a model; cases= does")
    record = models[wanted.records[0]]
    names = wanted.chosen.get("cases", tuple(work.name for work in record.works))
    works = tuple(work for work in record.works if work.name in names)
    if len(works) < len(names):
        offered = ", ".join(work.name for work in record.works)
        raise RepositoryError(f"{where}: cases={','.join(names)}, and {wanted.records[0]} has {offered}")
    return replace(record, works=works)


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
