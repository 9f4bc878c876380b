# SPDX-License-Identifier: Apache-2.0
"""The benchmark of each kernel, as it is run for its figures, on tiny shapes; no time is asserted."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernelworks import bench_read, catalog, loader
from kernelworks.cli import main

ROOT = catalog.find_root(Path(__file__))


@dataclass(frozen=True)
class Offered:
    """What the benchmark file of a kernel holds, for a CPU."""

    kernel: str
    rows: set[str]
    peers: set[str]
    missing: set[str]
    host: set[str]
    workloads: tuple[str, ...]  # of `kernels benchmark`
    options: tuple[str, ...] = ()
    some: frozenset[str] = frozenset()  # peers of some rows only


OFFERED = [
    Offered(
        "rmsnorm",
        rows={"LTX-Video", "qk-norm", "qk views", "add", "train"},
        peers={"torch", "unfused", "compile"},
        missing={"liger", "quack"},
        host={"rms_norm", "add_rms_norm"},
        workloads=("add_rms_norm", "forward_backward", "ltx_video", "qk_norm", "qwen3_8b"),
    ),
    Offered(
        "adaln",
        rows={
            *("rms", "layer", "gate", "fused rms", "fused layer"),
            *("LTX tables", "Wan tables", "each token", "train rms", "train fused layer"),
        },
        peers={"torch", "compile"},
        missing=set(),
        host={"ada_norm rms", "ada_norm layer", "gate_residual", "gate_residual_ada_norm"},
        workloads=("forward_backward", "gate_residual", "gate_residual_ada_norm", "layer", "rms"),
        options=("--threads", "1"),  # each further number of threads compiles every peer again
    ),
    Offered(
        "geglu",
        rows={"erf", "tanh", "tanh split", "train erf"},
        peers={"torch", "compile"},
        missing={"liger"},
        host={"geglu", "geglu_split"},
        workloads=("erf", "forward_backward", "split", "tanh"),
        options=("--threads", "1"),
    ),
    Offered(
        "rope3d",
        rows={"LTX", "Qwen3", "Qwen2.5-VL", "Wan tables", "Qwen3 norm", "train LTX norm"},
        peers={"torch", "compile"},
        some=frozenset({"compile angles", "compile apart"}),
        missing={"liger", "quack"},
        host={"rope3d", "apply_rotary", "rms_norm_rope3d"},
        workloads=("ltx", "ltx_tables"),
        options=("--threads", "1"),
    ),
]


@pytest.fixture(params=OFFERED, ids=lambda offered: offered.kernel)
def offered(request: pytest.FixtureRequest) -> Offered:
    name = request.param.kernel
    if not loader.loads(catalog.load(ROOT, name)):
        pytest.skip(f"{name} is not built; run `kernelworks build {name}`")
    return request.param


@pytest.mark.slow
def test_every_kind_of_row_is_verified_and_every_peer_is_there_or_named(
    tmp_path: Path, offered: Offered
) -> None:
    out = tmp_path / "record.json"
    words = ["bench", offered.kernel, "--root", str(ROOT), "--device", "cpu", "--suite", "smoke"]
    words += ["--dtype", "bfloat16", "--repeats", "2", "--json", str(out), *offered.options]
    assert main(words) == 0
    record = bench_read.read(out)
    assert {row.name for row in record.measurements} == offered.rows
    for row in record.measurements:
        ran = set(row.samples)
        assert ran == set(row.errors)
        assert {"ours", *offered.peers} <= ran <= {"ours", *offered.peers, *offered.some}, row.label
        assert not row.complaints
    assert set(record.missing) == offered.missing
    assert {host.name for host in record.host} == offered.host
    said = f"kernelworks bench {offered.kernel} --device cpu --suite smoke --dtype bfloat16"
    assert record.command.startswith(said)


@pytest.mark.slow
def test_the_same_file_serves_kernels_benchmark(offered: Offered) -> None:
    pytest.importorskip("tabulate", reason="kernels benchmark prints with it")
    unset = ("HF_HUB_DISABLE_TELEMETRY", "DISABLE_TELEMETRY", "DO_NOT_TRACK", "HF_TOKEN")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    command = [str(Path(sys.executable).with_name("kernels")), "benchmark"]
    command += [str(ROOT / "kernels" / offered.kernel), "--iterations", "1", "--warmup", "1"]
    done = subprocess.run(
        command,
        env={**environment, "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # where it prints its table
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    for workload in offered.workloads:
        (row,) = [line for line in done.stdout.splitlines() if f" {workload} " in line and "│" in line]
        assert row.rstrip(" │").endswith("✓"), row
