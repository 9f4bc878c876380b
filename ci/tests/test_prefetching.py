# SPDX-License-Identifier: Apache-2.0
"""Loading without a network after `kernelworks prefetch`, in fresh processes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hub_process import RunningHub, client
from publications import OTHER_VARIANT, REPO, add_variant, branches, change, kernelworks, published, variant
from repositories import CPU_VARIANT

from kernelworks.errors import HubError

NOWHERE = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
# By version, by the name of the branch, and by commit, each as a user writes it.
LOAD_THREE_WAYS = """
import sys
import torch
from kernels import get_kernel

repo, commit = sys.argv[1:]
for place in ({"version": 1}, {"revision": "v1"}, {"revision": commit}):
    toy = get_kernel(repo, trust_remote_code=[repo], **place)
    assert toy.twice(torch.ones(2)).tolist() == [2.0, 2.0]
    assert commit in toy.__file__
print("loaded three ways")
"""
LOAD_ONCE = f"from kernels import get_kernel; get_kernel({REPO!r}, version=1, trust_remote_code=[{REPO!r}])"


def prefetch(root: Path, *words: str, env: dict[str, str]) -> str:
    done = kernelworks(root, "prefetch", REPO, "--version", "1", *words, env=env)
    assert done.code == 0, done.output
    return done.output


@pytest.fixture
def two(built: Path, hub: RunningHub, env: dict[str, str]) -> Path:
    """A release with two variants, one of which this machine loads, a card and a benchmark."""
    add_variant(built)
    folder = built / "kernels/toy/benchmarks"
    folder.mkdir()
    (folder / "benchmark_toy.py").write_text("x = 1\n")
    published(built, env=env)
    return built


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--this-machine"]])
def test_it_loads_offline_by_version_and_by_revision(
    two: Path, hub: RunningHub, env: dict[str, str], tmp_path: Path, words: list[str]
) -> None:
    """L02: all of it, or the part for this machine where a plain load came first; the cache is then moved."""
    commit = branches(hub)["v1"]
    if words:
        client(LOAD_ONCE, env=env)
        said = client(LOAD_THREE_WAYS, REPO, commit, env=env | NOWHERE, check=False)
        assert "Error" in said, "what prefetch is for: offline after a plain load fails"
    output = prefetch(two, *words, env=env)
    assert CPU_VARIANT in output
    assert (OTHER_VARIANT in output) == (not words)
    home = shutil.move(env["HF_HOME"], tmp_path / "another machine")
    offline = env | NOWHERE | {"HF_HOME": str(home)}
    assert "loaded three ways" in client(LOAD_THREE_WAYS, REPO, commit, env=offline)


@pytest.mark.slow
def test_a_newer_release_is_not_taken_offline_before_it_is_prefetched(
    two: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    prefetch(two, env=env)
    first = branches(hub)["v1"]
    change(variant(two), extra="x = 1\n")
    published(two, env=env)
    client(LOAD_ONCE, env=env)  # which leaves the cache's note of the version where it is
    assert "loaded three ways" in client(LOAD_THREE_WAYS, REPO, first, env=env | NOWHERE)


def test_the_cache_of_kernels_is_filled_where_it_is_another(
    two: Path, hub: RunningHub, env: dict[str, str], tmp_path: Path
) -> None:
    env = env | {"KERNELS_CACHE": str(tmp_path / "kernels cache")}
    assert str(tmp_path / "kernels cache") in prefetch(two, "--variant", CPU_VARIANT, env=env)
    offline = client(LOAD_THREE_WAYS, REPO, branches(hub)["v1"], env=env | NOWHERE)
    assert "loaded three ways" in offline


def test_without_prefetching_the_sentence_names_the_repository(hub: RunningHub, tmp_path: Path) -> None:
    """L03: an empty cache and no network; the client's own words, at once."""
    said = client(LOAD_ONCE, env=hub.environment(tmp_path / "empty") | NOWHERE, check=False)
    assert f"Version 1 of '{REPO}' is not available in the local cache" in said


def test_what_is_not_there_is_said(two: Path, env: dict[str, str]) -> None:
    done = kernelworks(two, "prefetch", REPO, "--version", "1", "--variant", "nonsense", env=env)
    assert done.code == HubError.exit_code
    assert f"has no variant nonsense; there is {OTHER_VARIANT}, {CPU_VARIANT}" in done.output
