# SPDX-License-Identifier: Apache-2.0
"""Large files sent beside the commit: the client's own LFS code, whole and in parts, and forged requests."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_process import RunningHub, add_token, client, running_hub
from huggingface_hub import HfApi

from kernelworks.hubserver import lfs

REPO = "acme/toy"
BASIC = random.Random(1).randbytes(700_000)
PARTS = random.Random(2).randbytes(lfs.PART * 2 + 5)

# What a client does where the server says "lfs" and hf_xet is out of the way.
UPLOAD = """
import os, sys
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub._commit_api import _upload_files
folder, *names = sys.argv[1:]
api, operations = HfApi(), [CommitOperationAdd(name, os.path.join(folder, name)) for name in names]
for operation in operations:
    operation._upload_mode = "lfs"
_upload_files(
    additions=operations, repo_type="kernel", repo_id="acme/toy", headers=api._build_hf_headers(),
    endpoint=api.endpoint, num_threads=2, revision="main", create_pr=False,
)
for operation in operations:
    operation._is_uploaded = True
print(api.create_commit("acme/toy", operations, commit_message="lfs", repo_type="kernel").oid)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lfs")


@pytest.fixture(scope="module")
def token(place: Path) -> str:
    return add_token(place / "tokens.json", "ci", "acme", write=True)


@pytest.fixture(scope="module")
def hub(place: Path, token: str) -> Iterator[RunningHub]:
    with running_hub(place / "hub", tokens=place / "tokens.json") as found:
        api = HfApi(endpoint=found.endpoint, token=token)
        for name in ("acme/toy", "acme/other"):
            api.create_repo(name, repo_type="kernel")
        yield found
        found.check()


def batch(hub: RunningHub, token: str | None, *objects: dict[str, Any], repo: str = REPO, **more: Any) -> Any:
    body = {"operation": "upload", "transfers": ["basic", "multipart"], "objects": list(objects)} | more
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return hub.ask(
        "POST", f"/kernels/{repo}.git/info/lfs/objects/batch", json.dumps(body).encode(), **headers
    )


def named(data: bytes) -> dict[str, Any]:
    return {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}


def href(answer: Any) -> str:
    address: str = json.loads(answer.body)["objects"][0]["actions"]["upload"]["href"]
    return "/" + address.split("/", 3)[3]


@pytest.mark.parametrize("files", [{"basic.so": BASIC}, {"parts.so": PARTS, "small.so": BASIC + b"x"}])
def test_the_client_s_own_lfs_code_works(
    hub: RunningHub, token: str, tmp_path: Path, files: dict[str, bytes]
) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    environment = hub.environment(tmp_path / "home", token, HF_HUB_DISABLE_XET="1")
    client(UPLOAD, str(tmp_path), *files, env=environment)
    api = HfApi(endpoint=hub.endpoint, token=token)
    for name, data in files.items():
        got = api.hf_hub_download(REPO, name, repo_type="kernel", cache_dir=tmp_path / "cache")
        assert Path(got).read_bytes() == data
    before = len(hub.requests())
    client(UPLOAD, str(tmp_path), *files, env=environment)
    assert "PUT" not in [line["method"] for line in hub.requests()[before:]], "it was here already"
    hub.check()


def test_an_object_must_be_what_its_name_says(hub: RunningHub, token: str) -> None:
    wanted = named(b"x" * 100)
    address = href(batch(hub, token, wanted))
    for body, status in ((b"y" * 100, 400), (b"x" * 99, 400), (b"x" * 101, 413)):
        answer = hub.ask("PUT", address, body)
        assert answer.status == status, answer.body
        assert "was not uploaded" in commit_large(hub, token, wanted)
    assert hub.ask("PUT", address, b"x" * 100).status == 200
    assert "commitOid" in commit_large(hub, token, wanted)
    hub.check()


