# SPDX-License-Identifier: Apache-2.0
"""What is published, beside what is here."""

from __future__ import annotations

import json
from pathlib import Path

from faulty_proxy import faulty_proxy
from hub_process import RunningHub
from publications import OTHER_VARIANT, REPO, add_variant, branches, change, here, published, variant
from repositories import CPU_VARIANT, edit, git


def status(root: Path, *words: str, env: dict[str, str]) -> str:
    done = here(root, "status", *words, env=env)
    assert done.code == 0, done.output
    return done.output


def test_nothing_published(built_once: Path, hub: RunningHub, env: dict[str, str]) -> None:
    assert status(built_once, env=env).splitlines() == [
        f"{REPO} on {hub.endpoint}",
        "  not published; version 1 is here",
    ]


def test_releases_with_their_sources_and_what_differs_here(
    built: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    published(built, env=env)
    source = git(built, "rev-parse", "HEAD")
    text = status(built, env=env)
    assert f"version 1  {branches(hub)['v1'][:12]}, v1.0" in text
    assert f"source {source}" in text
    assert f"here: {CPU_VARIANT} the same here" in text
    assert "not there, of the builds for torch 2.13:" in text
    assert "torch-stable-abi211-cu130-aarch64-linux" in text
    change(variant(built), extra="x = 1\n")
    add_variant(built)
    text = status(built, REPO, env=env)
    assert f"here: {CPU_VARIANT} differs from the build here" in text
    assert f"here: {OTHER_VARIANT} only here" in text


def test_after_a_rollback_the_release_that_is_there_is_named(
    built: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    published(built, env=env)
    change(variant(built), extra="x = 1\n")
    published(built, env=env)
    assert here(built, "rollback", REPO, "--version", "1", "--no-load", env=env).code == 0
    (found,) = json.loads(status(built, "--json", env=env))
    (version,) = found["versions"]
    assert version["current"] == "v1.0"
    assert [release["tag"] for release in version["releases"]] == ["v1.0", "v1.1"]
    assert all(release["source"] == git(built, "rev-parse", "HEAD") for release in version["releases"])
    assert found["builds"] == {CPU_VARIANT: "differs from the build here"}


def test_a_version_that_is_here_alone_and_few_requests(
    built: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    published(built, env=env)
    edit(built / "kernels/toy/build.toml", "version = 1", "version = 2")
    with faulty_proxy(hub.endpoint) as proxy:
        text = status(built, env=env | {"HF_ENDPOINT": proxy.endpoint})
    assert "here: version 2, which is not published" in text
    assert len(proxy.requests) == 3, "refs, one tree, one history"
    assert not proxy.writes()


def test_a_repository_of_others_needs_no_working_tree(
    built: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    published(built, "--repo-id", "acme/toy", env=env)
    (built / "kernels/toy").rename(built / "elsewhere")
    text = status(built, "acme/toy", env=env)
    assert "v1.0" in text
    assert "here:" not in text
