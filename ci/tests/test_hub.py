# SPDX-License-Identifier: Apache-2.0
"""The client of a Hub against a real one: what each question answers, and what a commit is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hub_process import RunningHub, add_token, running_hub
from publications import REPO, assert_intact

from kernelworks.errors import HubConflictError, HubError
from kernelworks.hub import Hub
from kernelworks.hub_data import Edit


@pytest.fixture
def ours(hub: RunningHub) -> Hub:
    """A Hub with one empty repository."""
    client = Hub(hub.endpoint)
    client.create_repository(REPO, private=False)
    return client


def commit(hub: Hub, *edits: Edit, branch: str = "main", parent: str | None = None) -> str:
    refs = hub.refs(REPO)
    assert refs is not None
    parent = parent or refs.branches[branch]
    return hub.commit(REPO, branch, edits, parent=parent, title="a title", description="Key: value").commit


@pytest.mark.parametrize(
    ("endpoint", "is_public"),
    [
        ("https://huggingface.co/", True),
        ("https://HuggingFace.co", True),
        ("https://hf.co", True),
        ("https://hub.example.org", False),
        ("http://127.0.0.1:8000", False),
    ],
)
def test_where_strangers_load_from(endpoint: str, is_public: bool) -> None:
    assert Hub(endpoint).is_public == is_public


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9", "ftp://x", "http://", "http://[::1", "http://x:99999"])
def test_what_is_no_address_is_said(endpoint: str) -> None:
    with pytest.raises(HubError, match="is no address of a Hub"):
        Hub(endpoint)


def test_what_is_not_there_is_none_or_empty(hub: RunningHub) -> None:
    client = Hub(hub.endpoint)
    assert client.refs("acme/none") is None
    assert not client.exists("acme/none")
    assert client.other_type_of("acme/none") is None
    client.create_repository(REPO, private=False)
    client.create_repository(REPO, private=False)
    assert client.exists(REPO)
    assert client.tree(REPO, "main", "build") == {}


def test_a_commit_adds_copies_and_deletes_in_one(hub: RunningHub, ours: Hub, tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(bytes(300_000))
    first = commit(ours, Edit("a", b"1"), Edit("b", b"2"), Edit("large", large))
    second = commit(ours, Edit("a"), Edit("b", b"3"), Edit("large"))
    assert "large" not in ours.tree(REPO, second)
    commit(ours, Edit("a", from_commit=first), Edit("large", from_commit=first), Edit("b"))
    before, after = ours.tree(REPO, first), ours.tree(REPO, "main")
    assert "b" not in after
    assert after["a"].identity == before["a"].identity
    assert after["large"].identity == before["large"].identity
    newest, *_ = ours.commits(REPO, "main")
    assert (newest.title, "Key: value" in newest.description) == ("a title", True)
    assert_intact(hub)


def test_a_parent_that_is_not_the_tip_is_a_conflict(ours: Hub) -> None:
    first = commit(ours, Edit("a", b"1"))
    commit(ours, Edit("a", b"2"))
    with pytest.raises(HubConflictError, match="did not commit to main"):
        commit(ours, Edit("a", b"3"), parent=first)


def test_a_tag_stays_where_it_is(ours: Hub) -> None:
    first, second = commit(ours, Edit("a", b"1")), commit(ours, Edit("a", b"2"))
    ours.create_tag(REPO, "v1.0", first)
    ours.create_tag(REPO, "v1.0", first)
    with pytest.raises(HubConflictError, match="names another commit"):
        ours.create_tag(REPO, "v1.0", second)
    refs = ours.refs(REPO)
    assert refs is not None
    assert refs.tags == {"v1.0": first}


def test_a_branch_is_made_once_and_removed_once(ours: Hub) -> None:
    first = commit(ours, Edit("a", b"1"))
    ours.create_branch(REPO, "v1", first)
    commit(ours, Edit("a", b"2"))
    ours.create_branch(REPO, "v1", "main")
    refs = ours.refs(REPO)
    assert refs is not None
    assert refs.branches["v1"] == first
    ours.delete_branch(REPO, "v1")
    ours.delete_branch(REPO, "v1")
    with pytest.raises(HubError):
        ours.delete_branch(REPO, "main")


def test_accounts(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    token = add_token(tokens, "ci", "acme", write=True)
    with running_hub(tmp_path / "hub", tokens=tokens) as hub:
        account = Hub(hub.endpoint, token).account()
    assert account is not None
    assert (account.name, account.orgs, account.readers, account.role) == ("ci", ("acme",), (), "write")
