# SPDX-License-Identifier: Apache-2.0
"""Sizes as people read them."""

from __future__ import annotations

import pytest

from kernelworks.sizes import human


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (5_242_880, "5.2 MB"), (2**40, "1099.5 GB")],
)
def test_unit(size: int, text: str) -> None:
    assert human(size) == text
