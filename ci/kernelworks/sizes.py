# SPDX-License-Identifier: Apache-2.0
"""Sizes as people read them."""

from __future__ import annotations


def human(size: int) -> str:
    """Bytes with the unit that leaves three digits at most."""
    number, unit = float(size), "B"
    for larger in ("kB", "MB", "GB"):
        if number >= 1000:
            number, unit = number / 1000, larger
    return f"{size} B" if unit == "B" else f"{number:.1f} {unit}"
