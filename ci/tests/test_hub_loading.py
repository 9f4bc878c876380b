# SPDX-License-Identifier: Apache-2.0
"""Kernels loaded from a Hub by the real `kernels`, each time in a fresh process with a cache of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hub_kernel
import pytest
from hub_process import RunningHub, client, running_hub
from huggingface_hub import CommitOperationAdd, HfApi
from repositories import edit

from kernelworks.cli import main

REPO = hub_kernel.REPO
BENCHMARK = """
import torch
from kernels.benchmark import Benchmark

class Scale(Benchmark):
    def setup(self):
        self.x = torch.ones(8)
        self.out = torch.empty(8)

    def benchmark_scale(self):
        self.out.copy_(self.kernel.scale(self.x))

    def verify_scale(self):
        return 2 * self.x
"""
LOAD = """
import sys
from kernels import get_kernel
for options in map(eval, sys.argv[1:]):
    print("result", get_kernel("acme/scale-it", **options).scale(21))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("loading")


@pytest.fixture(scope="module")
def hub(place: Path) -> Iterator[RunningHub]:
    with running_hub(place / "hub", trusted=("acme",)) as found:
        hub_kernel.publish(found.endpoint, place / "kernel")
        add(found, "v1", {"benchmarks/benchmark_scale.py": BENCHMARK.encode()})
        yield found
        found.check()


