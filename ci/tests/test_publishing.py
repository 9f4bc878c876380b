# SPDX-License-Identifier: Apache-2.0
"""Publishing to a real Hub: what changes there, what clients get, and what happens when it goes wrong."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from faulty_proxy import Fault, faulty_proxy
from hub_process import RunningHub, add_token, client, running_hub
from huggingface_hub import HfApi
from publications import (
    OTHER_VARIANT,
    REPO,
    add_variant,
    assert_intact,
    branches,
    change,
    files,
    kernelworks,
    publish,
    published,
    tags,
    titles,
    variant,
    with_card,
    with_tests,
)
from repositories import CPU_VARIANT, edit

LOAD = f"""
from kernels import get_kernel
toy = get_kernel({REPO!r}, version=1, trust_remote_code=[{REPO!r}])
print(toy.__file__)
"""


def test_a_dry_run_prints_the_plan_and_only_reads(built: Path, hub: RunningHub, env: dict[str, str]) -> None:
    """P06."""
    with faulty_proxy(hub.endpoint) as proxy:
        done = publish(with_card(built), "--dry-run", env=env | {"HF_ENDPOINT": proxy.endpoint})
    assert done.code == 0, done.output
    assert proxy.requests
    assert not proxy.writes()
    for words in (
        f"toy version 1 to {REPO} on {proxy.endpoint}",
        "kernel, new, public",
        "branch v1",
        f"add     build/{CPU_VARIANT}/metadata.json",
        "add     README.md",
        "release     v1.0",
    ):
        assert words in done.output


@pytest.mark.slow
def test_a_kernel_is_published_loaded_back_tested_and_tagged(
    built: Path, hub: RunningHub, env: dict[str, str], tmp_path: Path
) -> None:
    """L05, P09: what a stranger pastes from the README runs."""
    root = with_tests(with_card(built))
    path = tmp_path / "receipt.json"
    done = kernelworks(root, "publish", "toy", "--receipt", str(path), env=env)
    assert done.code == 0, done.output
    assert f"loaded      {CPU_VARIANT}" in done.output
    assert "toy on cpu: 1 passed" in done.output
    tip = branches(hub)["v1"]
    assert tags(hub) == {"v1.0": tip}
    assert files(hub, "v1") == {".gitattributes"} | {
        f"build/{CPU_VARIANT}/{each.name}" for each in variant(root).iterdir()
    }
    receipt = json.loads(path.read_text())
    assert (receipt["status"], receipt["release"], receipt["repo_id"]) == ("published", "v1.0", REPO)
    build, card = receipt["branches"]
    assert (build["branch"], build["commit"], len(build["added"])) == ("v1", tip, 4)
    assert (card["branch"], card["replaced"]) == ("main", ["README.md"])
    assert receipt["verified"]["loaded"] == CPU_VARIANT
    fresh = hub.environment(tmp_path / "stranger")
    readme = client(
        "import sys, huggingface_hub as h;"
        f"print(open(h.hf_hub_download({REPO!r}, 'README.md', repo_type='kernel')).read())",
        env=fresh,
    )
    snippets = re.findall(r"^```python\n(.*?)^```$", readme, re.M | re.S)
    assert len(snippets) == 1
    client(snippets[0], env=fresh)
    again = kernelworks(root, "publish", "toy", env=env)
    assert "nothing to do" in again.output
    assert branches(hub)["v1"] == tip
    assert_intact(hub)


def test_publishing_again_sends_nothing(built: Path, hub: RunningHub, env: dict[str, str]) -> None:
    root = with_card(built)
    published(root, env=env)
    with faulty_proxy(hub.endpoint) as proxy:
        receipt = published(root, env=env | {"HF_ENDPOINT": proxy.endpoint})
    assert receipt["status"] == "nothing to do"
    assert not proxy.writes()
    assert len(proxy.requests) <= 4


def test_a_new_version_starts_clean(built: Path, hub: RunningHub, env: dict[str, str]) -> None:
    """P01: v2 holds its own files alone, and v1 stays as it is."""
    add_variant(built)
    published(built, env=env)
    before = branches(hub)["v1"]
    shutil.rmtree(variant(built, OTHER_VARIANT))
    edit(built / "kernels/toy/build.toml", "version = 1", "version = 2")
    edit(variant(built) / "metadata.json", '"version": 1', '"version": 2')
    published(built, env=env)
    assert files(hub, "v2") == {".gitattributes"} | {
        f"build/{CPU_VARIANT}/{each.name}" for each in variant(built).iterdir()
    }
    assert branches(hub)["v1"] == before
    assert set(tags(hub)) == {"v1.0", "v2.0"}


def test_variants_are_added_and_only_ours_are_replaced(
    built: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    """P02: one variant, then another, then the first again with one file fewer."""
    change(variant(built), extra="x = 1\n")
    published(built, env=env)
    elsewhere = variant(built).rename(built.parent / CPU_VARIANT)
    other = shutil.copytree(elsewhere, variant(built, OTHER_VARIANT))
    published(built, env=env)
    assert {path.split("/")[1] for path in files(hub, "v1") if "/" in path} == {CPU_VARIANT, OTHER_VARIANT}
    shutil.rmtree(other)
    shutil.copytree(elsewhere, variant(built))
    change(variant(built), extra=None)
    receipt = published(built, env=env)
    assert receipt["branches"][0]["deleted"] == [f"build/{CPU_VARIANT}/extra.py"]  # type: ignore[index]
    assert f"build/{OTHER_VARIANT}/extra.py" in files(hub, "v1")
    assert set(tags(hub)) == {"v1.0", "v1.1", "v1.2"}
    assert titles(hub)[:3] == ["toy v1.2", "toy v1.1", "toy v1.0"]


def test_each_branch_gets_one_commit(built: Path, hub: RunningHub, env: dict[str, str]) -> None:
    """P05: a client sees the old or the new release, however many files there are."""
    change(variant(built), **{f"file_{number}": f"x = {number}\n" for number in range(270)})
    published(with_card(built), env=env)
    assert titles(hub)[0] == "toy v1.0"
    assert len(titles(hub)) == len(titles(hub, "main")), "one more than main had when the branch was made"
    assert len(files(hub, "v1")) == 275


def test_benchmarks_and_card_are_optional(built: Path, hub: RunningHub, env: dict[str, str]) -> None:
    """P11: without them it goes, and says so about the card; with benchmarks, the top-level ones are sent."""
    done = publish(built, env=env)
    assert done.code == 0, done.output
    assert f"there is no CARD.md, so the README of {REPO} stays as it is" in done.output
    folder = built / "kernels/toy/benchmarks"
    folder.mkdir()
    (folder / "benchmark_toy.py").write_text("")
    (folder / "notes.txt").write_text("")
    published(built, env=env)
    assert {path for path in files(hub, "v1") if path.startswith("bench")} == {"benchmarks/benchmark_toy.py"}


def test_another_organization_gets_its_own_name_in_the_card(
    built: Path, hub: RunningHub, env: dict[str, str], tmp_path: Path
) -> None:
    """P09: the snippet names the repository that it stands in."""
    done = publish(with_card(built), "--repo-id", "acme/toy", env=env)
    assert "published with acme/toy in its place" in done.output
    readme = client(
        "import huggingface_hub as h;"
        "print(open(h.hf_hub_download('acme/toy', 'README.md', repo_type='kernel')).read())",
        env=env,
    )
    assert 'get_kernel("acme/toy", version=1, trust_remote_code=["acme/toy"])' in readme
    assert REPO not in readme


def test_a_bundle_of_nix_is_published_from_where_it_lies(
    built: Path, hub: RunningHub, env: dict[str, str], tmp_path: Path
) -> None:
    result = tmp_path / "result"
    shutil.move(built / "kernels/toy/build", result)
    (result / "benchmarks").mkdir()  # a bundle has more in it than variants
    published(built, "--from", str(result), env=env)
    (tmp_path / "outer").mkdir()
    shutil.move(result, tmp_path / "outer/build")
    receipt = published(built, "--from", str(tmp_path / "outer"), env=env)
    assert receipt["status"] == "nothing to do"
    done = publish(built, "--from", str(tmp_path / "absent"), env=env)
    assert (done.code, "there is no such directory" in done.output) == (15, True)


def test_a_branch_that_serves_no_version_gets_no_tag(
    built: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    receipt = published(built, "--branch", "trial", env=env)
    assert receipt["release"] is None
    assert "trial" in branches(hub)
    assert not tags(hub)
    assert publish(built, "--branch", "trial", env=env).output.count("nothing to do") == 1


def test_a_pull_request_asks_and_changes_nothing(built: Path, hub: RunningHub, env: dict[str, str]) -> None:
    done = publish(built, "--create-pr", env=env)
    assert (done.code, "has no branch v1, which a pull request needs" in done.output) == (15, True)
    published(built, env=env)
    before = branches(hub)
    change(variant(built), extra="x = 1\n")
    receipt = published(built, "--create-pr", env=env)
    assert receipt["status"] == "pull request"
    assert re.search(rf"/kernels/{REPO}/discussions/1$", receipt["pull_requests"][0])  # type: ignore[index]
    assert branches(hub) == before
    assert set(tags(hub)) == {"v1.0"}
    assert f"build/{CPU_VARIANT}/extra.py" in files(hub, "refs/pr/1")


def test_a_private_repository_is_for_its_organization(built: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    ours = add_token(tokens, "ours", "kernelworks", write=True)
    with running_hub(tmp_path / "hub", tokens=tokens) as hub:
        published(built, "--private", env=hub.environment(tmp_path / "home", ours))
        mine = kernelworks(built, "status", REPO, env=hub.environment(tmp_path / "home", ours))
        theirs = kernelworks(built, "status", REPO, env=hub.environment(tmp_path / "home"))
    assert "v1.0" in mine.output
    assert "not published" in theirs.output


@pytest.mark.slow
def test_a_first_release_that_does_not_load_is_gone_again(
    built: Path, hub: RunningHub, env: dict[str, str], tmp_path: Path
) -> None:
    change(variant(built), __init__="raise ImportError('this one is broken')\n")
    done = kernelworks(built, "publish", "toy", env=env)
    assert done.code == 16, done.output
    assert "get_kernel failed: ImportError: this one is broken" in done.output
    assert "rolled back: the branch v1, which was new, is deleted again" in done.output
    assert set(branches(hub)) == {"main"}
    assert not tags(hub)
    assert_intact(hub)


def test_a_branch_made_of_an_older_main_keeps_the_variants_that_clients_load(
    built: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    """Where variants were on main, and the version branch was made of it, nothing of them goes."""
    api = HfApi(endpoint=hub.endpoint, token=env.get("HF_TOKEN", False))
    api.create_repo(REPO, repo_type="kernel")
    api.upload_file(
        path_or_fileobj=b"x = 1",
        path_in_repo=f"build/{OTHER_VARIANT}/__init__.py",
        repo_id=REPO,
        repo_type="kernel",
    )
    api.create_branch(REPO, branch="v1", repo_type="kernel")
    done = publish(built, "--dry-run", env=env)
    assert (done.code, "delete" in done.output) == (0, False), done.output


@pytest.mark.slow
def test_a_branch_that_others_made_stays_when_its_first_release_fails(
    built: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    api = HfApi(endpoint=hub.endpoint, token=env.get("HF_TOKEN", False))
    api.create_repo(REPO, repo_type="kernel")
    api.create_branch(REPO, branch="v1", repo_type="kernel")
    before = files(hub, "v1")
    change(variant(built), __init__="raise ImportError('this one is broken')\n")
    done = kernelworks(built, "publish", "toy", env=env)
    assert (done.code, "rolled back: v1 has the content of" in done.output) == (16, True), done.output
    assert files(hub, "v1") == before
    assert not tags(hub)


def test_a_receipt_that_cannot_be_written_is_a_warning(
    built: Path, hub: RunningHub, env: dict[str, str], tmp_path: Path
) -> None:
    """P19: the exit code is that of the publication, which is complete."""
    (tmp_path / "file").write_text("")
    done = kernelworks(
        built, "publish", "toy", "--no-load", "--receipt", str(tmp_path / "file/receipt"), env=env
    )
    assert (done.code, "warning: the receipt cannot be written" in done.output) == (0, True), done.output
    assert set(tags(hub)) == {"v1.0"}


@pytest.mark.slow
def test_a_release_whose_tests_fail_is_rolled_back_and_clients_never_notice(
    built: Path, hub: RunningHub, env: dict[str, str], tmp_path: Path
) -> None:
    """P05: before, and after the rollback, a client loads the release that passed."""
    root = with_tests(built)
    published(root, env=env)
    good = files(hub, "v1")
    source = (variant(root) / "__init__.py").read_text()
    change(variant(root), __init__=source + "\n\ndef twice(x):\n    return x\n", extra="x = 1\n")
    done = kernelworks(root, "publish", "toy", env=env)
    assert done.code == 16, done.output
    assert "its tests fail: toy on cpu: 1 failed" in done.output
    assert "rolled back: v1 has the content of" in done.output
    assert files(hub, "v1") == good
    assert set(tags(hub)) == {"v1.0"}
    assert len(titles(hub)) == 4, "main's first, the release, what failed, and the way back"
    stranger = hub.environment(tmp_path / "stranger")
    client(LOAD + "import torch; assert toy.twice(torch.ones(2)).tolist() == [2.0, 2.0]", env=stranger)
    assert_intact(hub)


def test_what_was_interrupted_before_its_tag_is_finished_by_the_next_run(
    built: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    with faulty_proxy(hub.endpoint, [Fault("POST", "/tag/", 400)]) as proxy:
        through = env | {"HF_ENDPOINT": proxy.endpoint}
        done = publish(built, env=through)
        assert done.code == 11, done.output
        assert "the build itself is published and verified" in done.output
        assert not tags(hub)
        tip = branches(hub)["v1"]
        published(built, env=through)
        assert proxy.count("POST", "/commit/") == 1
    assert tags(hub) == {"v1.0": tip}
