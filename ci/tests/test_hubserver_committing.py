# SPDX-License-Identifier: Apache-2.0
"""Commits are whole or not there: over crashes, races, retries, full disks and broken connections."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import random
import resource
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import hub_kernel
import pytest
from hub_process import PATIENCE, Answer, RunningHub, running_hub
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HfHubHTTPError

from kernelworks import official
from kernelworks.hubserver import data, fsck

REPO = "acme/toy"
MIB = 1024 * 1024


def large(seed: int, size: int = MIB) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with running_hub(tmp_path_factory.mktemp("committing") / "hub") as found:
        yield found


@pytest.fixture
def hub(server: RunningHub) -> RunningHub:
    """The server with a new repository in the place of the last test's."""
    api = api_of(server)
    api.delete_repo(REPO, repo_type="kernel", missing_ok=True)
    api.create_repo(REPO, repo_type="kernel")
    return server


def api_of(hub: RunningHub) -> HfApi:
    return HfApi(endpoint=hub.endpoint, token=False)


def commit(hub: RunningHub, files: dict[str, bytes], *, delete: tuple[str, ...] = (), **options: Any) -> str:
    operations = [CommitOperationAdd(path, data) for path, data in files.items()]
    deletions = [CommitOperationDelete(path) for path in delete]
    made = api_of(hub).create_commit(
        REPO, [*operations, *deletions], commit_message="change", repo_type="kernel", **options
    )
    return str(made.oid)


def refusal(hub: RunningHub, files: dict[str, bytes], **options: Any) -> int | None:
    """The status of the answer, or None when the commit was made."""
    try:
        commit(hub, files, **options)
    except HfHubHTTPError as error:
        return int(error.response.status_code)
    return None


def tip(hub: RunningHub, revision: str = "main") -> str:
    return str(api_of(hub).repo_info(REPO, repo_type="kernel", revision=revision).sha)


def ids(hub: RunningHub, revision: str = "main") -> dict[str, str]:
    tree = api_of(hub).list_repo_tree(REPO, repo_type="kernel", revision=revision, recursive=True)
    return {entry.path: entry.blob_id for entry in tree if hasattr(entry, "blob_id")}


def body(*lines: tuple[str, dict[str, Any]], parent: str | None = None) -> bytes:
    header = {"summary": "by hand"} | ({"parentCommit": parent} if parent else {})
    documents = [("header", header), *lines]
    return b"".join(json.dumps({"key": key, "value": value}).encode() + b"\n" for key, value in documents)


def file(path: str, data: bytes) -> tuple[str, dict[str, Any]]:
    return "file", {"path": path, "encoding": "base64", "content": base64.b64encode(data).decode()}


def post(hub: RunningHub, sent: bytes, query: str = "") -> Answer:
    return hub.ask("POST", f"/api/kernels/{REPO}/commit/main{query}", sent)


def oid(answer: Answer) -> str:
    assert answer.status == 200, answer.body
    return str(json.loads(answer.body)["commitOid"])


# Sent again


def test_a_commit_that_is_sent_again_is_answered_again(hub: RunningHub) -> None:
    """P19: an answer got lost after the commit was stored; the client repeats what it sent."""
    before = tip(hub)
    for sent in (
        body(file("a", b"1"), file("big", large(1))),
        body(file("a", b"2"), parent=(first := oid(post(hub, body(file("a", b"1"), file("big", large(1))))))),
        body(("deletedFile", {"path": "a"})),
    ):
        made = oid(post(hub, sent))
        assert oid(post(hub, sent)) == made
    history = [each.commit_id for each in api_of(hub).list_repo_commits(REPO, repo_type="kernel")]
    assert (history[0], history[2], history[3], len(history)) == (made, first, before, 4)
    assert oid(post(hub, body())) == made, "nothing to do is no commit"
    hub.check()


