# SPDX-License-Identifier: Apache-2.0
"""Median, percentiles and the geometric mean, against numbers worked out by hand."""

from __future__ import annotations

import pytest

from kernelworks import bench_stats


def test_percentiles_interpolate_between_neighbours() -> None:
    samples = [40.0, 10.0, 30.0, 20.0, 50.0]
    assert bench_stats.percentile(samples, 0.0) == 10.0
    assert bench_stats.percentile(samples, 0.5) == 30.0
    assert bench_stats.percentile(samples, 0.9) == pytest.approx(46.0)
    assert bench_stats.percentile(samples, 1.0) == 50.0
    assert bench_stats.percentile([7.0], 0.9) == 7.0


def test_the_median_forgets_one_outlier() -> None:
    found = bench_stats.spread([1.0] * 9 + [1000.0])
    assert (found.median, found.p10) == (1.0, 1.0)
    assert found.p90 == pytest.approx(100.9)


def test_twice_as_fast_and_twice_as_slow_cancel() -> None:
    assert bench_stats.geometric_mean([2.0, 0.5]) == pytest.approx(1.0)
    assert bench_stats.geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
