# SPDX-License-Identifier: Apache-2.0
"""Publishes the toy to a real Hub from processes of its own, and looks at what came of it."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from hub_process import RunningHub
from repositories import CPU_VARIANT, GIT

from kernelworks import official
from kernelworks.cli import main
from kernelworks.hub import Hub

REPO = "kernelworks/toy"
OTHER_VARIANT = "torch-stable-abi211-cpu-aarch64-linux"
CARD = """---
library_name: kernels
license: apache-2.0
tags: [kernels]
---

# toy

```python
import torch
from kernels import get_kernel

toy = get_kernel("kernelworks/toy", version=1, trust_remote_code=["kernelworks/toy"])
assert toy.twice(torch.ones(3)).tolist() == [2.0] * 3
```
"""
CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--device", default="cpu")
"""
TESTS = """
import os

import pytest
import torch
from kernels import get_kernel


@pytest.mark.kernels_ci
def test_twice():
    toy = get_kernel("kernelworks/toy", version=1)
    assert "snapshots" in toy.__file__, "the published one, not the build of the working tree"
    assert toy.twice(torch.ones(3)).tolist() == [2.0] * 3


def test_that_is_not_short():
    raise AssertionError("only the short ones are run")
"""
CONFIGURATION = '[tool.pytest.ini_options]\naddopts = "--strict-markers"\nmarkers = ["kernels_ci: short"]\n'


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    output: str


def kernelworks(root: Path, *words: str, env: dict[str, str], timeout: float = 120) -> Done:
    """Run the tool as a person does; both outputs come back together."""
    done = subprocess.run(
        [sys.executable, "-m", "kernelworks", *words, "--root", str(root)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Done(done.returncode, done.stdout)


def here(root: Path, *words: str, env: dict[str, str]) -> Done:
    """The same in this process, which saves the second that a new one takes to import everything."""
    before, output = dict(os.environ), io.StringIO()
    os.environ.clear()
    os.environ.update(env)
    try:
        with redirect_stdout(output), redirect_stderr(output):
            code = main([*words, "--root", str(root)])
    finally:
        os.environ.clear()
        os.environ.update(before)
    return Done(code, output.getvalue())


def publish(root: Path, *words: str, env: dict[str, str]) -> Done:
    """Publish the toy without loading it, which takes a second instead of ten."""
    return here(root, "publish", "toy", "--no-load", *words, env=env)


def published(root: Path, *words: str, env: dict[str, str]) -> dict[str, object]:
    """Publish, which must go well, and return the receipt."""
    path = root.parent / "receipt.json"
    done = publish(root, "--receipt", str(path), *words, env=env)
    assert done.code == 0, done.output
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


def variant(root: Path, name: str = CPU_VARIANT) -> Path:
    return root / "kernels/toy/build" / name


def with_card(root: Path, text: str = CARD) -> Path:
    (root / "kernels/toy/CARD.md").write_text(text)
    return root


def with_tests(root: Path, text: str = TESTS) -> Path:
    folder = root / "kernels/toy/tests"
    folder.mkdir(exist_ok=True)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_toy.py").write_text(text)
    (root / "pyproject.toml").write_text(CONFIGURATION)
    return root


def add_variant(root: Path, name: str = OTHER_VARIANT) -> Path:
    """The same build under another name."""
    return Path(shutil.copytree(variant(root), variant(root, name)))


def change(folder: Path, **texts: str | None) -> None:
    """Other Python files in a built variant (None removes one), and a digest that knows of them."""
    for name, text in texts.items():
        path = folder / f"{name}.py"
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
    metadata = json.loads((folder / "metadata.json").read_text())
    metadata["digest"] = official.digest(folder)
    (folder / "metadata.json").write_text(json.dumps(metadata, indent=2))


def rewrite(folder: Path, edit: Callable[[dict[str, object]], object]) -> None:
    """Another metadata.json in a built variant."""
    metadata = json.loads((folder / "metadata.json").read_text())
    edit(metadata)
    (folder / "metadata.json").write_text(json.dumps(metadata, indent=2))


def files(hub: RunningHub, revision: str, repo_id: str = REPO) -> set[str]:
    """What a reader sees at a revision."""
    return set(Hub(hub.endpoint).tree(repo_id, revision))


def tags(hub: RunningHub, repo_id: str = REPO) -> dict[str, str]:
    refs = Hub(hub.endpoint).refs(repo_id)
    return dict(refs.tags) if refs else {}


def branches(hub: RunningHub, repo_id: str = REPO) -> dict[str, str]:
    refs = Hub(hub.endpoint).refs(repo_id)
    return dict(refs.branches) if refs else {}


def titles(hub: RunningHub, revision: str = "v1", repo_id: str = REPO) -> list[str]:
    return [commit.title for commit in Hub(hub.endpoint).commits(repo_id, revision)]


def assert_intact(hub: RunningHub) -> None:
    """What git has to say about every repository, and the tool about the rest."""
    for repository in (hub.root / "repos").glob("*/*.git"):
        done = subprocess.run(
            [*GIT, "fsck", "--full", "--strict"], cwd=repository, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    check = subprocess.run(
        [sys.executable, "-m", "kernelworks", "hub", "check", "--root", str(hub.root)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 0, check.stdout + check.stderr
