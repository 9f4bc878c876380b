# SPDX-License-Identifier: Apache-2.0
"""Draws a record, as SVG for light and for dark pages; the same record gives the same bytes."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kernelworks.bench_record import LAUNCH_LATENCY_US, OURS, Measurement, Record
from kernelworks.bench_table import dimensions, peers_of, rate
from kernelworks.errors import ToolchainError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("bars", "roofline")


@dataclass(frozen=True)
class Theme:
    """Colours for one kind of page; what lies behind the plot shows through."""

    page: str  # what is behind, for the rims of marks
    text: str
    grid: str
    ours: str
    peers: tuple[str, ...]


THEMES = {
    "light": Theme(
        "#ffffff",
        "#1f2328",
        "#d1d9e0",
        "#0969da",
        ("#bc4c00", "#6e7781", "#8250df", "#1a7f37", "#bf3989", "#9a6700"),
    ),
    "dark": Theme(
        "#0d1117",
        "#e6edf3",
        "#3d444d",
        "#4493f8",
        ("#f0883e", "#9198a1", "#ab7df8", "#3fb950", "#f778ba", "#d29922"),
    ),
}
MARKERS = "osD^vP"
WIDTH = 9.0  # inches
ROW = 0.26  # of a row of bars
SETTINGS: Any = {
    "svg.hashsalt": "kernelworks",  # else ids are random
    "svg.fonttype": "path",  # looks the same wherever it is shown
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9,
}


def digest(record: Record) -> str:
    """Of what is drawn, and of the code that draws it: a plot that bears another one is out of date."""
    drawn = [
        [row.name, row.shape, row.dtype, row.threads, row.bytes, row.copy_rate, row.launch_bound]
        + [[who, f"{time.median:.6g}"] for who, time in row.times.items()]
        for row in record.measurements
    ]
    said = [record.kernel, record.machine.gpu or record.machine.cpu, record.machine.torch, drawn]
    return hashlib.sha256(json.dumps(said).encode() + Path(__file__).read_bytes()).hexdigest()[:32]


def svg(record: Record, kind: str, theme: str) -> str:
    """One plot."""
    draw = {"bars": bars, "roofline": roofline}[kind]
    return rendered(lambda figure: draw(figure, record, THEMES[theme]), title(record), digest(record))


def rendered(draw: Callable[[Figure], None], said: str, about: str) -> str:
    """The SVG of what `draw` draws, under this title, and with the digest of what it is about."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ToolchainError(f"plots need matplotlib ({error}); pip install 'kernelworks[report]'") from error
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(layout="constrained")
        draw(figure)
        target = io.StringIO()
        figure.savefig(
            target,
            format="svg",
            transparent=True,
            metadata={"Date": None, "Creator": None, "Title": said, "Description": about},
        )
    return "".join(f"{line.rstrip()}\n" for line in target.getvalue().splitlines())


def title(record: Record) -> str:
    """Of what and where."""
    rows = record.measurements
    dtypes = ", ".join(dict.fromkeys(row.dtype for row in rows))
    threads = sorted({row.threads for row in rows if row.threads is not None})
    said = f", threads {', '.join(map(str, threads))}" if threads else ""
    machine = record.machine.gpu or record.machine.cpu
    return f"{record.kernel} on {machine}, {dtypes}{said}, torch {record.machine.torch}"


