# SPDX-License-Identifier: Apache-2.0
"""A record that is written and read is the same; what is not a record says so."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from bench_records import error, measurement, record

from kernelworks import bench_read
from kernelworks.bench_record import HostCost
from kernelworks.errors import RepositoryError


def test_a_record_survives(tmp_path: Path) -> None:
    errors = {"ours": (error(ulps=math.inf, complaint="bad"),)}
    for written in (
        record(
            measurement(apart={"ours": (1.0,), "torch": (2.0,)}),
            measurement(threads=None, calls=8),
            host=(HostCost("twice", (4, 4), "float32", {"ours": (9.0,)}),),
            missing={"quack": "No module named 'quack'"},
            rounding={"slow": "twice"},
            packages={"torch": {"a": "1"}},
        ),
        record(measurement(complaint="bad", errors=errors)),
    ):
        path = tmp_path / "record.json"
        path.write_text(written.to_json())
        assert bench_read.read(path) == written


def test_a_record_from_before_an_entry_was_added_is_read(tmp_path: Path) -> None:
    document = json.loads(record(measurement()).to_json())
    del document["packages"], document["rounding"], document["measurements"][0]["apart"]
    path = tmp_path / "record.json"
    path.write_text(json.dumps(document))
    assert bench_read.read(path) == record(measurement())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "has format None, and this tool reads 1"),
        ('{"format": 2}', "has format 2"),
        ('{"format": 1}', "is not a record"),
        ('{"format": 1, "measurements": [3]}', "is not a record"),
    ],
)
def test_what_is_not_a_record_says_so(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(RepositoryError, match=message):
        bench_read.read(path)
