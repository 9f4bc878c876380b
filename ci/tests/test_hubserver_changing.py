# SPDX-License-Identifier: Apache-2.0
"""How clients change repositories, and who may: every refusal is a sentence, and leaves all as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_process import RunningHub, running_hub
from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete, HfApi
from huggingface_hub.errors import BadRequestError, EntryNotFoundError, HfHubHTTPError

REPO = "acme/toy"
BIG = b"0123456789abcdef" * 32_768  # half a MiB: kept beside git


@pytest.fixture(scope="module")
def hub(place: Path, tokens: dict[str, str]) -> Iterator[RunningHub]:
    limits = {"commit_bytes": 4_000_000, "file_bytes": 2_000_000}
    with running_hub(place / "hub", tokens=place / "tokens.json", limits=limits) as found:
        HfApi(endpoint=found.endpoint, token=tokens["ci"]).create_repo(REPO, repo_type="kernel")
        yield found
        found.check()


@pytest.fixture(scope="module")
def api(hub: RunningHub, tokens: dict[str, str]) -> HfApi:
    return HfApi(endpoint=hub.endpoint, token=tokens["ci"])


def commit(api: HfApi, *operations: Any, message: str = "change", **options: Any) -> Any:
    return api.create_commit(
        REPO, list(operations), commit_message=message, repo_type="kernel", **{"revision": "main", **options}
    )


def paths(api: HfApi, revision: str = "main") -> list[str]:
    return sorted(api.list_repo_files(REPO, repo_type="kernel", revision=revision))


def heads(api: HfApi) -> dict[str, str]:
    return {ref.name: ref.target_commit for ref in api.list_repo_refs(REPO, repo_type="kernel").branches}


def test_repositories_come_and_go(api: HfApi) -> None:
    url = api.create_repo("acme/short-lived", repo_type="kernel")
    assert (url.repo_id, url.repo_type) == ("acme/short-lived", "kernel")
    with pytest.raises(HfHubHTTPError, match="here already") as caught:
        api.create_repo("acme/short-lived", repo_type="kernel")
    assert caught.value.response.status_code == 409
    assert api.create_repo("acme/short-lived", repo_type="kernel", exist_ok=True).repo_id == url.repo_id
    files = api.list_repo_files("acme/short-lived", repo_type="kernel")
    assert sorted(files) == [".gitattributes", "README.md"]
    api.delete_repo("acme/short-lived", repo_type="kernel")
    assert not api.repo_exists("acme/short-lived", repo_type="kernel")
    api.delete_repo("acme/short-lived", repo_type="kernel", missing_ok=True)


def test_large_files_of_a_deleted_repository_are_gone(api: HfApi, hub: RunningHub) -> None:
    for _ in range(2):
        api.create_repo("acme/again", repo_type="kernel")
        folder = hub.root / "repos/acme/again.lfs"
        assert not folder.exists()
        api.upload_file(path_or_fileobj=BIG, path_in_repo="big", repo_id="acme/again", repo_type="kernel")
        assert list(folder.rglob("*"))
        api.delete_repo("acme/again", repo_type="kernel")


@pytest.mark.parametrize("kind", ["model", "dataset", "space"])
def test_another_type_is_refused_when_it_is_created(api: HfApi, kind: str) -> None:
    """P07: a publish that forgets the type must not end in a repository nobody finds."""
    options = {"space_sdk": "static"} if kind == "space" else {}
    with pytest.raises(BadRequestError, match="only kernels live here"):
        api.create_repo("acme/other", repo_type=kind, **options)


def test_stock_uploads_of_folders_and_files_work(api: HfApi, place: Path) -> None:
    folder = place / "upload"
    (folder / "sub").mkdir(parents=True)
    (folder / "small.txt").write_text("small")
    (folder / "sub/big.so").write_bytes(BIG)
    api.create_branch(REPO, branch="upload", repo_type="kernel")
    first = api.upload_folder(repo_id=REPO, folder_path=folder, repo_type="kernel", revision="upload")
    again = api.upload_folder(repo_id=REPO, folder_path=folder, repo_type="kernel", revision="upload")
    assert again.oid == first.oid
    assert paths(api, "upload") == [".gitattributes", "README.md", "small.txt", "sub/big.so"]
    (folder / "small.txt").write_text("other")
    api.upload_folder(
        repo_id=REPO, folder_path=folder, repo_type="kernel", revision="upload", delete_patterns="*.md"
    )
    assert paths(api, "upload") == [".gitattributes", "small.txt", "sub/big.so"]
    got = api.hf_hub_download(
        REPO, "small.txt", repo_type="kernel", revision="upload", local_dir=place / "download"
    )
    assert Path(got).read_text() == "other"


def test_adds_deletes_copies_and_folders_in_one_commit(api: HfApi) -> None:
    api.create_branch(REPO, branch="mixed", repo_type="kernel")
    commit(api, *(CommitOperationAdd(f"d/{name}", b"x") for name in "abc"), revision="mixed")
    commit(api, CommitOperationAdd("big", BIG), revision="mixed")
    made = commit(
        api,
        CommitOperationAdd("e/new", b"y"),
        CommitOperationDelete("d/", is_folder=True),
        CommitOperationDelete("README.md"),
        CommitOperationCopy("big", "big2"),
        CommitOperationCopy(".gitattributes", "attributes"),
        revision="mixed",
    )
    assert paths(api, "mixed") == [".gitattributes", "attributes", "big", "big2", "e/new"]
    assert heads(api)["mixed"] == made.oid
    info = {entry.path: entry for entry in api.list_repo_tree(REPO, repo_type="kernel", revision="mixed")}
    assert info["big"].blob_id == info["big2"].blob_id
    assert info["big2"].size == len(BIG)


@pytest.mark.parametrize("folder", [False, True])
def test_what_is_not_there_cannot_be_deleted(api: HfApi, folder: bool) -> None:
    before = heads(api)
    with pytest.raises(EntryNotFoundError, match="doesn't exist"):
        commit(api, CommitOperationDelete("nothing/" if folder else "nothing", is_folder=folder))
    assert heads(api) == before


def test_a_name_is_a_file_or_a_folder(api: HfApi) -> None:
    with pytest.raises(BadRequestError, match="a file and a folder"):
        commit(api, CommitOperationAdd("README.md/x", b"x"))
    with pytest.raises(BadRequestError, match="a file and a folder"):
        commit(api, CommitOperationAdd("a", b"x"), CommitOperationAdd("a/b", b"x"))


def test_a_pull_request_leaves_the_branch_alone(api: HfApi) -> None:
    before = heads(api)
    made = commit(api, CommitOperationAdd("proposed", b"x"), create_pr=True)
    assert made.pr_num == 1
    assert made.pr_revision == "refs/pr/1"
    assert heads(api) == before
    more = commit(api, CommitOperationAdd("more", b"x"), revision="refs/pr/1")
    refs = api.list_repo_refs(REPO, repo_type="kernel", include_pull_requests=True)
    assert [(ref.ref, ref.target_commit) for ref in refs.pull_requests or []] == [("refs/pr/1", more.oid)]
    assert {"proposed", "more"} < set(paths(api, "refs/pr/1"))


def test_branches_and_tags(api: HfApi) -> None:
    first = heads(api)["main"]
    api.create_branch(REPO, branch="b/x", repo_type="kernel")
    with pytest.raises(HfHubHTTPError, match="already"):
        api.create_branch(REPO, branch="b/x", repo_type="kernel")
    api.create_branch(REPO, branch="b/x", repo_type="kernel", exist_ok=True)
    with pytest.raises(HfHubHTTPError, match="no room"):
        api.create_branch(REPO, branch="b", repo_type="kernel")
    api.create_branch(REPO, branch="from-commit", revision=first, repo_type="kernel")
    assert heads(api)["from-commit"] == first
    for message in (None, "about it"):
        api.create_tag(REPO, tag="v1.0", revision="from-commit", tag_message=message, repo_type="kernel")
        assert api.repo_info(REPO, revision="v1.0", repo_type="kernel").sha == first
        with pytest.raises(HfHubHTTPError, match="already"):
            api.create_tag(REPO, tag="v1.0", repo_type="kernel")
        api.delete_tag(REPO, tag="v1.0", repo_type="kernel")
    with pytest.raises(HfHubHTTPError, match="already"):
        api.create_tag(REPO, tag="from-commit", repo_type="kernel")
    with pytest.raises(BadRequestError, match="default branch"):
        api.delete_branch(REPO, branch="main", repo_type="kernel")


def test_commits_of_a_deleted_branch_stay(api: HfApi, hub: RunningHub) -> None:
    """Locks and caches name commits for ever, also after git tidied up."""
    api.create_branch(REPO, branch="gone", repo_type="kernel")
    made = commit(api, CommitOperationAdd("kept", b"kept"), revision="gone")
    api.delete_branch(REPO, branch="gone", repo_type="kernel")
    assert "gone" not in heads(api)
    assert "kept" in paths(api, made.oid)
    assert not [ref for ref in api.list_repo_refs(REPO, repo_type="kernel").branches if "keep" in ref.ref]


def test_commits_go_to_branches(api: HfApi) -> None:
    with pytest.raises(BadRequestError, match="no branch"):
        commit(api, CommitOperationAdd("x", b"x"), revision=heads(api)["main"])
    with pytest.raises(HfHubHTTPError) as caught:
        commit(api, CommitOperationAdd("x", b"x"), revision="nowhere")
    assert caught.value.response.headers["X-Error-Code"] == "RevisionNotFound"


def test_who_may_not_write_is_told_why(hub: RunningHub, api: HfApi, tokens: dict[str, str]) -> None:
    """P13: missing, unknown, expired and read-only tokens, and one of another organization."""
    before = heads(api)
    for token, status, sentence in (
        (False, 401, "no token was sent"),
        ("hf_elsewhere", 401, "not known here"),
        (tokens["old"], 401, "token expired"),
        (tokens["reader"], 403, "may only read acme"),
        (tokens["other"], 403, "is not for acme"),
    ):
        other = HfApi(endpoint=hub.endpoint, token=token)
        actions = (
            lambda api=other: commit(api, CommitOperationAdd("x", b"x")),
            lambda api=other: api.create_repo("acme/new", repo_type="kernel"),
            lambda api=other: api.delete_repo(REPO, repo_type="kernel"),
            lambda api=other: api.create_branch(REPO, branch="v7", repo_type="kernel"),
            lambda api=other: api.delete_branch(REPO, branch="main", repo_type="kernel"),
            lambda api=other: api.create_tag(REPO, tag="t", repo_type="kernel"),
        )
        for action in actions:
            with pytest.raises(HfHubHTTPError, match=sentence) as caught:
                action()
            assert caught.value.response.status_code == status
    assert heads(api) == before
    log = hub.log.read_text() + (hub.root / "commits.log").read_text()
    assert not [token for token in tokens.values() if token in log]


def test_who_changed_what_is_written_down(api: HfApi, hub: RunningHub) -> None:
    made = commit(api, CommitOperationAdd("logged", b"x"), message="logged")
    last = json.loads((hub.root / "commits.log").read_text().splitlines()[-1])
    assert (last["caller"], last["repo"], last["branch"]) == ("ci", REPO, "refs/heads/main")
    assert last["commit"] == made.oid


def test_limits_are_said_before_the_disk_is_full(hub: RunningHub, api: HfApi) -> None:
    with pytest.raises(HfHubHTTPError, match="larger than 2000000 bytes") as caught:
        commit(api, CommitOperationAdd("x", b"x" * 2_000_001))
    assert caught.value.response.status_code == 413
    with pytest.raises(HfHubHTTPError, match="larger than 4000000 bytes"):
        commit(api, *(CommitOperationAdd(f"{each}", bytes(1_500_000)) for each in range(3)))
    hub.check()


def test_bodies_that_are_not_meant(hub: RunningHub, tokens: dict[str, str]) -> None:
    token = {"Authorization": f"Bearer {tokens['ci']}"}
    for method, address, body in (
        ("POST", "/api/repos/create", b"{"),
        ("POST", "/api/repos/create", b"[]"),
        ("POST", "/api/repos/create", b'{"type": "kernel", "name": 3, "organization": "acme"}'),
        ("POST", "/api/repos/create", b'{"type": "kernel", "name": "x"}'),
        ("POST", "/api/repos/create", b'{"type": "kernel", "name": "../x", "organization": "acme"}'),
        ("POST", f"/api/kernels/{REPO}/branch/x", b'{"startingPoint": 3}'),
        ("POST", f"/api/kernels/{REPO}/branch/-x", b"{}"),
        ("POST", f"/api/kernels/{REPO}/tag/main", b'{"tag": ["x"]}'),
        ("POST", f"/api/kernels/{REPO}/tag/main", b'{"tag": "x", "message": "\\ud800"}'),
        ("POST", "/api/repos/create", b'{"type": "kernel", "name": "\\ud800", "organization": "acme"}'),
        ("DELETE", f"/api/kernels/{REPO}/branch/%00", b"{}"),
        ("DELETE", f"/api/kernels/{REPO}/branch/{'a' * 3000}", b"{}"),
        ("DELETE", f"/api/kernels/{REPO}/tag/..%2f..%2fconfig", b"{}"),
        ("POST", f"/api/kernels/{REPO}/preupload/main", b'{"files": [{"path": ".."}]}'),
        ("POST", f"/api/kernels/{REPO}/preupload/main", b'{"files": 3}'),
        ("POST", f"/api/kernels/{REPO}/commit/main", b""),
        ("POST", f"/api/kernels/{REPO}/commit/main", b"\xff\n"),
        ("POST", f"/api/kernels/{REPO}/commit/main", b"[" * 100_000),
        ("POST", f"/api/kernels/{REPO}/commit/main", b'{"key": "header", "value": {"summary": "\\ud800"}}'),
    ):
        answer = hub.ask(method, address, body, **token)
        assert answer.status == 400, (address, body, answer.body)
        assert json.loads(answer.body)["error"]
    lines = b'{"key": "header", "value": {"summary": "x"}}\n{"key": ["file"], "value": {}}'
    assert hub.ask("POST", f"/api/kernels/{REPO}/commit/main", lines, **token).status == 501
    message = b'{"tag": "said", "message": "a\\u0000b"}'
    assert hub.ask("POST", f"/api/kernels/{REPO}/tag/main", message, **token).status == 200
    hub.check()


def test_whatever_an_address_holds_is_answered(hub: RunningHub) -> None:
    """Its control characters come back in a header, which may hold none."""
    for part in ("%00", "%1b%5d0;x%07", "%7f", "%c2%85"):
        assert hub.ask("GET", f"/api/{part}").status == 404
