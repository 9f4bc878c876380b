# SPDX-License-Identifier: Apache-2.0
"""Files to download: headers that clients keep, parts, connections that break, bytes that are wrong."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hub_process import PATIENCE, RunningHub, running_hub
from huggingface_hub import CommitOperationAdd, HfApi, hf_hub_download, snapshot_download

REPO = "acme/toy"
SMALL = b"small file\n"
LARGE = random.Random(3).randbytes(400_000)
HUGE = random.Random(4).randbytes(26 * 1024 * 1024)  # the client resumes at multiples of 10 MiB
COMMIT = "f" * 40
DIGITS = f"bytes={'9' * 5000}-"  # more digits than Python reads
FILES = {"small": SMALL, "large.so": LARGE, "empty": b"", "sub/ü b+c&d?e#f%25": SMALL, "again.so": LARGE}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with running_hub(tmp_path_factory.mktemp("resolve") / "hub") as found:
        api = HfApi(endpoint=found.endpoint, token=False)
        api.create_repo(REPO, repo_type="kernel")
        adds = [CommitOperationAdd(path, data) for path, data in FILES.items()]
        api.create_commit(REPO, adds, commit_message="files", repo_type="kernel")
        yield found
        found.check()


def address(path: str, revision: str = "main") -> str:
    return f"/kernels/{REPO}/resolve/{revision}/{path}"


@pytest.mark.parametrize(("path", "data"), [("small", SMALL), ("large.so", LARGE), ("empty", b"")])
def test_head_and_get_say_the_same(hub: RunningHub, path: str, data: bytes) -> None:
    """L16: a client refuses a file without X-Repo-Commit, ETag and Content-Length."""
    head, get = hub.ask("HEAD", address(path)), hub.ask("GET", address(path))
    assert (head.status, get.status) == (200, 200)
    assert (head.body, get.body) == (b"", data)
    kept = ("X-Repo-Commit", "ETag", "Content-Length", "Accept-Ranges")
    assert [head.headers[name] for name in kept] == [get.headers[name] for name in kept]
    commit = HfApi(endpoint=hub.endpoint, token=False).repo_info(REPO, repo_type="kernel").sha
    assert head.headers["X-Repo-Commit"] == commit
    assert head.headers["Content-Length"] == str(len(data))
    assert head.headers["X-Request-Id"] != get.headers["X-Request-Id"]
    assert not [name for name in head.headers if "xet" in name.lower()]


def test_an_etag_is_a_name_for_the_content(hub: RunningHub) -> None:
    """The client makes it a file name: one for each content, hexadecimal."""
    tags = {
        path: hub.ask("HEAD", address(path)).headers["ETag"] for path in ("small", "large.so", "again.so")
    }
    assert tags["large.so"] == tags["again.so"] == f'"{hashlib.sha256(LARGE).hexdigest()}"'
    assert tags["small"] == f'"{hashlib.sha1(b"blob %d" % len(SMALL) + bytes(1) + SMALL).hexdigest()}"'
    assert hub.ask("GET", address("small"), If_None_Match=tags["small"]).status == 304


@pytest.mark.parametrize(("path", "data"), [("small", SMALL), ("large.so", LARGE)])
@pytest.mark.parametrize(
    ("asked", "part"),
    [
        ("bytes=0-", slice(0, None)),
        ("bytes=3-5", slice(3, 6)),
        ("bytes=5-5", slice(5, 6)),
        ("bytes=-4", slice(-4, None)),
        ("bytes=2-99999999", slice(2, None)),
        ("bytes=-99999999", slice(0, None)),
    ],
)
def test_a_part_of_a_file(hub: RunningHub, path: str, data: bytes, asked: str, part: slice) -> None:
    answer = hub.ask("GET", address(path), Range=asked)
    assert answer.status == 206
    assert answer.body == data[part]
    start, stop, _ = part.indices(len(data))
    assert answer.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{len(data)}"
    assert answer.headers["Content-Length"] == str(stop - start)


@pytest.mark.parametrize(("path", "asked"), [("small", "bytes=11-"), ("large.so", "bytes=400000-400001")])
def test_a_part_that_is_not_there(hub: RunningHub, path: str, asked: str) -> None:
    answer = hub.ask("GET", address(path), Range=asked)
    assert answer.status == 416
    assert answer.headers["Content-Range"] == f"bytes */{len(FILES[path])}"


@pytest.mark.parametrize("asked", ["bytes=5-3", "bytes=-", "items=0-1", "bytes=0-1,3-4", "bytes=a-", DIGITS])
def test_a_part_that_cannot_be_meant_is_all(hub: RunningHub, asked: str) -> None:
    answer = hub.ask("GET", address("small"), Range=asked)
    assert (answer.status, answer.body) == (200, SMALL)


def test_a_part_of_another_file_is_all_of_this_one(hub: RunningHub) -> None:
    tag = hub.ask("HEAD", address("small")).headers["ETag"]
    assert hub.ask("GET", address("small"), Range="bytes=3-", If_Range=tag).status == 206
    assert hub.ask("GET", address("small"), Range="bytes=3-", If_Range='"0"').status == 200


def test_a_missing_file_tells_the_commit(hub: RunningHub) -> None:
    answer = hub.ask("HEAD", address("nothing"))
    assert (answer.status, answer.code) == (404, "EntryNotFound")
    assert len(answer.headers["X-Repo-Commit"]) == 40
    assert hub.ask("HEAD", address("small", COMMIT)).code == "RevisionNotFound"
    assert hub.ask("HEAD", address("sub")).code == "EntryNotFound"


def test_stock_downloads_give_the_bytes_back(hub: RunningHub, tmp_path: Path) -> None:
    """L16: snapshot_download and hf_hub_download of the installed client, odd names too."""
    options = {"repo_type": "kernel", "endpoint": hub.endpoint, "token": False, "cache_dir": tmp_path}
    folder = Path(snapshot_download(REPO, **options))
    assert {path: (folder / path).read_bytes() for path in FILES} == FILES
    assert Path(hf_hub_download(REPO, "large.so", revision="main", **options)).read_bytes() == LARGE
    blobs = {path.name for path in (tmp_path / "kernels--acme--toy/blobs").iterdir()}
    assert hashlib.sha256(LARGE).hexdigest() in blobs


def test_a_kernel_can_be_asked_for_as_a_model(hub: RunningHub, tmp_path: Path) -> None:
    """`kernels benchmark` does."""
    folder = Path(snapshot_download(REPO, endpoint=hub.endpoint, token=False, cache_dir=tmp_path))
    assert (folder / "large.so").read_bytes() == LARGE


def test_clients_that_go_away_cost_nothing(hub: RunningHub) -> None:
    """A download that its client gives up ends on the server too, with its file closed."""
    add = [CommitOperationAdd("huge", HUGE)]
    HfApi(endpoint=hub.endpoint, token=False).create_commit(
        REPO, add, commit_message="huge", repo_type="kernel"
    )
    where = urlsplit(hub.endpoint)
    for _ in range(20):
        with socket.create_connection((where.hostname, where.port)) as connection:
            connection.sendall(f"GET {address('huge')} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert connection.recv(100)
    end = time.monotonic() + PATIENCE
    while any(".lfs" in each for each in open_files(hub)):
        assert time.monotonic() < end, "a file is still open"
        assert hub.ask("GET", address("small")).status == 200


def open_files(hub: RunningHub) -> list[str]:
    """What the server has open; it may close some meanwhile."""
    found = []
    for path in Path(f"/proc/{hub.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(os.readlink(path))
    return found


def test_a_broken_download_is_resumed(hub: RunningHub, tmp_path: Path) -> None:
    """The stock client asks for the rest of a file whose connection broke, and has the right bytes."""
    api = HfApi(endpoint=hub.endpoint, token=False)
    api.create_commit(REPO, [CommitOperationAdd("huge", HUGE)], commit_message="huge", repo_type="kernel")
    before = len(hub.requests())
    with cutting_proxy(hub.endpoint, after=15 * 1024 * 1024) as endpoint:
        path = hf_hub_download(
            REPO, "huge", repo_type="kernel", endpoint=endpoint, token=False, cache_dir=tmp_path
        )
    assert Path(path).read_bytes() == HUGE
    got = [line for line in hub.requests()[before:] if line["method"] == "GET" and "huge" in line["path"]]
    assert [line["status"] for line in got][-1] == 206
    assert got[-1]["bytes"] < len(HUGE) - 9 * 1024 * 1024, "only the rest came"


@contextmanager
def cutting_proxy(endpoint: str, after: int) -> Iterator[str]:
    """Passes bytes on, and breaks the first connection that carried so many of them."""
    upstream, cuts = urlsplit(endpoint), [after]

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((upstream.hostname, upstream.port)) as server:
                up = threading.Thread(target=pump, args=(self.request, server), daemon=True)
                up.start()
                pump(server, self.request, limit=cuts)
                for each in (server, self.request):
                    with suppress(OSError):
                        each.shutdown(socket.SHUT_RDWR)
                up.join()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def pump(source: socket.socket, target: socket.socket, limit: list[int] | None = None) -> None:
    """Carry bytes until one side ends, or the first limit is reached."""
    carried = 0
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
            carried += len(data)
            if limit and carried > limit[0]:
                limit.clear()
                return
        target.shutdown(socket.SHUT_WR)