def bars(figure: Figure, record: Record, theme: Theme) -> None:
    """The share of the copy rate that each row reaches: a bar for ours, a mark for each peer."""
    rows = record.measurements
    figure.set_size_inches(WIDTH, ROW * len(rows) + 1.1)
    axes = figure.subplots()
    places = range(len(rows))
    axes.barh(
        places,
        [100 * row.rate / row.copy_rate for row in rows],
        height=0.62,
        color=theme.ours,
        alpha=0.45,
        label=OURS,
        zorder=2,
    )
    for peer, style in styles(record, theme).items():
        there = [(place, row) for place, row in zip(places, rows, strict=True) if peer in row.samples]
        axes.plot(
            [share(row, peer) for _, row in there],
            [place for place, _ in there],
            linestyle="none",
            label=peer,
            zorder=4,
            **style,
        )
    axes.axvline(100, color=theme.text, linewidth=1, linestyle="--", zorder=3)
    axes.set_yticks(places, [_label(row, rows) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.set_xlabel("per cent of the copy rate of the same run (each byte counted once)")
    _finish(figure, axes, record, theme, grid="x")


def roofline(figure: Figure, record: Record, theme: Theme) -> None:
    """The rate over the bytes moved, under the two ceilings: the copy rate, and the time of a launch."""
    rows = record.measurements
    figure.set_size_inches(WIDTH, 5.0)
    axes = figure.subplots()
    axes.loglog()
    for peer, style in styles(record, theme).items():
        there = [row for row in rows if peer in row.samples]
        axes.plot(
            [row.bytes / 1e6 for row in there],
            [share(row, peer) / 100 * row.copy_rate / 1e9 for row in there],
            linestyle="none",
            label=peer,
            zorder=3,
            **style,
        )
    axes.plot(
        [row.bytes / 1e6 for row in rows],
        [row.rate / 1e9 for row in rows],
        "o",
        color=theme.ours,
        markersize=9,
        markeredgecolor=theme.page,
        markeredgewidth=0.7,
        label=OURS,
        zorder=4,
    )
    _ceilings(axes, record, theme)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,g}")
    axes.set_xlabel("MB moved, each byte counted once")
    axes.set_ylabel("GB/s")
    _finish(figure, axes, record, theme, grid="both")


def _ceilings(axes: Axes, record: Record, theme: Theme) -> None:
    """The copy rate, and on a GPU what the time of a launch leaves of it."""
    sizes = [row.bytes for row in record.measurements]
    low, high = min(sizes) / 1.6, max(sizes) * 1.6
    copy = max(row.copy_rate for row in record.measurements)
    style: dict[str, Any] = {"color": theme.text, "linewidth": 1, "linestyle": "--", "zorder": 1}
    knee = low
    if record.device == "cuda":
        launch = LAUNCH_LATENCY_US / 1e6
        knee = max(low, min(high, copy * launch))
        axes.plot([low / 1e6, knee / 1e6], [low / launch / 1e9, knee / launch / 1e9], **style)
        axes.annotate(
            f"{LAUNCH_LATENCY_US:.0f} us, a launch",
            (knee / 1.5 / 1e6, knee / 1.5 / launch / 1e9),
            xytext=(-8, 0),
            textcoords="offset points",
            ha="right",
            color=theme.text,
        )
    axes.plot([knee / 1e6, high / 1e6], [copy / 1e9] * 2, **style)
    axes.annotate(
        f"copy rate, {rate(copy)} GB/s",
        (high / 1e6, copy / 1e9),
        xytext=(0, 4),
        textcoords="offset points",
        ha="right",
        color=theme.text,
    )
    axes.set_xlim(low / 1e6, high / 1e6)


def styles(record: Record, theme: Theme) -> dict[str, Mapping[str, Any]]:
    """A colour and a shape for each peer, so that either tells them apart."""
    return {
        peer: {
            "marker": MARKERS[place % len(MARKERS)],
            "color": theme.peers[place % len(theme.peers)],
            "markersize": 6.5,
            "markeredgecolor": theme.page,
            "markeredgewidth": 0.7,
        }
        for place, peer in enumerate(peers_of(record))
    }


def share(row: Measurement, who: str) -> float:
    """Per cent of the copy rate."""
    return 100 * row.floor / row.times[who].median


def _label(row: Measurement, rows: Sequence[Measurement]) -> str:
    """The row's name, with what is not the same in all of them."""
    said = [row.name, dimensions(row.shape)]
    said += [row.dtype] if len({each.dtype for each in rows}) > 1 else []
    said += [f"threads {row.threads}"] if len({each.threads for each in rows}) > 1 else []
    said += ["(launch-bound)"] if row.launch_bound else []
    return " ".join(said)


def _finish(figure: Figure, axes: Axes, record: Record, theme: Theme, grid: Literal["x", "both"]) -> None:
    """Title, legend and the theme's colours."""
    axes.set_title(title(record), loc="left", color=theme.text, fontsize=10)
    axes.grid(axis=grid, color=theme.grid, linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=theme.text, length=0)
    axes.xaxis.label.set_color(theme.text)
    axes.yaxis.label.set_color(theme.text)
    for spine in axes.spines.values():
        spine.set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda place: labels[place] != OURS)
    figure.legend(
        [handles[place] for place in order],
        [labels[place] for place in order],
        loc="outside lower center",
        ncols=len(labels),
        frameon=False,
        labelcolor=theme.text,
    )
