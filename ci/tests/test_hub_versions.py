# SPDX-License-Identifier: Apache-2.0
"""Publishing and loading with the oldest clients that pyproject allows, and with the newest there are."""

from __future__ import annotations

import site
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import hub_kernel
import pytest
import tomlkit
from hub_process import client, running_hub
from huggingface_hub import CommitOperationAdd, HfApi
from packaging.requirements import Requirement
from publications import REPO, with_tests
from repositories import CPU_VARIANT

from kernelworks import catalog

CLIENTS = ("huggingface-hub", "kernels")
LOAD = f"""
import huggingface_hub, kernels, torch
toy = kernels.get_kernel({REPO!r}, version=1, trust_remote_code=[{REPO!r}])
assert toy.twice(torch.ones(2)).tolist() == [2.0, 2.0]
"""
SCALE = f"""
import kernels
repo = {hub_kernel.REPO!r}
print(kernels.get_kernel(repo, revision="v1.0", trust_remote_code=[repo]).scale(3))
"""
VERSIONS = """
from importlib.metadata import version
print(version("huggingface-hub"), version("kernels"))
"""


def allowed() -> list[Requirement]:
    """What pyproject says of the two clients."""
    project = tomlkit.parse((catalog.find_root(Path(__file__)) / "pyproject.toml").read_text())
    found = map(Requirement, project["project"]["dependencies"])  # type: ignore[index, arg-type]
    return [each for each in found if each.name in CLIENTS]


def oldest() -> list[str]:
    return [
        f"{each.name}=={bound.version}"
        for each in allowed()
        for bound in each.specifier
        if bound.operator == ">="
    ]


def newest() -> list[str]:
    return [str(each) for each in allowed()]


def oldest_of_the_hub() -> list[str]:
    """The lower bounds of the server's own libraries."""
    project = tomlkit.parse((catalog.find_root(Path(__file__)) / "pyproject.toml").read_text())
    found = map(Requirement, project["project"]["optional-dependencies"]["hub"])  # type: ignore[index, arg-type]
    return [f"{each.name}=={next(iter(each.specifier)).version}" for each in found]


def install(packages: Path, wanted: list[str]) -> None:
    """Put packages into a folder of their own, or skip where there are none to be had."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "--target", str(packages), *wanted], capture_output=True, text=True, check=False
    )
    assert "ResolutionImpossible" not in done.stderr, done.stderr
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        pytest.skip(f"pip cannot download {', '.join(wanted)}: {reason}")


def environment_with(folder: Path, wanted: list[str]) -> Path:
    """An interpreter with these packages in front of those of the running one; torch is too large for two."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    install(packages, wanted)
    lines = [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()]
    (packages / "running.pth").write_text("\n".join(lines) + "\n")
    return folder / "bin/python"


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [oldest, newest], ids=["oldest", "newest"])
def test_publish_verify_and_load(
    built: Path, env: dict[str, str], tmp_path: Path, wanted: Callable[[], list[str]]
) -> None:
    requirements = wanted()
    assert len(requirements) == len(CLIENTS)
    python = environment_with(tmp_path / "environment", requirements)
    got = subprocess.run([python, "-c", VERSIONS], env=env, capture_output=True, text=True, check=True)
    for requirement, version in zip(map(Requirement, requirements), got.stdout.split(), strict=True):
        assert version in requirement.specifier, got.stdout
    command = [str(python), "-m", "kernelworks", "publish", "toy", "--root", str(with_tests(built))]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"loaded      {CPU_VARIANT}" in done.stdout
    assert "toy on cpu: 1 passed" in done.stdout
    again = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180, check=True)
    assert "nothing to do" in again.stdout
    load = subprocess.run([python, "-c", LOAD], env=env, capture_output=True, text=True, check=False)
    assert load.returncode == 0, load.stderr


@pytest.mark.slow
def test_the_hub_serves_with_its_oldest_libraries(tmp_path: Path) -> None:
    """Also for Python 3.10, for which there is no newer pygit2 than 1.18."""
    packages = tmp_path / "packages"
    install(packages, oldest_of_the_hub())
    with running_hub(tmp_path / "hub", environment={"PYTHONPATH": str(packages)}) as hub:
        hub_kernel.publish(hub.endpoint, tmp_path / "kernel")
        api = HfApi(endpoint=hub.endpoint, token=False)
        large = CommitOperationAdd("large", bytes(400_000))
        api.create_commit(hub_kernel.REPO, [large], commit_message="large", repo_type="kernel")
        api.create_tag(hub_kernel.REPO, tag="v1.0", tag_message="said", revision="v1", repo_type="kernel")
        assert client(SCALE, env=hub.environment(tmp_path / "home")).splitlines()[-1] == "6"
        assert b"scale-it" in hub.ask("GET", f"/{hub_kernel.REPO}").body
        hub.check()
