# SPDX-License-Identifier: Apache-2.0
"""Benchmark files: what they must hold, and that rmsnorm's holds what its figures are about."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from bench_records import RMSNORM, module, rmsnorm

from kernelworks import bench_case
from kernelworks.errors import RepositoryError

FILE = RMSNORM / "benchmarks/benchmark_rmsnorm.py"
GOOD = """
def work(**changes):
    case = dict(suite="s", name="n", shape=(2, 3), inputs=None, ours=None, peers={}, truth=None,
                outputs={"y": "value"}, bytes=None)
    return {**case, **changes}

"""


def written(tmp_path: Path, cases: str) -> Path:
    path = tmp_path / "benchmark_toy.py"
    path.write_text(GOOD + cases)
    return path


def test_suites_are_selected_and_smoke_is_not_part_of_all() -> None:
    offered = bench_case.read(FILE)
    assert offered.suites == ("seed", "add", "train", "smoke")
    counts = {suite: len(bench_case.select(offered, [suite])) for suite in (*offered.suites, "all")}
    assert counts == {"seed": 15, "add": 4, "train": 4, "smoke": 4, "all": 23}
    assert len(bench_case.select(offered, ["add", "smoke"])) == 8
    with pytest.raises(RepositoryError, match="no suite 'sede'; there is seed, add, train, smoke and all"):
        bench_case.select(offered, ["sede"])


def test_bytes_count_each_tensor_once() -> None:
    """Forward: x, y and the weight; training: x, y, dy, x, dx, the weight twice and its gradient."""
    for case in bench_case.read(FILE).cases:
        numel, width = math.prod(case.shape), case.shape[-1]
        tensors, vectors = {"add": (4, 1), "train": (5, 3)}.get(case.name, (2, 1))
        assert case.bytes(case.shape, 2) == 2 * (tensors * numel + vectors * width)


@pytest.mark.parametrize("case", bench_case.read(FILE).host["cuda"], ids=lambda case: case.label)
def test_peers_agree_with_each_other(case: bench_case.Case) -> None:
    inputs = case.inputs(case.shape, torch.float32, "cpu", torch.Generator().manual_seed(0))
    first, second = (case.peers[name]()(*inputs) for name in ("torch", "unfused"))
    torch.testing.assert_close(first, second)


def test_peers_are_all_there_are_or_those_asked_for() -> None:
    cases = bench_case.read(FILE).cases
    assert bench_case.peer_names(cases, None)[:3] == ("torch", "unfused", "compile")
    assert bench_case.peer_names(cases, ("quack", "torch", "quack")) == ("quack", "torch")


@pytest.mark.parametrize(
    ("cases", "message"),
    [
        ("", "CASES is missing or empty"),
        ("CASES = [{'suite': 's'}]", r"CASES\[0\] has no bytes, inputs, name, ours"),
        ("CASES = [work(), work(grads=True)]", r"CASES\[1\] has grads, which is none of suite"),
        ("CASES = [work(outputs={'y': 'rows'})]", "outputs are value, row, sum, not rows"),
    ],
)
def test_a_broken_file_is_told_what_is_wrong(tmp_path: Path, cases: str, message: str) -> None:
    with pytest.raises(RepositoryError, match=message):
        bench_case.read(written(tmp_path, cases))


@pytest.mark.parametrize(
    ("change", "refusal"),
    [(1.0, None), (1.01, r"y at \(65536, 128\) is 0\.01"), (math.nan, "is nan away from fp64")],
)
def test_the_class_of_kernels_benchmark_refuses_a_wrong_kernel(change: float, refusal: str | None) -> None:
    benchmark = module(FILE).RMSNorm()
    benchmark.kernel = rmsnorm(lambda y, calls: y * change)
    if refusal is not None:
        with pytest.raises(RuntimeError, match=refusal):
            benchmark.setup_qk_norm()
        return
    benchmark.setup_qk_norm()
    benchmark.benchmark_qk_norm()
    assert torch.allclose(benchmark.out, benchmark.verify_qk_norm(), atol=1e-2)