def test_a_pull_request_that_is_sent_again_is_one(hub: RunningHub) -> None:
    sent = body(file("a", b"1"))
    answers = [json.loads(post(hub, sent, "?create_pr=1").body) for _ in range(2)]
    assert answers[0] == answers[1]
    assert answers[0]["pullRequestUrl"].endswith("/discussions/1")
    other = json.loads(post(hub, body(file("a", b"2")), "?create_pr=1").body)
    assert other["pullRequestUrl"].endswith("/discussions/2")


def test_a_branch_that_moved_is_told(hub: RunningHub) -> None:
    old = tip(hub)
    new = commit(hub, {"a": b"1"}, parent_commit=old)
    with pytest.raises(HfHubHTTPError, match=f"has moved to {new}") as caught:
        commit(hub, {"a": b"2"}, parent_commit=old)
    assert caught.value.response.status_code == 412
    assert tip(hub) == new
    assert post(hub, body(file("a", b"3"), parent="0" * 40)).status == 412
    with pytest.raises(HfHubHTTPError, match="parentCommit"):
        commit(hub, {"a": b"2"}, parent_commit=old, create_pr=True)


# At the same time


def test_of_many_commits_on_one_parent_one_wins(hub: RunningHub) -> None:
    before = tip(hub)

    def attempt(number: int) -> int | None:
        return refusal(hub, {"a": b"%d" % number}, parent_commit=before)

    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(attempt, range(16)))
    assert (statuses.count(None), statuses.count(412)) == (1, 15)
    assert len(api_of(hub).list_repo_commits(REPO, repo_type="kernel")) == 2
    hub.check()


def test_two_servers_on_one_directory_take_turns(hub: RunningHub) -> None:
    """P05, P16: several publishers, several processes; readers see one commit's files, never a mix."""
    with running_hub(hub.root) as second:
        commit(hub, {"left": b"x", "right": b"x"})
        done = threading.Event()

        def write(number: int) -> int:
            server, made = (hub, second)[number % 2], 0
            while made < 3:
                data = b"%d-%d" % (number, made)
                files = {"left": data, "right": data, f"of-{number}-{made}": data}
                status = refusal(server, files, parent_commit=tip(server))
                assert status in (None, 412)
                made += status is None
            return made

        def look(server: RunningHub) -> int:
            looks = 0
            while not done.is_set():
                found = ids(server)
                assert found["left"] == found["right"]
                looks += 1
            return looks

        with ThreadPoolExecutor(8) as pool:
            readers = [pool.submit(look, server) for server in (hub, second)]
            made = sum(pool.map(write, range(6)))
            done.set()
            assert all(reader.result() for reader in readers)
        history = api_of(second).list_repo_commits(REPO, repo_type="kernel")
        assert len(history) == made + 2, "each commit that was answered is there once"
        assert {f"of-{n}-{k}" for n in range(6) for k in range(3)} < set(ids(hub))
    hub.check()


# Crashes


@pytest.mark.slow
def test_a_crash_leaves_the_old_or_the_new_commit(tmp_path: Path) -> None:
    """kill -9 at different moments of a commit; afterwards the next one goes through at once."""
    root = tmp_path / "hub"
    spool, git, beside = root / "tmp", root / f"repos/{REPO}.git", root / f"repos/{REPO}.lfs"
    with running_hub(root) as hub:
        api_of(hub).create_repo(REPO, repo_type="kernel")
        commit(hub, {"gone": b"x", **generation(0)})

    def loose() -> int:
        return sum(1 for _ in git.glob("objects/??/*"))

    def large_files() -> int:
        return sum(1 for path in beside.rglob("*") if path.is_file())

    counts = {"loose": 0, "large": 0}
    moments: list[tuple[Callable[[], bool], float]] = [
        (lambda: any(spool.iterdir()), 0),
        (lambda: any(spool.glob("*/content-3")), 0),
        (lambda: any(spool.glob("*/check")) or large_files() > counts["large"], 0),
        (lambda: large_files() > counts["large"], 0),
        (lambda: loose() > counts["loose"], 0),
        (lambda: loose() > counts["loose"] + 8, 0),
        (lambda: loose() > counts["loose"] + 8, 0.01),
        (lambda: loose() > counts["loose"] + 8, 0.03),
    ]
    before: dict[str, str] = {}
    outcomes = []
    for number, (reached, delay) in enumerate([*moments, (lambda: True, 0)]):
        with running_hub(root) as hub:
            assert not list(spool.iterdir()), "the start removes what the crash left"
            if number:
                after, new = ids(hub), {path: of_git(data) for path, data in generation(number).items()}
                assert after in (before, before | new), "neither the old nor the new commit"
                outcomes.append(after == before)
                hub.check()
                commit(hub, generation(number) | {"next": b"%d" % number})
                assert ids(hub)["variant/0.so"] == new["variant/0.so"]
            before = ids(hub)
            counts |= {"loose": loose(), "large": large_files()}
            writer = threading.Thread(target=attempt, args=(hub, generation(number + 1)))
            writer.start()
            while writer.is_alive() and not reached():
                pass
            time.sleep(delay)
            hub.kill()
            writer.join(PATIENCE)
    assert len(outcomes) == len(moments)
    assert any(outcomes), "no crash came before the commit was done: the moments are too late"


