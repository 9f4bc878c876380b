# SPDX-License-Identifier: Apache-2.0
"""Releases read from tags and commits."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from kernelworks import releases
from kernelworks.hub_data import Commit, Refs

DATE = datetime(2026, 11, 30, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("branch", "version"),
    [("v1", 1), ("v12", 12), ("v01", None), ("v1.0", None), ("main", None), ("v", None), ("xv1", None)],
)
def test_a_branch_serves_a_version_only_when_the_client_would_ask_for_it(
    branch: str, version: int | None
) -> None:
    assert releases.version_of(branch) == version


def test_releases_of_one_version_in_order_with_what_their_commits_say() -> None:
    said = releases.description("abc with uncommitted changes", ["x", "y"])
    refs = Refs({"v1": "3"}, {"v1.10": "3", "v1.2": "2", "v2.0": "9", "v1.2.3": "2", "nightly": "1"})
    older, newer = releases.of_version(refs, 1, [Commit("3", "toy v1.10", said, DATE)])
    assert (older.tag, older.commit, older.date, older.source) == ("v1.2", "2", None, "-")
    assert newer == releases.Release("v1.10", 10, "3", DATE, "abc with uncommitted changes", ("x", "y"))
    assert releases.at([older, newer], "2") is older
    assert releases.at([older, newer], "4") is None
