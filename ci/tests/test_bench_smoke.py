# SPDX-License-Identifier: Apache-2.0
"""The benchmark of rmsnorm, as it is run for its figures, on tiny shapes; no time is asserted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench_records import RMSNORM

from kernelworks import bench_read, catalog, loader
from kernelworks.cli import main

ROOT = catalog.find_root(Path(__file__))


@pytest.fixture(autouse=True)
def _built() -> None:
    if not loader.loads(catalog.load(ROOT, "rmsnorm")):
        pytest.skip("rmsnorm is not built; run `kernelworks build rmsnorm`")


@pytest.mark.slow
def test_every_kind_of_row_is_verified_and_every_peer_is_there_or_named(tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    words = ["bench", "rmsnorm", "--root", str(ROOT), "--device", "cpu", "--suite", "smoke"]
    assert main([*words, "--dtype", "bfloat16", "--repeats", "2", "--json", str(out)]) == 0
    record = bench_read.read(out)
    assert {row.name for row in record.measurements} == {"LTX-Video", "qk-norm", "qk views", "add", "train"}
    for row in record.measurements:
        assert set(row.samples) == set(row.errors) == {"ours", "torch", "unfused", "compile"}, row.label
        assert not row.complaints
    assert set(record.missing) == {"liger", "quack"}
    assert {host.name for host in record.host} == {"rms_norm", "add_rms_norm"}
    assert record.command.startswith("kernelworks bench rmsnorm --device cpu --suite smoke --dtype bfloat16")


@pytest.mark.slow
def test_the_same_file_serves_kernels_benchmark() -> None:
    pytest.importorskip("tabulate", reason="kernels benchmark prints with it")
    unset = ("HF_HUB_DISABLE_TELEMETRY", "DISABLE_TELEMETRY", "DO_NOT_TRACK", "HF_TOKEN")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    command = [str(Path(sys.executable).with_name("kernels")), "benchmark", str(RMSNORM)]
    done = subprocess.run(
        [*command, "--iterations", "1", "--warmup", "1"],
        env={**environment, "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # where it prints its table
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    for workload in ("add_rms_norm", "forward_backward", "ltx_video", "qk_norm", "qwen3_8b"):
        (row,) = [line for line in done.stdout.splitlines() if "│" in line and workload in line]
        assert row.rstrip(" │").endswith("✓"), row
