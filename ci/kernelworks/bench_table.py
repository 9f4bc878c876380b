# SPDX-License-Identifier: Apache-2.0
"""A record as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kernelworks.bench_record import OURS, Error, HostCost, Measurement, Record

NOTHING = "-"


def lines(record: Record) -> Iterator[str]:
    """The whole report; of a wrong run, only what is wrong."""
    if not record.correct:
        yield from mismatch(record)
        return
    yield from header(record)
    yield ""
    yield from columns(table(record))
    yield ""
    yield from summary(record)


def mismatch(record: Record) -> Iterator[str]:
    """What is wrong and where; nothing was timed there, and no figure is given."""
    yield f"{record.kernel}: WRONG RESULT, so nothing is claimed"
    for row in record.measurements:
        for complaint in row.complaints:
            yield f"  {row.label}: {complaint}"
    if not record.measurements:
        yield "  no case was run"


def header(record: Record) -> Iterator[str]:
    """The conditions that hold for every row."""
    machine = record.machine
    versions = [f"torch {machine.torch}"]
    if machine.gpu:
        versions += [
            f"CUDA {machine.cuda}",
            f"driver {machine.driver or 'unknown'}",
            f"triton {machine.triton}",
        ]
    built = _commit(record.build.get("commit"), bool(record.build.get("dirty")))
    yield f"{record.kernel} version {record.version}, at commit {_commit(record.commit, record.dirty)}"
    yield f"{record.build.get('variant')}, {record.build.get('profile')} build of commit {built}"
    yield f"{machine.gpu or machine.cpu}, {', '.join(versions)}"
    yield "equal work: same inputs, dtypes and eps; every call allocates its outputs; grad on or off alike"
    if record.device == "cuda":
        yield "cold L2: inputs and outputs rotate through three times the cache; device time, by CUDA graphs"
    else:
        yield "two sets of inputs in turn, in caches if they fit; allocation included, in its steady state"
    rates = sorted({(row.threads or 0, row.copy_rate) for row in record.measurements})
    said = ", ".join(f"{rate / 1e9:,.1f} GB/s" + (f" (threads {t})" if t else "") for t, rate in rates)
    yield f"copy rate in this run, read and written: {said}"
    yield f"median microseconds of at most {record.repeats} interleaved samples; vs best: fastest peer / ours"
    if any(row.apart for row in record.measurements):
        yield "apart: the same calls with a short kernel of torch's between them, whose own time is taken off"
    yield "error against fp64, before timing: the largest, in units in the last place (ulp) and otherwise"
    yield "peers' ulp: in the order of their columns; * of a peer that rounds otherwise"
    for peer in peers_of(record):
        about = [f"{name} {number}" for name, number in record.packages.get(peer, {}).items()]
        about += [record.notes[peer]] if peer in record.notes else []
        about += [f"* rounds {record.rounding[peer]}"] if peer in record.rounding else []
        if about:
            yield f"{peer}: {'; '.join(about)}"


def _commit(commit: str | None, dirty: bool) -> str:
    return (commit or "unknown")[:12] + (" + changes" if dirty else "")


def peers_of(record: Record) -> list[str]:
    """Who was timed beside ours, in order."""
    return list(dict.fromkeys(who for row in record.measurements for who in row.samples if who != OURS))


def table(record: Record) -> list[list[str]]:
    """The rows as text, under their headings."""
    peers = peers_of(record)
    threads = any(row.threads is not None for row in record.measurements)
    apart = any(row.apart for row in record.measurements)
    heading = ["case", "shape", "dtype", *(["threads"] if threads else []), OURS, "p10-p90", *peers]
    heading += ["vs best", "GB/s", "% copy", *(["apart", "vs best apart"] if apart else [])]
    heading += ["ulp", "relative", "absolute", *(["peers' ulp"] if peers else []), ""]
    return [heading, *(_cells(row, record, peers, threads, apart) for row in record.measurements)]


def _cells(row: Measurement, record: Record, peers: Sequence[str], threads: bool, apart: bool) -> list[str]:
    times = row.times
    ours = times[OURS]
    worst = worst_of(row, OURS)
    return [
        row.name,
        dimensions(row.shape),
        row.dtype,
        *([str(row.threads)] if threads else []),
        short(ours.median),
        f"{short(ours.p10)}-{short(ours.p90)}",
        *(short(times[peer].median) if peer in times else NOTHING for peer in peers),
        ratio(row.ratio),
        rate(row.rate),
        f"{100 * row.rate / row.copy_rate:.0f}",
        *([short(row.times_apart[OURS].median), ratio(row.ratio_apart)] if apart else []),
        f"{worst.ulps:.2f}",
        f"{worst.relative:.1e}",
        f"{worst.absolute:.1e}",
        *([_ulps_of(row, peers, record.rounding)] if peers else []),
        ", ".join(marks(row)),
    ]


def _ulps_of(row: Measurement, peers: Sequence[str], rounding: Mapping[str, str]) -> str:
    """The error of each peer, in the order of the columns."""
    return " ".join(
        f"{worst_of(row, peer).ulps:.2f}{'*' if peer in rounding else ''}" if peer in row.errors else NOTHING
        for peer in peers
    )


def worst_of(row: Measurement, who: str) -> Error:
    """The worst of its outputs."""
    return max(row.errors[who], key=lambda error: error.ulps)


def marks(row: Measurement) -> list[str]:
    """What a reader must know before believing the row."""
    return [
        *(["launch-bound"] if row.launch_bound else []),
        *(["in cache"] if row.above_memory else []),
    ]


def dimensions(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def ratio(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}x"


def rate(bytes_a_second: float) -> str:
    """In GB/s."""
    return f"{bytes_a_second / 1e9:,.0f}" if bytes_a_second >= 1e11 else f"{bytes_a_second / 1e9:.1f}"


def summary(record: Record) -> Iterator[str]:
    """What the rows come to; launch-bound ones are shown, and not counted."""
    for host in record.host:
        yield _host_line(host)
    for who, reason in record.missing.items():
        yield f"missing: {who} ({reason})"
    counted = record.counted
    left_out = len(record.measurements) - len(counted)
    if record.mean_ratio is None:
        yield "no peer beside a row that is not launch-bound: nothing to compare with"
        return
    aside = f", {left_out} left out as launch-bound or without a peer" if left_out else ""
    yield f"geometric mean of vs best over {len(counted)} rows{aside}: {record.mean_ratio:.3f}x"
    aside_ratios = [row.ratio for row in record.measurements if row.launch_bound and row.ratio is not None]
    if aside_ratios:
        yield f"launch-bound rows, not counted: {min(aside_ratios):.2f}x to {max(aside_ratios):.2f}x"
    smallest = min(counted, key=lambda row: row.ratio or 0.0)
    yield f"smallest: {smallest.ratio:.3f}x at {smallest.label}, beside {smallest.best_peer}"


def _host_line(host: HostCost) -> str:
    each = ", ".join(f"{who} {time.median:.2f}" for who, time in host.times.items())
    return f"host time of one eager {host.name} {dimensions(host.shape)} {host.dtype}, us: {each}"


def short(value: float) -> str:
    """Three significant digits and no exponent; more only before the decimal point."""
    if value >= 100:
        return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"
    return f"{value:.2f}"


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Aligned text: words to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    figures = [is_figure(column[-1]) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, figures, strict=True)
        )
        yield "  ".join(cells).rstrip()


def is_figure(cell: str) -> bool:
    """Whether this is a number, a ratio, or nothing."""
    return (
        cell == NOTHING
        or (cell[:1].isdigit() and cell.count("x") <= 1 and not cell[-1:].isalpha())
        or (cell[-1:] == "x")
    )
