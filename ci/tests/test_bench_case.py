# SPDX-License-Identifier: Apache-2.0
"""Benchmark files: what they must hold, and that rmsnorm's holds what its figures are about."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
from bench_records import RMSNORM, module, rmsnorm

from kernelworks import bench_case
from kernelworks.errors import RepositoryError

FILE = RMSNORM / "benchmarks/benchmark_rmsnorm.py"
GOOD = """
def work(**changes):
    case = dict(suite="s", name="n", shapes="2x3 4x5", inputs=None, ours=None, peers={}, truth=None,
                outputs={"y": "value"}, bytes=None)
    return {**case, **changes}

"""


def written(tmp_path: Path, cases: str) -> Path:
    path = tmp_path / "benchmark_toy.py"
    path.write_text(GOOD + cases)
    return path


def test_suites_are_selected_and_smoke_is_not_part_of_all() -> None:
    offered = bench_case.read(FILE)
    assert offered.suites == ("seed", "wide", "qknorm", "add", "train", "smoke")
    counts = {suite: len(bench_case.select(offered, [suite])) for suite in (*offered.suites, "all")}
    assert counts == {"seed": 10, "wide": 3, "qknorm": 6, "add": 4, "train": 4, "smoke": 5, "all": 27}
    assert len(bench_case.select(offered, ["add", "smoke"])) == 9
    listed = "seed, wide, qknorm, add, train, smoke and all"
    with pytest.raises(RepositoryError, match=f"no suite 'sede'; there is {listed}"):
        bench_case.select(offered, ["sede"])


def test_shapes_are_selected_within_suites() -> None:
    offered = bench_case.read(FILE)
    chosen = bench_case.select(offered, ["seed", "wide"], ["8192x8192", "1x1024x4096"])
    assert [case.written_shape for case in chosen] == ["1x1024x4096", "8192x8192"]
    with pytest.raises(RepositoryError, match="no case has the shape 8192x8192; there is 1x1024x2048, "):
        bench_case.select(offered, ["seed"], ["8192x8192"])


def test_bytes_count_each_tensor_once() -> None:
    """Forward: x, y and the weight; training: x, y, dy, x, dx, the weight twice and its gradient.

    q and k are 40 of the 48 heads of a fused projection, and are counted alike, packed or as views.
    """
    for case in bench_case.read(FILE).cases:
        numel, width = math.prod(case.shape), case.shape[-1]
        if case.name in ("qk packed", "qk views"):
            assert case.bytes(case.shape, 2) == 2 * (2 * numel * 40 // 48 + 2 * 128)
            continue
        tensors, vectors = {"add": (4, 1), "train": (5, 3)}.get(case.name, (2, 1))
        assert case.bytes(case.shape, 2) == 2 * (tensors * numel + vectors * width)


def test_q_and_k_are_views_of_one_projection_or_packed_with_the_same_values() -> None:
    cases = {case.name: case for case in bench_case.read(FILE).cases if case.suite == "qknorm"}
    made = {
        name: cases[name].inputs((8, 6144), torch.bfloat16, "cpu", torch.Generator().manual_seed(0))
        for name in ("qk views", "qk packed")
    }
    q, k, *_ = made["qk views"]
    assert q.stride() == k.stride() == (6144, 128, 1)
    assert q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr()
    assert k.storage_offset() == 32 * 128
    assert all(t.is_contiguous() for t in made["qk packed"])
    for view, packed in zip(made["qk views"], made["qk packed"], strict=True):
        assert torch.equal(view, packed)
    assert cases["qk views"].wanted_shapes[1] == (cases["qk views"].shape[0], 8, 128)


@pytest.mark.parametrize("peer", ["liger", "quack"])
def test_what_is_not_installed_says_so_with_an_import_error(
    peer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("liger_kernel", "liger_kernel.ops", "quack"):
        monkeypatch.setitem(sys.modules, package, None)
    for case in bench_case.read(FILE).cases:
        with pytest.raises(ImportError, match="liger_kernel" if peer == "liger" else peer):
            case.peers[peer]()


def test_what_is_known_of_a_peer_is_read() -> None:
    peers = bench_case.read(FILE).peers
    assert peers["quack"].packages == ("quack-kernels", "nvidia-cutlass-dsl")
    assert peers["liger"].devices == ("cuda",)
    assert peers["unfused"].rounding is not None
    assert peers["torch"].devices == ("cpu", "cuda")


@pytest.mark.parametrize("case", bench_case.read(FILE).host["cuda"], ids=lambda case: case.label)
def test_peers_agree_with_each_other(case: bench_case.Case) -> None:
    inputs = case.inputs(case.shape, torch.float32, "cpu", torch.Generator().manual_seed(0))
    first, second = (case.peers[name]()(*inputs) for name in ("torch", "unfused"))
    torch.testing.assert_close(first, second)


def test_peers_are_all_there_are_or_those_asked_for() -> None:
    cases = bench_case.read(FILE).cases
    assert bench_case.peer_names(cases, None) == ("torch", "unfused", "compile", "liger", "quack")
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
