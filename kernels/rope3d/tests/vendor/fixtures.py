# SPDX-License-Identifier: Apache-2.0
"""Loads the kernel as a user does, and skips what this machine cannot run, with the reason.

A kernel's conftest.py names this module in `pytest_plugins`, and calls the fixture `kernel` by its name.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch

KERNEL = Path(__file__).resolve().parents[2]


def _in_manifest(key):
    """By hand: Python 3.10 has no tomllib, and a borrowed machine no other reader."""
    return re.search(rf'^{key} = "?([\w./-]+)', (KERNEL / "build.toml").read_text(), re.MULTILINE)[1]


REPO_ID, VERSION = _in_manifest("repo-id"), int(_in_manifest("version"))

# kernels reads this at every load; without it these tests are about the build that lies beside them.
os.environ.setdefault("LOCAL_KERNELS", f"{REPO_ID}={KERNEL}")

# Workers of pytest-xdist share the cores; two thread pools that spin on the same ones are slow.
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))


def pytest_addoption(parser):
    parser.addoption("--device", choices=("cpu", "cuda"), default="cpu", help="where the tensors live")


def pytest_configure(config):
    for line in (
        "cuda: needs a CUDA GPU",
        "slow: takes more than ten seconds",
        "kernels_ci: the short subset a Hub build runs",
    ):
        config.addinivalue_line("markers", line)


def pytest_collection_modifyitems(config, items):
    device = config.getoption("--device")
    reason = None
    if device == "cuda" and not torch.cuda.is_available():
        reason = "--device cuda, but torch sees no CUDA GPU"
    for item in items:
        if reason or (device != "cuda" and item.get_closest_marker("cuda")):
            item.add_marker(pytest.mark.skip(reason=reason or "only with --device cuda"))


@pytest.fixture(scope="session")
def device(pytestconfig):
    return torch.device(pytestconfig.getoption("--device"))


@pytest.fixture(scope="session")
def backend(device):
    """What to ask the loader for: a CUDA build of torch would pick its own backend for CPU tensors too."""
    return "cpu" if device.type == "cpu" else None


@pytest.fixture(scope="session")
def kernel_path():
    """The kernel's directory, as LOCAL_KERNELS names it."""
    entries = dict(entry.split("=", 1) for entry in os.environ["LOCAL_KERNELS"].split(":"))
    return Path(entries[REPO_ID])


@pytest.fixture(scope="session")
def kernel(backend):
    from kernels import get_kernel

    return get_kernel(REPO_ID, version=VERSION, backend=backend)


@pytest.fixture(scope="session")
def ops(kernel):
    return kernel._ops.ops


@pytest.fixture(autouse=True)
def _same_torch_state():
    """Tests that set threads or the seed leave nothing behind."""
    threads = torch.get_num_threads()
    torch.manual_seed(0)
    yield
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _dtype_exists_here(request, device):
    parameters = getattr(request.node, "callspec", None)
    if parameters and parameters.params.get("dtype") == torch.float64 and device.type != "cpu":
        pytest.skip("float64 is for the CPU")


@pytest.fixture
def fresh_dynamo():
    """For modules that compile: pytestmark = pytest.mark.usefixtures("fresh_dynamo")."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
