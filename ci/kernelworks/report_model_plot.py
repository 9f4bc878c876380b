# SPDX-License-Identifier: Apache-2.0
"""Draws where the time of a model goes: for each work and variant one bar, stacked by what had the device."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelworks import bench_model_table, report_plot
from kernelworks.bench_model_groups import COMPILED, OTHER, OURS, in_order
from kernelworks.bench_model_record import EAGER, ModelRecord, Profile, WorkResult
from kernelworks.bench_table import ratio, short
from kernelworks.report_plot import THEMES, Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["KINDS", "THEMES", "digest", "svg"]

KINDS = ("shares",)
IDLE = "idle"
ROW = 0.42  # inches of a bar with what is around it
SMALLEST = 5e-4  # ms; a group that is smaller everywhere is not drawn


def profiled(record: ModelRecord) -> list[WorkResult]:
    """The works of which there is something to draw."""
    return [work for work in record.works if any(measured.profile for measured in work.variants.values())]


def digest(record: ModelRecord) -> str:
    """Of what is drawn, and of the code that draws it: a plot that bears another one is out of date."""
    drawn = [
        [work.name, work.unit, name, f"{each.time.median:.6g}", _groups(each.profile)]
        for work in profiled(record)
        for name, each in work.variants.items()
    ]
    code = Path(__file__).read_bytes() + Path(report_plot.__file__).read_bytes()
    return hashlib.sha256(json.dumps([title(record), drawn]).encode() + code).hexdigest()[:32]


def _groups(profile: Profile | None) -> dict[str, str]:
    return {} if profile is None else {group: f"{ms:.6g}" for group, ms in profile.groups.items()}


def title(record: ModelRecord) -> str:
    """Of what and where."""
    machine = record.machine
    name = bench_model_table.NAMES[record.model]
    return f"{name} on {machine.gpu or machine.cpu}, {record.dtype}, torch {machine.torch}"


def svg(record: ModelRecord, kind: str, theme: str) -> str:
    """One plot."""
    draw = {"shares": shares}[kind]
    return report_plot.rendered(
        lambda figure: draw(figure, record, THEMES[theme]), title(record), digest(record)
    )


def shares(figure: Figure, record: ModelRecord, theme: Theme) -> None:
    """A panel for each work: as long as a unit of it took by the clock."""
    works = profiled(record)
    rows = [len(work.variants) for work in works]
    figure.set_size_inches(report_plot.WIDTH, ROW * sum(rows) + 0.75 * len(works) + 0.8)
    panels = figure.subplots(len(works), 1, squeeze=False, height_ratios=rows)[:, 0]
    groups = in_order(
        {
            group
            for work in works
            for each in work.variants.values()
            for group, ms in (each.profile.groups.items() if each.profile else ())
            if ms >= SMALLEST
        }
    )
    looks = styles(groups, theme)
    for axes, work in zip(panels, works, strict=True):
        _panel(axes, work, groups, looks, theme)
    panels[0].set_title(title(record), loc="left", color=theme.text, fontsize=10)
    handles: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    order = [name for name in (*groups, IDLE) if name in handles]
    figure.legend(
        [handles[name] for name in order],
        order,
        loc="outside lower center",
        ncols=min(len(order), 5),
        frameon=False,
        labelcolor=theme.text,
    )


def _panel(
    axes: Axes, work: WorkResult, groups: list[str], looks: dict[str, dict[str, Any]], theme: Theme
) -> None:
    """The bars of one work, and behind each what it took and how that stands to eager."""
    names = list(work.variants)
    reached = [0.0] * len(names)
    parts = {group: [_ms(work, name, group) for name in names] for group in groups}
    parts[IDLE] = [work.variants[name].idle or 0.0 for name in names]
    for group, widths in parts.items():
        if any(widths):
            axes.barh(range(len(names)), widths, left=reached, height=0.66, label=group, **looks[group])
            reached = [left + width for left, width in zip(reached, widths, strict=True)]
    for place, name in enumerate(names):
        beside = work.ratio(name, EAGER)
        said = f" {short(work.variants[name].time.median)} ms"
        said += f", {ratio(beside)}" if beside is not None else ""
        axes.text(reached[place], place, said, va="center", ha="left", color=theme.text)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, 1.2 * max(reached))
    axes.set_xlabel(f"{work.name}: ms a {work.unit}", color=theme.text, loc="left")
    axes.grid(axis="x", color=theme.grid, linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=theme.text, length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _ms(work: WorkResult, name: str, group: str) -> float:
    profile = work.variants[name].profile
    return 0.0 if profile is None else profile.groups.get(group, 0.0)


def styles(groups: list[str], theme: Theme) -> dict[str, dict[str, Any]]:
    """Grey for what stays, blue for ours, other colours for what is left."""
    colours = {
        "matmul": theme.peers[1],
        "convolution": theme.peers[1],
        "attention": theme.peers[1],
        COMPILED: theme.peers[2],
        "norms and sums": theme.peers[0],
        "elementwise": theme.peers[5],
        "copies": theme.peers[4],
        OTHER: theme.peers[3],
    }
    faint = {"convolution": 0.8, "attention": 0.6}
    ours = [group for group in groups if group.startswith(OURS)]
    found: dict[str, dict[str, Any]] = {
        group: {"color": colours.get(group, theme.peers[3]), "alpha": faint.get(group, 1.0)}
        for group in groups
    }
    for place, group in enumerate(ours):
        found[group] = {"color": theme.ours, "alpha": 1 - 0.6 * place / max(1, len(ours))}
    found[IDLE] = {"facecolor": "none", "edgecolor": theme.grid, "hatch": "////", "linewidth": 0.6}
    return {group: {**look, "zorder": 2} for group, look in found.items()}