def generation(number: int) -> dict[str, bytes]:
    """Files that all change together: large and small."""
    files = {f"variant/{each}.so": large(10 * number + each, 400_000) for each in range(3)}
    return files | {f"variant/{each}.py": b"%d %d" % (number, each) for each in range(8)}


def attempt(hub: RunningHub, files: dict[str, bytes]) -> None:
    with contextlib.suppress(Exception):  # the server dies meanwhile
        commit(hub, files)


def of_git(data: bytes) -> str:
    done = subprocess.run(["git", "hash-object", "--stdin"], input=data, capture_output=True, check=True)
    return done.stdout.decode().strip()


@pytest.mark.parametrize("age", [60, 0], ids=["old", "fresh"])
def test_the_lock_of_a_process_that_died_is_removed(hub: RunningHub, age: int) -> None:
    lock = hub.root / f"repos/{REPO}.git/refs/heads/main.lock"
    lock.write_text("")
    os.utime(lock, (time.time() - age,) * 2)
    commit(hub, {"a": b"1"})
    assert not lock.exists()


# Broken connections


@pytest.mark.parametrize("announced", [True, False], ids=["length", "chunked"])
def test_an_upload_that_breaks_off_leaves_nothing(hub: RunningHub, announced: bool) -> None:
    before, sent = ids(hub), body(file("a", large(5, 4 * MIB)))
    where = urlsplit(hub.endpoint)
    how = f"Content-Length: {len(sent)}" if announced else "Transfer-Encoding: chunked"
    with socket.create_connection((where.hostname, where.port)) as connection:
        start = f"POST /api/kernels/{REPO}/commit/main HTTP/1.1\r\nHost: x\r\n{how}\r\n\r\n"
        half = sent[: len(sent) // 2]
        connection.sendall(start.encode() + (half if announced else b"%x\r\n%s\r\n" % (len(half), half)))
        wait_until(lambda: any(hub.root.glob("tmp/*/content-1")))
    wait_until(lambda: hub.requests()[-1]["status"] is None)
    assert ids(hub) == before
    assert [line.get("complete") for line in hub.requests() if line["status"] is None][-1:] == [False]
    hub.check()
    assert not list(hub.root.glob("repos/acme/toy.lfs/**/*"))


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


# Full disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here: that takes root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_refuses_and_keeps_what_was_there(small_disk: Path) -> None:
    """Whether it fills while the body arrives, or while git writes: 507, and nothing is half done."""
    filler = small_disk / "filler"
    with running_hub(small_disk / "hub") as hub:
        api_of(hub).create_repo(REPO, repo_type="kernel")
        commit(hub, {"a": b"old"})
        old, refused, number = ids(hub), 0, 0
        for spare in [0, 100_000, 900_000, *range(MIB, MIB + 160_000, 12_288)]:
            number += 1
            free = shutil.disk_usage(small_disk).free
            filler.write_bytes(bytes(max(free - spare, 0)))
            files = {"big": large(number), **{f"{each}": b"%d %d" % (number, each) for each in range(6)}}
            status = refusal(hub, files)
            assert status in (None, 507)
            if status:
                assert ids(hub) == old
                refused += 1
            filler.unlink()
            old = ids(hub)
            hub.check()
        assert 3 <= refused < number, "it must fail early and late, and go through with room"
        filler.write_bytes(bytes(shutil.disk_usage(small_disk).free))
        with pytest.raises(HfHubHTTPError, match="disk is full"):
            commit(hub, {"a": b"new"})
        filler.unlink()
        assert commit(hub, {"a": b"new"})


def test_a_limit_on_file_sizes_is_told_as_a_full_disk(hub: RunningHub) -> None:
    """The same where the system refuses a write for another reason: a quota of the service."""
    before = ids(hub)
    unlimited = resource.prlimit(hub.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(hub.pid, resource.RLIMIT_FSIZE, (MIB // 2, unlimited[1]))
    with pytest.raises(HfHubHTTPError, match="disk is full") as caught:
        commit(hub, {"big": large(1)})
    assert caught.value.response.status_code == 507
    assert ids(hub) == before
    resource.prlimit(hub.pid, resource.RLIMIT_FSIZE, unlimited)
    assert commit(hub, {"big": large(1)})
    hub.check()


# Damage


def test_damaged_large_files_are_never_served_and_can_be_mended(hub: RunningHub, tmp_path: Path) -> None:
    data = large(7)
    made = commit(hub, {"big": data, "small": b"x"})
    address = f"/kernels/{REPO}/resolve/main/big"
    assert hub.ask("GET", address).body == data
    (stored,) = (path for path in hub.root.glob("repos/acme/toy.lfs/*/*/*") if path.suffix != ".git")
    stored.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    answer = hub.ask("GET", address)
    assert (answer.status, answer.code) == (500, "ObjectCorrupted")
    assert b"object corrupted: acme/toy big" in answer.body
    assert "has other bytes than were stored" in hub.log.read_text()
    with pytest.raises(HfHubHTTPError, match="object corrupted: acme/toy big"):
        api_of(hub).hf_hub_download(REPO, "big", repo_type="kernel", cache_dir=tmp_path)
    assert hub.ask("GET", f"/kernels/{REPO}/resolve/main/small").body == b"x"
    assert commit(hub, {"big": data}) == made, "the same file sent again mends it, without a commit"
    assert hub.ask("GET", address).body == data
    hub.check()


def test_what_mends_a_damaged_file_may_change_others_of_its_variant(hub: RunningHub, tmp_path: Path) -> None:
    variant = hub_kernel.write_variant(tmp_path)
    big = large(8)

    def build(source: str) -> dict[str, bytes]:
        (variant / "big.so").write_bytes(big)
        (variant / "__init__.py").write_text(source)
        metadata = json.loads((variant / "metadata.json").read_text())
        metadata["digest"] = official.digest(variant)
        (variant / "metadata.json").write_text(json.dumps(metadata))
        return {f"build/torch-cpu/{path.name}": path.read_bytes() for path in variant.iterdir()}

    commit(hub, build("old = 1\n"))
    (stored,) = (path for path in hub.root.glob("repos/acme/toy.lfs/*/*/*") if path.suffix != ".git")
    stored.write_bytes(bytes(len(big)))
    commit(hub, build("new = 1\n"))
    assert hub.ask("GET", f"/kernels/{REPO}/resolve/main/build/torch-cpu/big.so").body == big
    hub.check()


def test_damaged_git_objects_are_named(hub: RunningHub) -> None:
    made = commit(hub, {"small": b"content of a small file"})
    name = of_git(b"content of a small file")
    stored = hub.root / f"repos/{REPO}.git/objects/{name[:2]}/{name[2:]}"
    stored.chmod(0o600)
    good = stored.read_bytes()
    for damage in (good[:-6], b"", good[:20] + b"\0" + good[21:], None):
        stored.unlink() if damage is None else stored.write_bytes(damage)
        answer = hub.ask("GET", f"/kernels/{REPO}/resolve/main/small")
        assert (answer.status, answer.code) == (500, "ObjectCorrupted"), answer.body
        assert hub.ask("GET", f"/kernels/{REPO}/resolve/main/README.md").status == 200
        assert commit(hub, {"small": b"content of a small file"}) == made
        assert hub.ask("GET", f"/kernels/{REPO}/resolve/main/small").body == b"content of a small file"
    hub.check()
    stored = hub.root / f"repos/{REPO}.git/objects/{made[:2]}/{made[2:]}"
    stored.chmod(0o600)
    stored.write_bytes(stored.read_bytes()[:-9])
    for address in ("refs", "commits/main", "revision/main"):
        assert hub.ask("GET", f"/api/kernels/{REPO}/{address}").code == "ObjectCorrupted"
    assert fsck.check(data.require(hub.root)).findings


# Digests


def test_files_that_are_not_what_their_metadata_says_are_refused(hub: RunningHub, tmp_path: Path) -> None:
    """L17, P12: clients do not look at the digest when they load."""
    hub_kernel.write_variant(tmp_path)
    where = "build/torch-cpu"
    files = {
        f"{where}/{path.name}": path.read_bytes() for path in (tmp_path / "build/torch-cpu").iterdir()
    } | {f"{where}/big.so": large(1)}
    metadata = json.loads(files[f"{where}/metadata.json"])
    digests = metadata["digest"]["files"]
    digests["big.so"] = base64.b64encode(hashlib.sha256(files[f"{where}/big.so"]).digest()).decode()
    files[f"{where}/metadata.json"] = json.dumps(metadata).encode()
    no_digest = json.dumps({key: value for key, value in metadata.items() if key != "digest"}).encode()
    before = tip(hub)

    def refused(changes: dict[str, bytes], *named: str, delete: tuple[str, ...] = ()) -> None:
        at = tip(hub)
        with pytest.raises(HfHubHTTPError) as caught:
            commit(hub, changes, delete=delete)
        assert caught.value.response.status_code == 422
        assert all(each in str(caught.value) for each in (where, *named))
        assert tip(hub) == at

    refused(files | {f"{where}/big.so": large(2)}, "big.so")
    refused(files | {f"{where}/more.py": b""}, "more.py")
    refused({path: data for path, data in files.items() if "init" not in path}, "__init__.py")
    refused(files | {f"{where}/metadata.json": no_digest}, "digest")
    refused(files | {f"{where}/metadata.json": b"{}"}, "metadata.json")
    assert tip(hub) == before
    assert not list(hub.root.glob("repos/acme/toy.lfs/**/*")), "what was refused was not stored"
    commit(hub, files)
    refused({f"{where}/__init__.py": b"changed"}, "__init__.py")
    refused({f"{where}/big.so": large(3)}, "big.so")
    refused({}, "__init__.py", delete=(f"{where}/__init__.py",))
    commit(hub, {"README.md": b"not part of a variant", "build/other/x": b"a variant without metadata"})
    commit(hub, {}, delete=("build/torch-cpu/",))
    assert "build/torch-cpu/big.so" not in ids(hub)
    hub.check()


# Memory


def test_memory_is_bounded_whatever_comes(hub: RunningHub) -> None:
    """Sixty MiB in one commit, then out again to eight clients at once."""
    files = {f"{each}.so": large(each, 5 * MIB) for each in range(12)}
    commit(hub, {"warm": large(99)})
    Path(f"/proc/{hub.pid}/clear_refs").write_text("5")  # forget the peak so far
    before = peak(hub)
    commit(hub, files)

    def get(path: str) -> bool:
        return hub.ask("GET", f"/kernels/{REPO}/resolve/main/{path}").body == files[path]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(get, [*files, *files]))
    assert peak(hub) - before < 50 * MIB
    assert peak(hub) < 300 * MIB


def peak(hub: RunningHub) -> int:
    status = Path(f"/proc/{hub.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
