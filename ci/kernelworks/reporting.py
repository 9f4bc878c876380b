# SPDX-License-Identifier: Apache-2.0
"""`kernelworks report`: turns the records in docs/results into the tables and plots of the documents.

A page says where: between `<!-- kernelworks:report RECORD... form=short|full|plots -->` and
`<!-- /kernelworks:report -->` everything is made. suites=, cases=, dtypes= and threads= choose rows.
With --compare it says instead, in Markdown, which rows of a new record are slower than the committed ones.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kernelworks import (
    bench_read,
    catalog,
    report_compare,
    report_model_plot,
    report_model_tables,
    report_plot,
    report_tables,
)
from kernelworks.bench_model_record import ModelRecord
from kernelworks.bench_record import Record
from kernelworks.errors import RepositoryError
from kernelworks.report_records import FILTERS, RESULTS, Wanted, choose, choose_model, load, load_models

STALE = 11  # the exit code of --check when something is out of date
PAGES = ("README.md", "kernels/*/CARD.md", "docs/*.md")
PLOTS = "plots"
ALT = {
    "bars": "The share of the copy rate that each shape reaches, ours as bars, peers as marks",
    "roofline": "The rate over the bytes moved, under the copy rate",
    "shares": "Where the time goes, without and with the kernels, eager and compiled, as stacked bars",
}
START, END = "<!-- kernelworks:report ", "<!-- /kernelworks:report -->"
BLOCK = re.compile(rf"^{START}(?P<words>[^\n]*?) -->\n(?:(?!{START}).*\n)*?{END}$", re.MULTILINE)


@dataclass(frozen=True)
class Plot:
    """An SVG that a page asks for."""

    path: Path
    record: Record | ModelRecord
    kind: str
    theme: str

    @property
    def up_to_date(self) -> bool:
        return self.path.is_file() and self.digest in self.path.read_text()

    @property
    def digest(self) -> str:
        if isinstance(self.record, ModelRecord):
            return report_model_plot.digest(self.record)
        return report_plot.digest(self.record)

    def draw(self) -> str:
        if isinstance(self.record, ModelRecord):
            return report_model_plot.svg(self.record, self.kind, self.theme)
        return report_plot.svg(self.record, self.kind, self.theme)


@dataclass(frozen=True)
class Difference:
    """A file that is not what the records say."""

    path: Path
    what: str
    content: Callable[[], str] | None  # makes what it should hold; None if it should not be there


def differences(root: Path) -> list[Difference]:
    """What is out of date, pages first."""
    records: dict[str, Record | ModelRecord] = {**load(root), **load_models(root)}
    found: list[Difference] = []
    plots: dict[Path, Plot] = {}
    for page in (path for pattern in PAGES for path in sorted(root.glob(pattern))):
        old = page.read_text()
        if len(re.findall(f"^{START}", old, re.MULTILINE)) != len(BLOCK.findall(old)):
            raise RepositoryError(
                f"{page.relative_to(root)} has a line {START}... that no line {END} ends, or whose own --> "
                "is missing; write both, each alone on its line"
            )
        new = BLOCK.sub(partial(_rendered, page=page, root=root, records=records, plots=plots), old)
        if new != old:
            found.append(Difference(page, "differs from the records", partial(str, new)))
    found += [
        Difference(plot.path, "is not a plot of the records", plot.draw)
        for plot in plots.values()
        if not plot.up_to_date
    ]
    orphans = set((root / RESULTS).glob("*.svg")) - set(plots)
    return found + [Difference(path, "is a plot that no page asks for", None) for path in sorted(orphans)]


def _rendered(
    block: re.Match[str],
    page: Path,
    root: Path,
    records: Mapping[str, Record | ModelRecord],
    plots: dict[Path, Plot],
) -> str:
    """The block with what it asks for in it."""
    where = page.relative_to(root)
    wanted = parse(block["words"], where)
    record = _chosen(records, wanted, where)
    if wanted.form == PLOTS:
        asked = list(_plots(record, root / RESULTS / wanted.name))
        for plot in asked:
            if plots.setdefault(plot.path, plot) != plot:
                raise RepositoryError(
                    f"{where} and another page ask for different plots named {plot.path.name}"
                )
        lines = list(_pictures(asked, page))
    else:
        in_words = report_model_tables if isinstance(record, ModelRecord) else report_tables
        lines = list(in_words.lines(record, wanted.form))
    return "\n".join([f"{START}{block['words']} -->", *lines, END])


def _chosen(records: Mapping[str, Record | ModelRecord], wanted: Wanted, where: Path) -> Record | ModelRecord:
    """What a page asks for, of a model or of a kernel."""
    models = {name: record for name, record in records.items() if isinstance(record, ModelRecord)}
    if wanted.records[0] in models:
        return choose_model(models, wanted, where)
    return choose({name: each for name, each in records.items() if isinstance(each, Record)}, wanted, where)


def parse(words: str, where: Path) -> Wanted:
    """What stands after `kernelworks:report`: names of records, and choices as `key=value,value`."""
    names = tuple(word for word in shlex.split(words) if "=" not in word)
    choices = dict(word.split("=", 1) for word in shlex.split(words) if "=" in word)
    form = choices.pop("form", "full")
    if not names:
        raise RepositoryError(f"{where}: kernelworks:report names no record; write one of {RESULTS}/*.json")
    if form not in (PLOTS, *report_tables.FORMS):
        offered = ", ".join((*report_tables.FORMS, PLOTS))
        raise RepositoryError(f"{where}: form={form} is not known; there is {offered}")
    if unknown := sorted(set(choices) - set(FILTERS)):
        raise RepositoryError(f"{where}: {unknown[0]}= is not known; rows are chosen by {', '.join(FILTERS)}")
    return Wanted(names, form, {key: tuple(value.split(",")) for key, value in choices.items()})


def _plots(record: Record | ModelRecord, stem: Path) -> Iterator[Plot]:
    for kind in report_model_plot.KINDS if isinstance(record, ModelRecord) else report_plot.KINDS:
        for theme in report_plot.THEMES:
            yield Plot(stem.with_name(f"{stem.name}-{kind}-{theme}.svg"), record, kind, theme)


def _pictures(plots: Iterable[Plot], page: Path) -> Iterator[str]:
    """HTML that shows the dark plot where the page is dark."""
    by_kind: dict[str, dict[str, str]] = {}
    for plot in plots:
        link = Path(os.path.relpath(plot.path, page.parent)).as_posix()
        by_kind.setdefault(plot.kind, {})[plot.theme] = link
    for kind, links in by_kind.items():
        yield "<picture>"
        yield f'  <source media="(prefers-color-scheme: dark)" srcset="{links["dark"]}">'
        yield f'  <img src="{links["light"]}" alt="{ALT[kind]}">'
        yield "</picture>"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `kernelworks report`."""
    parser = subparsers.add_parser(
        "report",
        help="turn benchmark records into the tables and plots of the documents",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if something is out of date"
    )
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="RECORD",
        help="write nothing; name the rows of this new record that are slower than the committed ones",
    )
    parser.add_argument(
        "--beside",
        type=Path,
        metavar="RECORD",
        help="with --compare: this record instead of the committed ones",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Bring the documents up to date, or with --check only say what is not."""
    root = catalog.root_of(arguments.root)
    if arguments.compare is not None:
        return compare(root, arguments.compare, arguments.beside)
    if arguments.beside is not None:
        raise RepositoryError(f"--beside {arguments.beside}: name the new record with --compare")
    found = differences(root)
    for difference in found:
        line = f"{difference.path.relative_to(root)} {difference.what}"
        print(line if arguments.check else f"{line}: {_mend(difference)}")
    if found and arguments.check:
        print("error: run `kernelworks report` to bring these up to date", file=sys.stderr)
        return STALE
    return 0


def compare(root: Path, path: Path, beside: Path | None) -> int:
    """Print how a new record differs from the committed ones, or from the one beside."""
    record = bench_read.read(path)
    committed = (
        report_compare.committed_for(root, record) if beside is None else report_compare.given(beside, record)
    )
    print("\n".join(report_compare.lines(report_compare.compare(record, committed))))
    return 0


def _mend(difference: Difference) -> str:
    if difference.content is None:
        difference.path.unlink()
        return "removed"
    difference.path.write_text(difference.content())
    return "written"