def add(hub: RunningHub, branch: str, files: dict[str, bytes], repo: str = REPO) -> str:
    api = HfApi(endpoint=hub.endpoint, token=False)
    api.create_repo(repo, repo_type="kernel", exist_ok=True)
    api.create_branch(repo, branch=branch, repo_type="kernel", exist_ok=True)
    operations = [CommitOperationAdd(path, data) for path, data in files.items()]
    made = api.create_commit(repo, operations, commit_message="change", repo_type="kernel", revision=branch)
    return str(made.oid)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def kernels(hub: RunningHub, home: Path, *arguments: str) -> str:
    """The installed command line of `kernels`, asked as its users ask."""
    program = Path(sys.executable).with_name("kernels")
    done = subprocess.run(
        [program, *arguments],
        env=hub.environment(home),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_fresh_client_loads_by_version_and_by_every_kind_of_revision(
    hub: RunningHub, tmp_path: Path
) -> None:
    """L05: the addresses of the kernel type are there as soon as something is published."""
    api = HfApi(endpoint=hub.endpoint, token=False)
    commit = api.repo_info(REPO, repo_type="kernel", revision="v1").sha
    api.create_tag(REPO, tag="v1.1", revision="v1", repo_type="kernel", tag_message="first")
    revisions = ["v1", "refs/heads/v1", "v1.1", str(commit)]
    options = ["dict(version=1)", *(f"dict(revision={revision!r})" for revision in revisions)]
    assert client(LOAD, *options, env=hub.environment(tmp_path)).count("result 42") == 5
    api.delete_tag(REPO, tag="v1.1", repo_type="kernel")


@pytest.mark.slow
def test_a_new_commit_is_loaded_and_an_old_one_stays(hub: RunningHub, tmp_path: Path) -> None:
    """A client with a warm cache follows its version's branch; one that names a commit does not."""
    hub_kernel.write_variant(tmp_path / "old", version=5, factor=3)
    hub_kernel.write_variant(tmp_path / "new", version=5, factor=5)
    old = add(hub, "v5", files_of(tmp_path / "old"))
    environment = hub.environment(tmp_path / "home")
    assert "result 63" in client(LOAD, "dict(version=5)", env=environment)
    add(hub, "v5", files_of(tmp_path / "new"))
    pinned = f"dict(revision={old!r})"
    assert "result 105\nresult 63" in client(LOAD, "dict(version=5)", pinned, env=environment)


@pytest.mark.slow
def test_the_command_line_of_kernels_works(hub: RunningHub, tmp_path: Path) -> None:
    """versions, info, lock and download, and `kernels benchmark`, which asks for a model."""
    assert "Version 1" in kernels(hub, tmp_path / "home", "versions", REPO)
    info = json.loads(kernels(hub, tmp_path / "home", "info", REPO, "--version", "1", "--json"))
    assert (info["name"], info["version"], info["backends"]) == ("scale-it", 1, ["cpu"])
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(f'[tool.kernels.dependencies]\n"{REPO}" = 1\n')
    kernels(hub, tmp_path / "home", "lock", str(project))
    commit = HfApi(endpoint=hub.endpoint, token=False).repo_info(REPO, repo_type="kernel", revision="v1").sha
    assert str(commit) in (project / "kernels.lock").read_text()
    kernels(hub, tmp_path / "home", "download", str(project))
    assert list((tmp_path / "home").rglob("snapshots/*/build/*/__init__.py"))
    result = tmp_path / "result.json"
    options = ("--version", "1", "--iterations", "3", "--warmup", "1", "--output", str(result))
    kernels(hub, tmp_path / "home", "benchmark", REPO, *options)
    assert json.loads(result.read_text())["results"][0]["verified"] is True


def test_no_variant_for_this_machine_is_an_error_that_lists_them(hub: RunningHub, tmp_path: Path) -> None:
    """L01: each variant that is there, and why it was not taken, for a torch that nothing was built for."""
    names = ["torch29-cxx11-cpu-x86_64-linux", "torch-stable-abi211-cu130-x86_64-linux"]
    for name in names:
        hub_kernel.write_variant(tmp_path, version=7, name=name)
    add(hub, "v7", files_of(tmp_path))
    fake = "import torch; torch.__version__ = '2.99.0+cpu'\n"
    said = client(fake + LOAD, "dict(version=7)", env=hub.environment(tmp_path / "home"), check=False)
    assert "Cannot find a build variant for this system" in said
    assert all(name in said for name in names)
    assert "2.99" in said


# The ranks of one job, forked behind the import of torch as it takes longest.
RANKS = """
import os, sys
import torch
home, children = sys.argv[1], []
for rank in range(int(sys.argv[4])):
    child = os.fork()
    if not child:
        os.environ["HF_HOME"] = f"{home}/{rank}"
        from kernels import get_kernel
        code = 0 if get_kernel(sys.argv[2], version=int(sys.argv[3])).scale(21) == 42 else 1
        os._exit(code)
    children.append(child)
assert not any(os.waitpid(child, 0)[1] for child in children)
"""


@pytest.mark.slow
def test_requests_do_not_grow_with_variants_or_ranks(hub: RunningHub, tmp_path: Path) -> None:
    """L04: eight cold clients at once, of one variant and of forty; then warm ones download nothing."""
    for number in range(40):
        name = hub_kernel.VARIANT if number == 0 else f"torch2{number}-cxx11-cu{number}-x86_64-linux"
        hub_kernel.write_variant(tmp_path / "forty", name=name)
    hub_kernel.write_variant(tmp_path / "one")
    add(hub, "v1", files_of(tmp_path / "one"), repo="acme/one")
    add(hub, "v1", files_of(tmp_path / "forty"), repo="acme/forty")

    def ranks(repo: str, count: int) -> list[str]:
        before, unused = len(hub.requests()), hub.environment(tmp_path / "unused")
        client(RANKS, str(tmp_path / repo), repo, "1", str(count), env=unused)
        return [line["path"] for line in hub.requests()[before:] if "harness" not in line["path"]]

    one, forty = ranks("acme/one", 1), ranks("acme/forty", 8)
    assert len(one) <= 10
    assert len(forty) == 8 * len(one)
    warm = ranks("acme/forty", 8)
    assert not [path for path in warm if "/resolve/" in path]
    assert len(warm) <= 8 * 3


@pytest.mark.slow
def test_two_versions_live_in_one_process(hub: RunningHub, built_once: Path, tmp_path: Path) -> None:
    """L08: the compiled toy twice, with other sources and another version; each gives its own result."""
    root = Path(shutil.copytree(built_once, tmp_path / "repository"))
    add(
        hub, "v1", {f"build/{k}": v for k, v in files_of(root / "kernels/toy/build").items()}, repo="acme/toy"
    )
    edit(root / "kernels/toy/build.toml", "version = 1", "version = 2")
    for header in ("common/factor.h", "kernels/toy/kernel_src/vendor/factor.h"):
        text = (root / header).read_text()
        (root / header).write_text(text.replace("2", "3"))
    shutil.rmtree(root / "kernels/toy/build")
    assert main(["build", "toy", "--backend", "cpu", "--root", str(root)]) == 0
    add(
        hub, "v2", {f"build/{k}": v for k, v in files_of(root / "kernels/toy/build").items()}, repo="acme/toy"
    )
    code = """
import torch
from kernels import get_kernel
x = torch.ones(3)
for turn in range(2):
    one, two = (get_kernel("acme/toy", version=version) for version in (1, 2))
    print("results", one.twice(x).tolist(), two.twice(x).tolist())
"""
    said = client(code, env=hub.environment(tmp_path / "home"))
    assert said.count("results [2.0, 2.0, 2.0] [3.0, 3.0, 3.0]") == 2, said


def test_a_module_of_the_same_name_stays_the_user_s(hub: RunningHub, tmp_path: Path) -> None:
    """L07: before and after the kernel is loaded, and loading takes nothing from it."""
    for path in ("scale_it.py", "scale_it_2/__init__.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("mine = True\n")
    code = f"""
from kernels import get_kernel
import scale_it_2
kernel = get_kernel({REPO!r}, version=1)
import scale_it, sys
assert scale_it.mine and scale_it_2.mine and not hasattr(kernel, "mine")
assert sys.modules["scale_it"] is scale_it
print(kernel.scale(21))
"""
    env = hub.environment(tmp_path / "home", PYTHONPATH=str(tmp_path))
    assert client(code, env=env).splitlines()[-1] == "42"
