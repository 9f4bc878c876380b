# SPDX-License-Identifier: Apache-2.0
"""Records of models as Markdown: a short table, or everything that is in them."""

from __future__ import annotations

from collections.abc import Iterator

from kernelworks import bench_model_table
from kernelworks.bench_model_groups import brief_name
from kernelworks.bench_model_record import BOTH, COMPILE, EAGER, FLOOR, KERNELS, ModelRecord, WorkResult
from kernelworks.bench_table import NOTHING, ratio, short
from kernelworks.report_tables import markdown, markdown_list, paragraph

LARGEST = 6  # single kernels of each variant that a full report names
# The claims of the short table: the time of the second over that of the first.
CLAIMS = ((KERNELS, EAGER), (KERNELS, COMPILE), (BOTH, COMPILE))


def lines(record: ModelRecord, form: str) -> Iterator[str]:
    """The record in one of the forms, which are those of a kernel's record."""
    yield from (brief if form == "short" else full)(record)


def brief(record: ModelRecord) -> Iterator[str]:
    """What a reader of a README asks: how long users wait, and what kernels and torch.compile do to it."""
    variants = record.variants
    claims = [(one, other) for one, other in CLAIMS if one in variants and other in variants]
    heading = [bench_model_table.NAMES[record.model], *(f"{name}, ms" for name in variants)]
    heading += [f"{one} vs {other}" for one, other in claims]
    yield from markdown([heading, *(_brief_cells(record, work) for work in record.works)])
    yield ""
    yield from paragraph(_conditions(record))


def _brief_cells(record: ModelRecord, work: WorkResult) -> list[str]:
    variants = record.variants
    cells = [f"{work.name}, a {work.unit}" if work.name != work.unit else work.name]
    cells += [
        short(work.variants[name].time.median) if name in work.variants else NOTHING for name in variants
    ]
    return cells + [
        ratio(work.ratio(one, other)) for one, other in CLAIMS if one in variants and other in variants
    ]


def _conditions(record: ModelRecord) -> Iterator[str]:
    """What the figures hold for, in sentences."""
    machine = record.machine
    packages = ", ".join(f"{name} {number}" for name, number in record.packages.items() if name != "triton")
    yield f"{machine.gpu or machine.cpu}, torch {machine.torch}, {packages}, {record.dtype}, random weights,"
    yield f"{record.date[:10]}, commit {(record.commit or 'unknown')[:12]}; medians, taken in turns;"
    yield f"torch.compile in mode {record.settings.get('compile', {}).get('mode', 'default')}."


def full(record: ModelRecord) -> Iterator[str]:
    """Everything: the conditions, and for each work its times, what had them, and by name what is left."""
    yield from markdown_list(bench_model_table.header(record))
    yield from markdown_list([f"repeat it: `{record.command}`"])
    for work in record.works:
        yield ""
        yield f"**{work.name}**, milliseconds a {work.unit}:"
        yield ""
        yield from markdown(bench_model_table.times(work))
        if any(measured.profile for measured in work.variants.values()):
            yield ""
            yield f"Where the time of the device went, milliseconds a {work.unit}:"
            yield ""
            yield from markdown(bench_model_table.shares(work))
            yield ""
            yield f"The largest kernels of other groups than {', '.join(FLOOR[:-1])} and {FLOOR[-1]}:"
            yield ""
            yield from markdown(largest(work))


def largest(work: WorkResult) -> list[list[str]]:
    """By name, what of each variant is left to be made faster."""
    rows = [["variant", f"ms a {work.unit}", "calls", "group", "kernel"]]
    for name, measured in work.variants.items():
        shares = measured.profile.top if measured.profile is not None else ()
        rest = [share for share in shares if share.group not in FLOOR]
        rows += [
            [name, f"{share.ms:.3f}", f"{share.calls:.0f}", share.group, brief_name(share.name)]
            for share in rest[:LARGEST]
        ]
    return rows
