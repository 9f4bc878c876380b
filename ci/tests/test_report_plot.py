# SPDX-License-Identifier: Apache-2.0
"""Plots: the same bytes from the same record, both themes, and a digest that tells when they are old."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from bench_records import MACHINE, measurement, record

from kernelworks import report_plot
from kernelworks.bench_record import Record

pytest.importorskip("matplotlib", reason="plots need matplotlib")
GPU = replace(MACHINE, gpu="NVIDIA H200")


def drawn() -> Record:
    rows = [
        measurement(ours=ours, threads=None, bytes=moved, copy_rate=4e12, shape=(moved, 2))
        for ours, moved in ((2.5, 40_000), (12.0, 20_000_000), (30.0, 100_000_000))
    ]
    return record(*rows, device="cuda", machine=GPU)


@pytest.mark.parametrize("kind", report_plot.KINDS)
@pytest.mark.parametrize("theme", report_plot.THEMES)
def test_a_plot_is_an_svg_in_the_colours_of_its_theme(kind: str, theme: str) -> None:
    text = report_plot.svg(drawn(), kind, theme)
    assert ElementTree.fromstring(text).tag.endswith("svg")
    for colour in (report_plot.THEMES[theme].ours, report_plot.THEMES[theme].peers[0]):
        assert colour in text
    other = "dark" if theme == "light" else "light"
    assert report_plot.THEMES[other].text not in text
    assert report_plot.digest(drawn()) in text
    assert "<dc:date>" not in text
    assert "toy on NVIDIA H200, bfloat16, torch 2.13" in text


@pytest.mark.parametrize("kind", report_plot.KINDS)
def test_the_same_record_gives_the_same_bytes(kind: str) -> None:
    assert report_plot.svg(drawn(), kind, "light") == report_plot.svg(drawn(), kind, "light")


def test_a_row_on_a_cpu_is_drawn_too() -> None:
    assert "<svg" in report_plot.svg(record(measurement()), "roofline", "dark")


def test_another_time_is_another_digest() -> None:
    one, other = record(measurement(ours=10.0)), record(measurement(ours=10.1))
    assert report_plot.digest(one) == report_plot.digest(record(measurement(ours=10.0)))
    assert report_plot.digest(one) != report_plot.digest(other)


def test_a_share_is_of_the_copy_rate() -> None:
    row = measurement(ours=10.0, bytes=1_000_000, copy_rate=200e9)
    assert report_plot.share(row, "ours") == pytest.approx(50.0)
    assert report_plot.share(row, "torch") == pytest.approx(25.0)
