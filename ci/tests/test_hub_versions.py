# SPDX-License-Identifier: Apache-2.0
"""Publishing and loading with the oldest clients that pyproject allows, and with the newest there are."""

from __future__ import annotations

import site
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tomlkit
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


def environment_with(folder: Path, wanted: list[str]) -> Path:
    """An interpreter with these packages in front of those of the running one; torch is too large for two."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "--target", str(packages), *wanted], capture_output=True, text=True, check=False
    )
    assert "ResolutionImpossible" not in done.stderr, done.stderr
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        pytest.skip(f"pip cannot download {', '.join(wanted)}: {reason}")
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
