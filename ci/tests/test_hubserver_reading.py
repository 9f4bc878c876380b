# SPDX-License-Identifier: Apache-2.0
"""What clients ask: the stock client reads every answer, page after page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import hub_kernel
import pytest
from hub_process import RunningHub, running_hub
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

REPO = hub_kernel.REPO
FILES = 25  # in pages of ten


@pytest.fixture(scope="module")
def hub(place: Path, tokens: dict[str, str]) -> Iterator[RunningHub]:
    with running_hub(
        place / "hub", tokens=place / "tokens.json", trusted=("acme",), limits={"page_entries": 10}
    ) as found:
        hub_kernel.publish(found.endpoint, place / "kernel", token=tokens["ci"])
        api = HfApi(endpoint=found.endpoint, token=tokens["ci"])
        api.create_repo("acme/secret", repo_type="kernel", private=True)
        api.create_branch(REPO, branch="many", repo_type="kernel")
        for number in range(3):
            adds = [CommitOperationAdd(f"folder/{each:03}/{number}", b"%d" % number) for each in range(FILES)]
            message, about = f"step {number}", f"says more\nabout {number}"
            api.create_commit(
                REPO,
                adds,
                commit_message=message,
                commit_description=about,
                repo_type="kernel",
                revision="many",
            )
        yield found
        found.check()


@pytest.fixture(scope="module")
def api(hub: RunningHub, tokens: dict[str, str]) -> HfApi:
    return HfApi(endpoint=hub.endpoint, token=tokens["ci"])


def test_a_long_listing_comes_in_pages(hub: RunningHub, api: HfApi) -> None:
    found = list(api.list_repo_tree(REPO, repo_type="kernel", revision="many", recursive=True))
    paths = [entry.path for entry in found]
    assert paths == sorted(paths)
    assert len([path for path in paths if path.count("/") == 2]) == 3 * FILES
    assert len(paths) == len(set(paths))
    below = list(api.list_repo_tree(REPO, "folder", repo_type="kernel", revision="many"))
    assert [entry.path for entry in below] == [f"folder/{each:03}" for each in range(FILES)]
    answer = hub.ask("GET", f"/api/kernels/{REPO}/tree/many/folder%2F000?recursive=true")
    assert [each["path"] for each in json.loads(answer.body)] == [f"folder/000/{each}" for each in range(3)]
    assert answer.headers["Link"] is None


def test_the_next_page_is_a_whole_address(hub: RunningHub) -> None:
    """L16: a relative one, or one without its questions, sends a client astray."""
    link = hub.ask("GET", f"/api/kernels/{REPO}/tree/refs%2Fheads%2Fmany?recursive=true").headers["Link"]
    assert link.startswith(f"<{hub.endpoint}/api/kernels/{REPO}/tree/refs%2Fheads%2Fmany?recursive=true&")
    assert link.endswith('; rel="next"')


def test_history_is_complete_and_newest_first(hub: RunningHub, api: HfApi) -> None:
    found = api.list_repo_commits(REPO, repo_type="kernel", revision="many")
    assert [each.title for each in found] == ["step 2", "step 1", "step 0", "card", "initial commit"]
    assert found[0].message == "says more\nabout 2"
    assert found[0].authors == ["ci"]
    pages = hub.ask("GET", f"/api/kernels/{REPO}/commits/many?limit=3")
    assert len(json.loads(pages.body)) == 3
    assert 'cursor=3>; rel="next"' in pages.headers["Link"]


def test_paths_info_leaves_out_what_is_not_there(api: HfApi) -> None:
    paths = ["folder/000/1", "folder", "nowhere"]
    found = api.get_paths_info(REPO, paths, repo_type="kernel", revision="many")
    assert [entry.path for entry in found] == ["folder/000/1", "folder"]


def test_too_many_paths_are_refused(hub: RunningHub) -> None:
    answer = hub.ask("POST", f"/api/kernels/{REPO}/paths-info/v1", b"paths=a&" * 3000)
    assert (answer.status, answer.code) == (413, "PayloadTooLarge")


def test_a_repository_describes_itself(api: HfApi) -> None:
    info = api.repo_info(REPO, repo_type="kernel", revision="v1")
    refs = api.list_repo_refs(REPO, repo_type="kernel")
    assert info.sha == {ref.name: ref.target_commit for ref in refs.branches}["v1"]
    assert api.repo_exists(REPO, repo_type="kernel")
    assert not api.repo_exists("acme/nothing", repo_type="kernel")
    assert api.repo_info(REPO, repo_type="kernel", revision=info.sha).sha == info.sha
    assert api.list_repo_files(REPO, repo_type="kernel", revision="v1")


def test_what_is_not_there_is_told_apart(hub: RunningHub, api: HfApi) -> None:
    """L16: the code of the error, not a guess from the address, tells the client what is missing."""
    with pytest.raises(RepositoryNotFoundError):
        api.list_repo_refs("acme/nothing", repo_type="kernel")
    with pytest.raises(RevisionNotFoundError):
        api.repo_info(REPO, repo_type="kernel", revision="v9")
    with pytest.raises(EntryNotFoundError):
        list(api.list_repo_tree(REPO, "nowhere", repo_type="kernel"))
    with pytest.raises(RepositoryNotFoundError):
        api.repo_info(REPO.replace("acme", "emca"), repo_type="kernel")
    for address, code in (
        ("/api/kernels/acme/nothing", "RepoNotFound"),
        (f"/api/kernels/{REPO}/revision/{'0' * 40}", "RevisionNotFound"),
        (f"/api/kernels/{REPO}/tree/main/nowhere", "EntryNotFound"),
        (f"/kernels/{REPO}/resolve/main/nowhere", "EntryNotFound"),
        ("/api/elsewhere", "EntryNotFound"),
    ):
        answer = hub.ask("GET", address)
        assert (answer.status, answer.code) == (404, code)
        assert answer.headers["X-Request-Id"]
        assert answer.headers["X-Error-Message"] in json.loads(answer.body)["error"]


@pytest.mark.parametrize(
    ("method", "address", "status"),
    [
        ("GET", f"/api/kernels/{REPO}/xet-write-token/main", 404),
        ("GET", f"/api/kernels/{REPO}/xet-read-token/main", 404),
        ("POST", f"/api/kernels/{REPO}/super-squash/main", 501),
        ("GET", f"/api/kernels/{REPO}/discussions", 501),
        ("PUT", f"/api/kernels/{REPO}/settings", 501),
        ("GET", "/api/datasets/acme/scale-it", 404),
        ("POST", f"/api/models/{REPO}/commit/main", 404),
        ("DELETE", f"/api/kernels/{REPO}/refs", 501),
        ("PATCH", "/api/whoami-v2", 404),
    ],
)
def test_what_is_not_offered_says_so(hub: RunningHub, method: str, address: str, status: int) -> None:
    answer = hub.ask(method, address, b"{}")
    assert answer.status == status, answer.body
    assert answer.code
    assert json.loads(answer.body)["error"]


def test_whoami(hub: RunningHub, tokens: dict[str, str]) -> None:
    me = HfApi(endpoint=hub.endpoint, token=tokens["reader"]).whoami()
    assert me["name"] == "reader"
    assert [org["name"] for org in me["orgs"]] == ["acme"]
    assert me["auth"]["accessToken"]["role"] == "read"
    for token, sentence in (("hf_elsewhere", "no token of this Hub"), (tokens["old"], "token expired")):
        with pytest.raises(HfHubHTTPError) as caught:  # the client has a sentence of its own for 401
            HfApi(endpoint=hub.endpoint, token=token).whoami()
        assert caught.value.response.status_code == 401
        assert sentence in caught.value.response.headers["X-Error-Message"]


def test_the_operator_s_trust_is_what_clients_see(hub: RunningHub, api: HfApi) -> None:
    assert api.get_organization_overview("acme").trustedKernelPublisher is True
    with pytest.raises(HfHubHTTPError):
        api.get_organization_overview("nobody")


def test_a_private_repository_looks_like_none_to_others(
    hub: RunningHub, api: HfApi, tokens: dict[str, str]
) -> None:
    assert api.repo_info("acme/secret", repo_type="kernel").private is True
    missing = hub.ask("GET", "/api/kernels/acme/nothing")
    for token in (False, "hf_elsewhere", tokens["other"], tokens["old"]):
        with pytest.raises(RepositoryNotFoundError):
            HfApi(endpoint=hub.endpoint, token=token).repo_info("acme/secret", repo_type="kernel")
    for address in ("/api/kernels/acme/secret", "/kernels/acme/secret/resolve/main/README.md"):
        answer = hub.ask("GET", address)
        assert (answer.status, answer.code) == (missing.status, missing.code)
        assert answer.body.replace(b"secret", b"nothing") == missing.body


def test_a_stranger_s_token_still_reads_what_is_public(hub: RunningHub) -> None:
    """A client sends its token of another Hub with every request; that must not end a load."""
    assert HfApi(endpoint=hub.endpoint, token="hf_elsewhere").list_repo_files(REPO, repo_type="kernel")
    assert "hf_elsewhere" not in hub.log.read_text()


def test_a_private_hub_shows_nothing_without_a_token(
    place: Path, hub: RunningHub, tokens: dict[str, str]
) -> None:
    with running_hub(place / "hub", tokens=place / "tokens.json", private=True) as closed:
        assert HfApi(endpoint=closed.endpoint, token=tokens["reader"]).repo_info(REPO, repo_type="kernel")
        for token in (False, "hf_elsewhere", tokens["old"], tokens["other"]):
            with pytest.raises(RepositoryNotFoundError):
                HfApi(endpoint=closed.endpoint, token=token).repo_info(REPO, repo_type="kernel")
        assert closed.ask("GET", "/api/organizations/acme/overview").status == 401
