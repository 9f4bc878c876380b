# SPDX-License-Identifier: Apache-2.0
"""Going back to an earlier release by a new commit, and what clients see of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from faulty_proxy import faulty_proxy
from hub_process import RunningHub, client
from publications import (
    REPO,
    add_variant,
    assert_intact,
    branches,
    change,
    files,
    here,
    published,
    tags,
    titles,
    variant,
)

from kernelworks.errors import HubError, VerifyError
from kernelworks.hub import Hub

LOAD = f"""
from kernels import get_kernel
toy = get_kernel({REPO!r}, version=1, trust_remote_code=[{REPO!r}])
print(toy.__file__, hasattr(toy, "added"))
"""


def three_releases(root: Path, env: dict[str, str]) -> None:
    """The second has another variant and a large file besides, the third another text in one file."""
    published(root, env=env)
    add_variant(root)
    source = (variant(root) / "__init__.py").read_text()
    change(variant(root), __init__=source + "\n\nadded = 1\n", large="x = '" + "01234567" * 40_000 + "'\n")
    published(root, env=env)
    change(variant(root), __init__=source + "\n\nadded = 2\n")
    published(root, env=env)


def content(hub: RunningHub, revision: str) -> dict[str, str]:
    """Every file of the release with its identity."""
    tree = Hub(hub.endpoint).tree(REPO, revision)
    return {path: file.identity for path, file in tree.items()}


@pytest.mark.slow
def test_back_and_forth(built: Path, hub: RunningHub, env: dict[str, str], tmp_path: Path) -> None:
    """A client with a warm cache follows, and downloads nothing that it has."""
    three_releases(built, env)
    warm = hub.environment(tmp_path / "warm")
    assert client(LOAD, env=warm).split()[-1] == "True"
    receipt = tmp_path / "receipt.json"
    done = here(built, "rollback", REPO, "--version", "1", "--no-load", "--receipt", str(receipt), env=env)
    assert done.code == 0, done.output
    assert f"{REPO} v1: back to v1.1, of source " in done.output
    assert content(hub, "v1") == content(hub, "v1.1")
    assert titles(hub)[:2] == ["toy: back to v1.1", "toy v1.2"], "history only grows"
    done = here(built, "rollback", REPO, "--version", "1", "--no-load", "--to", "v1.0", env=env)
    assert done.code == 0, done.output
    assert content(hub, "v1") == content(hub, "v1.0")
    with faulty_proxy(hub.endpoint) as proxy:
        said = client(LOAD, env=warm | {"HF_ENDPOINT": proxy.endpoint})
        assert said.split()[-1] == "False"
        assert branches(hub)["v1"] in said
        got = [target for method, target in proxy.requests if method == "GET" and "/resolve/" in target]
        assert not [target for target in got if target.endswith(".so")], "the cache has it already"
    assert set(tags(hub)) == {"v1.0", "v1.1", "v1.2"}
    assert json.loads(receipt.read_text())["status"] == "rolled back"
    assert_intact(hub)


def test_the_default_is_the_release_before_the_content_that_is_there(
    built: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    """Also after a rollback, when the branch is at no release's own commit."""
    three_releases(built, env)
    back = ("rollback", REPO, "--version", "1", "--no-load")
    assert "back to v1.1" in here(built, *back, env=env).output
    assert "back to v1.0" in here(built, *back, env=env).output
    done = here(built, *back, env=env)
    assert done.code == HubError.exit_code
    assert f"{REPO} v1 is at v1.0, and there is no release before it" in done.output
    with faulty_proxy(hub.endpoint) as proxy:
        done = here(built, *back, "--to", "0", env=env | {"HF_ENDPOINT": proxy.endpoint})
        assert done.code == 0, done.output
        assert "nothing to do: v1 has the content of v1.0 already" in done.output
        assert not proxy.writes()
    done = here(built, *back, "--to", "v1.7", env=env)
    assert done.code == HubError.exit_code
    assert "no such release of version 1; there is v1.0, v1.1, v1.2" in done.output


def test_publishing_after_a_rollback_counts_on(built: Path, hub: RunningHub, env: dict[str, str]) -> None:
    three_releases(built, env)
    assert here(built, "rollback", REPO, "--version", "1", "--no-load", "--to", "0", env=env).code == 0
    assert published(built, env=env)["release"] == "v1.3"
    assert content(hub, "v1.3") == content(hub, "v1.2")


def test_what_does_not_exist_is_said(built_once: Path, hub: RunningHub, env: dict[str, str]) -> None:
    done = here(built_once, "rollback", "acme/none", "--version", "1", env=env)
    assert (done.code, "has no kernel acme/none" in done.output) == (HubError.exit_code, True)
    published(built_once, env=env)
    done = here(built_once, "rollback", REPO, "--version", "2", env=env)
    assert (done.code, "has no branch v2; there is main, v1" in done.output) == (HubError.exit_code, True)


@pytest.mark.slow
def test_a_release_that_does_not_load_any_more_is_reported_and_stays(
    built: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    """A person chose it; going back by ourselves to what they wanted gone would be worse."""
    source = (variant(built) / "__init__.py").read_text()
    change(variant(built), __init__="raise ImportError('broken from the start')\n")
    published(built, env=env)
    change(variant(built), __init__=source)
    published(built, env=env)
    done = here(built, "rollback", REPO, "--version", "1", env=env)
    assert done.code == VerifyError.exit_code, done.output
    assert "ImportError: broken from the start" in done.output
    assert content(hub, "v1") == content(hub, "v1.0")
    assert files(hub, "v1.1")
