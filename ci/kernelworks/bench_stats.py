# SPDX-License-Identifier: Apache-2.0
"""What many samples say in few numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """What the samples of one measurement say."""

    median: float
    p10: float
    p90: float


def percentile(samples: Sequence[float], share: float) -> float:
    """The value below which this share of the samples lies, interpolated between neighbours."""
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(samples: Sequence[float]) -> Spread:
    """Median, and how far the middle eighty per cent reach."""
    return Spread(statistics.median(samples), percentile(samples, 0.1), percentile(samples, 0.9))


def geometric_mean(ratios: Sequence[float]) -> float:
    """The mean of ratios, in which twice as fast and twice as slow cancel."""
    return math.exp(statistics.fmean(map(math.log, ratios)))
