# SPDX-License-Identifier: Apache-2.0
"""A kernel's tests, run as the tool runs them: elsewhere, offline, and against the build."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from kernelworks import catalog, cli, loader, testing
from kernelworks.errors import BuildError

CONFTEST = """
import pytest


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--device") == "cuda":
        for item in items:
            item.add_marker(pytest.mark.skip(reason="no GPU"))
"""
TESTS = """
import os
from pathlib import Path

import pytest


def test_the_build_is_what_the_hub_would_give():
    import torch
    from kernels import get_kernel

    toy = get_kernel("kernelworks/toy", version=1, backend="cpu")
    assert toy.twice(torch.ones(3)).tolist() == [2.0] * 3


def test_the_working_directory_is_elsewhere(pytestconfig):
    assert not Path.cwd().is_relative_to(pytestconfig.rootpath)
    assert os.environ["HF_HUB_OFFLINE"] == "1"


@pytest.mark.slow
def test_the_marker_of_the_repository_is_known(): ...


def test_failing():
    raise ValueError


@pytest.mark.skip(reason="always")
def test_skipped(): ...
"""
CONFIGURATION = '[tool.pytest.ini_options]\naddopts = "--strict-markers"\nmarkers = ["slow: long"]\n'


def with_tests(root: Path) -> Path:
    folder = root / "kernels/toy/tests"
    folder.mkdir()
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_toy.py").write_text(TESTS)
    (root / "pyproject.toml").write_text(CONFIGURATION)
    return root


def parsed(*words: str) -> argparse.Namespace:
    return cli.parse(["test", *words])


def test_the_build_is_tested_and_counted(built: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = with_tests(built)
    report = testing.run_tests(root, catalog.load(root, "toy"), "cpu")
    output = capfd.readouterr().out
    assert (report.passed, report.failed, report.errors, report.skipped) == (3, 1, 0, 1), output
    assert report.returncode == 1
    assert str(report).startswith("toy on cpu: 3 passed, 1 failed, 1 skipped in ")
    assert "ValueError" in output
    assert not (root / ".pytest_cache").exists()


@pytest.mark.skipif(loader.sees_gpu(), reason="there is a GPU")
def test_without_a_gpu_cuda_is_skipped_which_fails_only_when_asked_for(
    repository: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = with_tests(repository)
    kernel = catalog.load(root, "toy")
    report = testing.run_tests(root, kernel, "cuda", ["-rs"])
    assert (report.ran, report.skipped, report.returncode) == (0, 5, 0)
    assert "no GPU" in capfd.readouterr().out
    assert testing.verdict([report], strict=False) == 0
    assert testing.verdict([report], strict=True) == testing.FAILED


def test_arguments_for_pytest_follow_a_double_dash() -> None:
    arguments = parsed("rmsnorm", "geglu", "--device", "cpu", "--", "-k", "strided", "-x")
    assert arguments.names == ["rmsnorm", "geglu"]
    assert arguments.device == "cpu"
    assert arguments.extra == ("-k", "strided", "-x")
    assert parsed("rmsnorm").extra == ()


def test_a_missing_build_names_the_command(repository: Path) -> None:
    with pytest.raises(BuildError, match="run `kernelworks build toy --backend cpu`"):
        testing.run_tests(repository, catalog.load(repository, "toy"), "cpu")


def test_other_local_kernels_are_kept(repository: Path) -> None:
    kernel = catalog.load(repository, "toy")
    inherited = {"LOCAL_KERNELS": "a/b=/somewhere:kernelworks/toy=/stale", "HOME": "/home"}
    environment = testing.environment(kernel, inherited)
    assert environment == {
        "HOME": "/home",
        "HF_HUB_OFFLINE": "1",
        "LOCAL_KERNELS": f"a/b=/somewhere:kernelworks/toy={kernel.directory}",
    }


def test_a_process_that_died_is_a_failure(tmp_path: Path) -> None:
    report = testing.read_report(tmp_path / "never-written.xml", "toy", "cuda", -11)
    assert str(report) == "toy on cuda: no test was found in 0.0 s (pytest ended with code -11)"
    assert testing.verdict([report], strict=False) == testing.FAILED
