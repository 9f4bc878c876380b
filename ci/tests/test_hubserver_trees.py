# SPDX-License-Identifier: Apache-2.0
"""What the beginning of an object tells, whatever is in it."""

from __future__ import annotations

import random
from pathlib import Path

import pygit2
import pytest

from kernelworks.hubserver import trees


@pytest.mark.parametrize("symbols", [1, 20, 256])
def test_type_and_size_are_read_from_the_beginning(tmp_path: Path, symbols: int) -> None:
    """Contents of many different bytes begin with long code tables, which come before the header."""
    repository = pygit2.init_repository(str(tmp_path), bare=True)
    chance = random.Random(0)
    for size in (0, 1, 100, 3_000, 42_000):
        content = bytes(min(int(chance.expovariate(8 / symbols)), symbols - 1) for _ in range(size))
        oid = str(repository.create_blob(content))
        assert trees.header(repository, oid) == (pygit2.enums.ObjectType.BLOB, size)
