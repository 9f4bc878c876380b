# SPDX-License-Identifier: Apache-2.0
"""`make release-rehearsal` with the toy kernel: from a tag to get_kernel, and back."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import publications
import pytest
from repositories import commit, edit, new_repository

from kernelworks import catalog

ROOT = catalog.find_root(Path(__file__))
sys.path.insert(0, str(ROOT))  # as `python -m` from there has it

from examples.release_rehearsal import Stage  # noqa: E402

CHANGELOG = "# Changelog of toy\n\n## 1.0 (not yet published)\n\n- `twice`\n"


def ready(root: Path) -> Path:
    """The toy with all that a kernel has that is released."""
    new_repository(root)
    publications.with_card(publications.with_tests(root))
    (root / "kernels/toy/CHANGELOG.md").write_text(CHANGELOG)
    (root / "kernels/toy/benchmarks").mkdir()
    (root / "kernels/toy/benchmarks/benchmark_toy.py").write_text("")
    commit(root, "toy: ready to be released")
    return root


def rehearse(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "examples.release_rehearsal",
            "toy",
            "--root",
            str(root),
            "--cpu-only",
            *words,
        ],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(root.parent), "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_release_is_made_and_the_next_one_taken_back(tmp_path: Path) -> None:
    root = ready(tmp_path / "repository")
    before = sorted(path for path in root.rglob("*") if ".git" not in path.parts)
    done = rehearse(root)
    assert done.returncode == 0, done.stdout
    said = done.stdout
    assert "toy-v1.0, the first release of toy" in said
    assert "toy-v1.0: version, changelog and commit " in said
    assert "published v1.0 of kernelworks/toy" in said
    assert "rolled back: v1 has the content of " in said
    assert "published v1.1 of kernelworks/toy" in said  # by the machine that did not load it
    assert "kernelworks/toy v1: back to v1.0" in said
    found = re.findall(r"get_kernel\('kernelworks/toy', version=1\) gives (\S+), (\S+)\n", said)
    assert len(found) == 3
    assert len(set(found)) == 1
    assert said.endswith("all right: released, found to be wrong, taken back, rolled back\n")
    # Nothing of it is left: neither files nor commits nor tags.
    assert sorted(path for path in root.rglob("*") if ".git" not in path.parts) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["repository"]
    assert not list((root / ".git/refs/tags").iterdir())


def test_a_step_that_does_not_see_the_mistake_ends_it(repository: Path, tmp_path: Path) -> None:
    stage = Stage(repository, tmp_path, "http://127.0.0.1:9", catalog.load(repository, "toy"))
    with pytest.raises(SystemExit, match="the release computes wrong results, and vendor was content"):
        stage.fails("vendor", "--check")
    with pytest.raises(SystemExit) as end:  # what fails for another reason has not seen it either
        stage.fails("build", "nothing")
    assert end.value.code == 3


def test_what_cannot_be_released_ends_it(tmp_path: Path) -> None:
    root = ready(tmp_path / "repository")
    edit(root / "kernels/toy/CHANGELOG.md", "- `twice`", "Soon.")
    commit(root, "nothing to say")
    done = rehearse(root)
    assert done.returncode == 17
    assert "lists no change; write what changed" in done.stdout
    assert "== build" not in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["repository"]
