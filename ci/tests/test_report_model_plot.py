# SPDX-License-Identifier: Apache-2.0
"""The plot of a model's record holds what the record says, and is the same for the same record."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest
from bench_model_records import measured, model_record, profile, tokens, work

pytest.importorskip("matplotlib", reason="plots need matplotlib")

from matplotlib.figure import Figure

from kernelworks import report_model_plot
from kernelworks.report_model_plot import IDLE, KINDS, THEMES, digest, shares, styles, svg


def drawn(*works: Any) -> Figure:
    figure = Figure()
    shares(figure, model_record(*works), THEMES["light"])
    return figure


@pytest.mark.parametrize("theme", THEMES)
def test_an_svg_that_is_the_same_twice(theme: str) -> None:
    (kind,) = KINDS
    first = svg(model_record(work(), tokens()), kind, theme)
    assert first == svg(model_record(work(), tokens()), kind, theme)
    ElementTree.fromstring(first)
    assert digest(model_record(work(), tokens())) in first


def test_bars_are_as_long_as_the_clock_says() -> None:
    (axes,) = drawn(work()).axes
    ends = [0.0] * 4
    for container in axes.containers:
        for place, bar in enumerate(container):
            assert bar.get_x() == pytest.approx(ends[place])  # stacked without a gap
            ends[place] += bar.get_width()
    assert ends == pytest.approx([60.0, 30.0, 40.0, 24.0])
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        *("eager", "kernels", "compile", "kernels+compile")
    ]
    said = [text.get_text() for text in axes.texts]
    assert said == [" 60.00 ms", " 30.00 ms, 2.00x", " 40.00 ms, 1.50x", " 24.00 ms, 2.50x"]


def test_a_panel_for_each_work_that_was_profiled() -> None:
    second = work(name="prefill", unit="prompt")
    assert len(drawn(work(), second, tokens()).axes) == 2


def test_the_legend_is_in_order() -> None:
    (legend,) = drawn(work()).legends
    assert [text.get_text() for text in legend.get_texts()] == [
        *("matmul", "kernelworks adaln", "torch.compile", "copies", IDLE)
    ]


def test_what_is_drawn_decides_on_the_digest() -> None:
    first = digest(model_record())
    slower = work(variants={"eager": measured(61.0, profile(matmul=25.0))})
    assert digest(model_record(slower)) != first
    assert digest(model_record(work())) == first
    assert digest(model_record(dtype="float16")) != first
    assert digest(model_record(commit="another")) == first  # is not in the plot


def test_each_of_our_kernels_has_a_shade() -> None:
    groups = ["matmul", "kernelworks adaln", "kernelworks rmsnorm", "kernelworks rope3d", "new group"]
    looks = styles(groups, THEMES["dark"])
    ours = [(looks[group]["color"], looks[group]["alpha"]) for group in groups[1:4]]
    assert len(set(ours)) == 3
    assert looks[report_model_plot.IDLE]["hatch"]
    assert "new group" in looks
