# SPDX-License-Identifier: Apache-2.0
"""Repositories around the toy kernel, for tests to build in and to break."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_process import RunningHub, add_token, running_hub
from huggingface_hub import HfApi
from repositories import new_repository

from kernelworks import toolchain
from kernelworks.cli import main
from kernelworks.errors import ToolchainError


def pytest_configure() -> None:
    """A shell has jobs in its background ignore Ctrl-C, and so do all their children; some tests send it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository where nothing is built yet; the space in its name must not matter."""
    return new_repository(tmp_path / "a repository")


@pytest.fixture(scope="session")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy built for the CPU, for tests that only look."""
    root = new_repository(tmp_path_factory.mktemp("built") / "repository")
    assert main(["build", "toy", "--backend", "cpu", "--root", str(root)]) == 0
    return root


@pytest.fixture
def built(built_once: Path, tmp_path: Path) -> Path:
    """A copy of it with objects and dates, to change something in and build again."""
    return Path(shutil.copytree(built_once, tmp_path / "repository"))


@pytest.fixture(scope="session")
def nvcc() -> toolchain.Cuda:
    """The CUDA compiler; tests that ask for it are skipped where there is none."""
    try:
        return toolchain.cuda_toolkit()
    except ToolchainError as error:
        pytest.skip(f"no CUDA compiler: {error}")


@pytest.fixture(scope="session")
def built_cuda(nvcc: toolchain.Cuda, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy built for four architectures, the last of which no nvcc knows."""
    root = new_repository(tmp_path_factory.mktemp("cuda") / "repository")
    archs = ["8.0", "9.0a", "12.0+PTX", "99.0"]
    assert main(["build", "toy", "--backend", "cuda", "--arch", *archs, "--root", str(root)]) == 0
    return root


@pytest.fixture(scope="session")
def hub_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    """One Hub for many tests, as starting one takes seconds; everybody may write to it."""
    with running_hub(tmp_path_factory.mktemp("session") / "hub") as running:
        yield running


@pytest.fixture
def hub(hub_of_session: RunningHub) -> Iterator[RunningHub]:
    """That Hub, with no repository on it."""
    yield hub_of_session
    for path in (hub_of_session.root / "repos").glob("*/*.git"):
        repo_id = f"{path.parent.name}/{path.stem}"
        HfApi(hub_of_session.endpoint, token=False).delete_repo(repo_id, repo_type="kernel")


@pytest.fixture
def env(hub: RunningHub, tmp_path: Path) -> dict[str, str]:
    """What a client of that Hub needs: its address, and a cache of its own."""
    return hub.environment(tmp_path / "home")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the tests of one module."""
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def tokens(place: Path) -> dict[str, str]:
    """Who there is on a Hub of the module's own; the file is `tokens.json` in that folder."""
    file = place / "tokens.json"
    return {
        "ci": add_token(file, "ci", "acme", write=True),
        "reader": add_token(file, "reader", "acme", write=False),
        "other": add_token(file, "other", "emca", write=True),
        "old": add_token(file, "old", "acme", write=True, days=-1),
    }
