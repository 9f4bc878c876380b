# SPDX-License-Identifier: Apache-2.0
"""`kernelworks bench` for real: a right kernel, kernels that are wrong in three ways, and what is missing."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import pytest
from repositories import edit, git, variant

from kernelworks import benchmarking, catalog, loader
from kernelworks.errors import KernelworksError, RepositoryError, ToolchainError

BENCHMARK = """
import torch


def inputs(shape, dtype, device, generator):
    return (torch.randn(shape, generator=generator, device=device, dtype=dtype),)


def absent():
    import a_peer_that_nobody_has


def case(name, shape):
    return {
        "suite": "tiny",
        "name": name,
        "shapes": shape,
        "inputs": inputs,
        "ours": lambda kernel: kernel.twice,
        "peers": {"torch": lambda: lambda x: 2 * x, "absent": absent},
        "truth": lambda kernel, rows, x: (2 * x.flatten(0, -2)[rows].double(),),
        "outputs": {"y": "value"},
        "bytes": lambda shape, itemsize: 2 * itemsize * shape[0] * shape[1],
    }


CASES = [case("small", "16x64"), case("larger", "64x256")]
"""
RIGHT = "return ops.twice(x)"
WRONG = {
    "scaled": "return ops.twice(x) * 1.01",
    "NaN": "return ops.twice(x) * float('nan')",
    "stale": "return _FIRST.setdefault('y', ops.twice(x)).clone()\\n\\n\\n_FIRST = {}",
}


def parsed(root: Path, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    benchmarking.register(parser.add_subparsers())
    arguments = parser.parse_args(["bench", *words])
    arguments.root = root
    return arguments


def bench(root: Path, *words: str) -> int:
    usual = ["toy", "--device", "cpu", "--dtype", "float32", "--threads", "1", "--repeats", "5"]
    return benchmarking.run(parsed(root, *usual, *words))


def with_benchmark(root: Path) -> Path:
    folder = root / "kernels/toy/benchmarks"
    folder.mkdir()
    (folder / "benchmark_toy.py").write_text(BENCHMARK)
    return root


@pytest.fixture
def measured(built: Path) -> Path:
    """A built toy with a benchmark."""
    return with_benchmark(built)


def test_a_right_kernel_has_a_table_and_a_record(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Where git is there, it is believed.
    assert bench(measured, "--commit", "f" * 40, "--json", str(tmp_path / "record.json")) == 0
    shown = capsys.readouterr()
    assert "[2/2] larger 64x256 float32, threads 1: ours " in shown.err
    assert "geometric mean of vs best over 2 rows" in shown.out
    assert "missing: absent (No module named 'a_peer_that_nobody_has')" in shown.out
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["correct"] is True
    assert record["command"] == (
        "kernelworks bench toy --device cpu --suite all --dtype float32 --repeats 5 --threads 1"
    )
    assert record["commit"] == git(measured, "rev-parse", "HEAD")
    assert record["dirty"] is False
    assert record["build"]["variant"] == variant(measured).name
    assert record["build"]["commit"] == record["commit"]
    assert [len(row["samples"]["torch"]) for row in record["measurements"]] == [5, 5]
    assert str(measured) not in (tmp_path / "record.json").read_text()


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_kernel_ends_the_run_without_a_figure(
    measured: Path, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(variant(measured) / "__init__.py", RIGHT, WRONG[kind].replace("\\n", "\n"))
    assert bench(measured, "--json", str(tmp_path / "record.json")) == benchmarking.WRONG
    shown = capsys.readouterr().out
    assert "WRONG RESULT" in shown
    assert "small 16x64 float32, threads 1: ours: y " in shown
    assert ("not finite" in shown) == (kind == "NaN")
    assert "vs best" not in shown
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["correct"] is False
    assert [row["samples"] for row in record["measurements"]] == [{}]


def test_the_sentence_of_the_measuring_process_is_the_error(measured: Path) -> None:
    with pytest.raises(KernelworksError, match="no suite 'seed'; there is tiny and all"):
        bench(measured, "--suite", "seed")


def test_a_process_that_dies_is_an_error(measured: Path) -> None:
    with (measured / "kernels/toy/benchmarks/benchmark_toy.py").open("a") as file:
        file.write("\nimport os\n\nos._exit(7)\n")
    with pytest.raises(KernelworksError, match="ended with code 7"):
        bench(measured)


def test_a_kernel_without_a_benchmark_is_told_where_it_goes(repository: Path) -> None:
    with pytest.raises(RepositoryError, match=r"benchmarks/benchmark_toy\.py does not exist"):
        bench(repository)


@pytest.mark.skipif(loader.sees_gpu(), reason="there is a GPU")
def test_without_a_gpu_there_is_nothing_to_time(repository: Path) -> None:
    with_benchmark(repository)
    with pytest.raises(ToolchainError, match="no CUDA GPU here"):
        benchmarking.run(parsed(repository, "toy", "--device", "cuda"))


def test_defaults_depend_on_the_device(repository: Path) -> None:
    with_benchmark(repository)
    kernel = catalog.load(repository, "toy")
    request = benchmarking.request_for(kernel, parsed(repository, "toy", "--device", "cpu"))
    assert (request.suites, request.dtypes, request.peers) == (("all",), ("float32", "bfloat16"), None)
    request = benchmarking.request_for(kernel, parsed(repository, "toy", "--device", "cuda"))
    assert request.dtypes == ("bfloat16",)
    request = benchmarking.request_for(kernel, parsed(repository, "toy", "--peers", "torch, quack"))
    assert request.peers == ("torch", "quack")
    assert "--peers torch,quack" in benchmarking.command_of(kernel, request)
    request = benchmarking.request_for(kernel, parsed(repository, "toy", "--shape", "2x3", "4x5"))
    assert "--shape 2x3 4x5" in benchmarking.command_of(kernel, request)


def test_where_git_is_not_there_the_command_says_which_commit(measured: Path, tmp_path: Path) -> None:
    """M09: a copy on another machine is measured without its history."""
    said, out = "0123456789" * 4, tmp_path / "record.json"
    shutil.rmtree(measured / ".git")
    assert bench(measured, "--commit", f"{said}+dirty", "--json", str(out)) == 0
    record = json.loads(out.read_text())
    assert (record["commit"], record["dirty"]) == (said, True)
    with pytest.raises(SystemExit):
        parsed(measured, "toy", "--commit", "main")


def test_no_samples_are_refused(repository: Path) -> None:
    with pytest.raises(SystemExit):
        parsed(repository, "toy", "--repeats", "0")
