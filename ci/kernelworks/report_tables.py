# SPDX-License-Identifier: Apache-2.0
"""Records as Markdown: a short table, or everything that is in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kernelworks import bench_table
from kernelworks.bench_record import Measurement, Record
from kernelworks.bench_table import NOTHING, dimensions, short

LAUNCH_BOUND = "launch-bound"


def lines(record: Record, form: str) -> Iterator[str]:
    """The record in one of the forms."""
    yield from FORMS[form](record)


def brief(record: Record) -> Iterator[str]:
    """What a reader of a README asks: how long, how near to the memory's rate, and beside whom."""
    dtypes = len({row.dtype for row in record.measurements}) > 1
    threads = any(row.threads is not None for row in record.measurements)
    heading = ["case", "shape", *(["dtype"] if dtypes else []), *(["threads"] if threads else [])]
    heading += ["us", "GB/s", "% of copy", "best peer", "its us", "ratio"]
    yield from markdown([heading, *(_brief_cells(row, dtypes, threads) for row in record.measurements)])
    yield ""
    yield from paragraph(_conditions(record))


def _brief_cells(row: Measurement, dtypes: bool, threads: bool) -> list[str]:
    best = row.best_peer
    claim = LAUNCH_BOUND if row.launch_bound else bench_table.ratio(row.ratio)
    return [
        row.name,
        dimensions(row.shape),
        *([row.dtype] if dtypes else []),
        *([str(row.threads)] if threads else []),
        short(row.ours),
        bench_table.rate(row.rate),
        f"{100 * row.rate / row.copy_rate:.0f}",
        best or NOTHING,
        short(row.times[best].median) if best else NOTHING,
        claim,
    ]


def _conditions(record: Record) -> Iterator[str]:
    """What the figures hold for, in sentences."""
    machine = record.machine
    dtypes = ", ".join(dict.fromkeys(row.dtype for row in record.measurements))
    rates = sorted({row.copy_rate / 1e9 for row in record.measurements})
    copies = " to ".join(f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}" for rate in rates)
    yield f"{machine.gpu or machine.cpu}, torch {machine.torch}, {dtypes}, {record.date[:10]}, commit"
    yield f"{(record.commit or record.build.get('commit') or 'unknown')[:12]};"
    yield f"copy rate {copies} GB/s;"
    if record.device == "cuda":
        yield "device time, cold L2;"
    if record.mean_ratio is not None:
        yield f"geometric mean of {len(record.counted)} ratios {record.mean_ratio:.2f}x;"
    if missing := list(dict.fromkeys(who.split(" at ")[0] for who in record.missing)):
        yield f"missing: {', '.join(missing)};"
    yield f"beside {', '.join(bench_table.peers_of(record))}."


def full(record: Record) -> Iterator[str]:
    """Everything: the conditions, every peer in every row, and what the rows come to."""
    yield from markdown_list(bench_table.header(record))
    yield from markdown_list([f"repeat it: `{record.command}`", *_clocks(record)])
    yield ""
    yield from markdown(bench_table.table(record))
    yield ""
    yield from markdown_list(bench_table.summary(record))


def _clocks(record: Record) -> list[str]:
    said = ", ".join(f"{name} {value}" for name, value in record.machine.clocks.items())
    return [f"right after work: {said}"] if said else []


FORMS: dict[str, Callable[[Record], Iterator[str]]] = {"short": brief, "full": full}


def markdown(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table: words to the left, figures to the right."""
    heading, *body = rows
    right = [all(_to_the_right(row[place]) for row in body) for place in range(len(heading))]
    yield _line(heading)
    yield _line(["---:" if each else "---" for each in right])
    yield from (_line([_plain(cell) for cell in row]) for row in body)


def _to_the_right(cell: str) -> bool:
    return cell == LAUNCH_BOUND or bench_table.is_figure(cell)


def markdown_list(sentences: Iterator[str] | Sequence[str]) -> Iterator[str]:
    yield from (f"- {_plain(sentence).strip()}" for sentence in sentences)


def paragraph(words: Iterator[str], width: int = 110) -> Iterator[str]:
    """Sentences, broken into lines."""
    line = ""
    for word in _plain(" ".join(words)).split(" "):
        if line and len(line) + 1 + len(word) > width:
            yield line
            line = word
        else:
            line = f"{line} {word}".strip()
    yield line


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(text: str) -> str:
    """Stars and bars mean something in Markdown."""
    return text.replace("*", r"\*").replace("|", r"\|")