def commit_large(hub: RunningHub, token: str, wanted: dict[str, Any], repo: str = REPO) -> str:
    lines = (
        {"key": "header", "value": {"summary": "s"}},
        {"key": "lfsFile", "value": {"path": "x", "algo": "sha256", **wanted}},
    )
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    answer = hub.ask("POST", f"/api/kernels/{repo}/commit/main", body, Authorization=f"Bearer {token}")
    assert answer.status in (200, 400), answer.body
    return answer.body.decode()


def test_a_damaged_object_is_asked_for_again(hub: RunningHub, token: str) -> None:
    data = random.Random(9).randbytes(400_000)
    address = href(batch(hub, token, named(data)))
    assert hub.ask("PUT", address, data).status == 200
    sha256 = named(data)["oid"]
    stored = hub.root / f"repos/{REPO}.lfs/{sha256[:2]}/{sha256[2:4]}/{sha256}"
    stored.write_bytes(bytes(len(data)))
    assert "was not uploaded" in commit_large(hub, token, named(data))
    assert hub.ask("PUT", href(batch(hub, token, named(data))), data).status == 200
    assert "commitOid" in commit_large(hub, token, named(data))


def test_knowing_a_hash_opens_no_other_repository_s_file(hub: RunningHub, token: str) -> None:
    data = b"secret" * 1000
    assert hub.ask("PUT", href(batch(hub, token, named(data), repo="acme/other")), data).status == 200
    assert "was not uploaded to acme/toy" in commit_large(hub, token, named(data))
    assert "of this size" in commit_large(hub, token, named(data) | {"size": 3}, repo="acme/other")


def test_an_address_is_good_for_one_object_of_one_repository(hub: RunningHub, token: str) -> None:
    data = b"z" * 50
    address = href(batch(hub, token, named(data)))
    forged = (
        address.replace("acme/toy", "acme/other"),
        address.replace(named(data)["oid"], "0" * 64),
        address.replace("size=50", "size=51"),
        address.replace("until=", "until=9"),
        address.replace("part=0", "part=1"),
        address.partition("&seal")[0],
        address + "0",
    )
    for each in forged:
        answer = hub.ask("PUT", each, data)
        assert answer.status in (400, 403), (each, answer.body)
    assert hub.ask("PUT", address, data).status == 200
    assert "seal=" not in hub.log.read_text()


def test_who_may_not_write_gets_no_address(hub: RunningHub) -> None:
    assert batch(hub, None, named(b"x")).status == 401
    assert batch(hub, "hf_elsewhere", named(b"x")).status == 401


def test_what_is_not_offered_or_not_meant(hub: RunningHub, token: str) -> None:
    assert batch(hub, token, named(b"x"), operation="download").status == 501
    assert batch(hub, token, named(b"x"), hash_algo="md5").status == 400
    assert batch(hub, token, {"oid": "../../x", "size": 1}).status == 400
    assert batch(hub, token, {"oid": "0" * 64, "size": -1}).status == 400
    large = json.loads(batch(hub, token, {"oid": "0" * 64, "size": 10**12}).body)["objects"][0]
    assert large["error"]["code"] == 413


def test_parts_that_did_not_come_are_missed(hub: RunningHub, token: str) -> None:
    data = random.Random(5).randbytes(lfs.PART + 1)
    upload = json.loads(batch(hub, token, named(data)).body)["objects"][0]["actions"]["upload"]
    first = "/" + upload["header"]["00001"].split("/", 3)[3]
    assert hub.ask("PUT", first, data[: lfs.PART]).headers["ETag"]
    address = "/" + upload["href"].split("/", 3)[3]
    answer = hub.ask("POST", address, b"{}")
    assert answer.status == 400
    assert b"part 2 did not come" in answer.body
    second = "/" + upload["header"]["00002"].split("/", 3)[3]
    assert hub.ask("PUT", second, data[lfs.PART :]).status == 200
    assert hub.ask("POST", address, b"{}").status == 200
    assert hub.ask("POST", address, b"{}").status == 200, "an answer got lost"
    assert "commitOid" in commit_large(hub, token, named(data))
