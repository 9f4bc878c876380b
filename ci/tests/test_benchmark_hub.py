# SPDX-License-Identifier: Apache-2.0
"""The Hub's benchmark in a short round: what it promises about requests and memory holds there too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelworks import catalog

ROOT = catalog.find_root(Path(__file__))
BENCHMARK = ROOT / "ci/benchmarks/benchmark_hub.py"
RECORD = ROOT / "docs/results/hub/loopback.json"
PROMISES = {
    "publishing everything takes under 30 s",
    "publishing nothing takes under 3 s",
    "the requests of a cold load do not grow with the number of variants",
    "all clients at once succeed",
    "the server stays under 300 MB",
}
TIMES = {promise for promise in PROMISES if "takes under" in promise}  # of a machine that does nothing else


@pytest.mark.slow
def test_a_short_round(tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--quick", "--json", str(out)],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    record = json.loads(out.read_text())
    assert {name for name, good in record["goals"].items() if not good} <= TIMES, done.stdout
    assert record["goals"].keys() == PROMISES
    assert all(record["samples"].values()), "something was not measured"


def test_the_record_is_whole_and_keeps_the_promises() -> None:
    """Times are held against it where nothing else was running; the rest does not depend on that."""
    record = json.loads(RECORD.read_text())
    was_busy = max(record["samples"]["load_average_before"]) > record["machine"]["cores"]
    held = PROMISES - TIMES if was_busy else PROMISES
    assert {name for name, good in record["goals"].items() if good} >= held
    assert record["sizes"]["variants"] == 40
    assert record["sizes"]["data_bytes"] == 5_000_000
    assert record["sizes"]["clients"] == 16
    for key in ("commit", "machine", "versions", "command", "time"):
        assert record[key]
