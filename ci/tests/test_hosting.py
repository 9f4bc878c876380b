# SPDX-License-Identifier: Apache-2.0
"""`kernelworks hub` as an operator meets it: real processes, real clients, real signals."""

from __future__ import annotations

import importlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import hub_kernel
import pytest
from hub_process import RunningHub, client
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from kernelworks import hosting
from kernelworks.cli import main
from kernelworks.errors import HostingError

REFUSED = HostingError.exit_code
PATIENCE = 120
LOAD = """
import sys
from kernels import get_kernel
for options in map(eval, sys.argv[1:]):
    try:
        print("result", get_kernel("acme/scale-it", version=1, **options).scale(21))
    except Exception as error:
        print("refused", error)
"""


@dataclass
class Served:
    """A server that an operator started."""

    process: subprocess.Popen[str]
    endpoint: str
    ready: str
    log: Path

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def lines(self) -> list[dict[str, Any]]:
        """What it logged."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def environment(self, home: Path, **more: str) -> dict[str, str]:
        """What a client of it needs."""
        hub = RunningHub(self.log.parent, self.endpoint, self.process, self.log)
        return hub.environment(home, **more)


@contextmanager
def served(tmp_path: Path, *options: object, before: str = "") -> Iterator[Served]:
    """`kernelworks hub serve` on tmp_path/hub and a free port; `before` is run in it first."""
    log = tmp_path / f"{len(list(tmp_path.iterdir()))}.log"
    words = ["hub", "serve", "--root", tmp_path / "hub", "--port", 0, "--log-file", log, *options]
    code = f"import sys\nfrom kernelworks.cli import main\n{before}\nsys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)], stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            ready = first_line(process)
            assert ready.startswith("serving http://"), ready
            yield Served(process, ready.split()[1].rstrip(","), ready, log)
        finally:
            process.kill()


def first_line(process: subprocess.Popen[str]) -> str:
    """The first line of its output, waited for no longer than patience lasts."""
    assert process.stdout is not None
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=lambda: lines.put(process.stdout.readline()), daemon=True).start()  # type: ignore[union-attr]
    return lines.get(timeout=PATIENCE)


def refusal(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one sentence of a command that is refused."""
    assert main(list(map(str, words))) == REFUSED
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said


def token(tmp_path: Path, capsys: pytest.CaptureFixture[str], *rights: str, name: str = "ci") -> str:
    """A token made on the command line."""
    file = tmp_path / "tokens.json"
    words = ["hub", "token", "add", "--token-file", str(file), "--name", name, "--org", "acme", *rights]
    assert main(words) == 0
    return capsys.readouterr().out.strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_serves_and_stops_when_told(tmp_path: Path, number: int) -> None:
    with served(tmp_path) as hub:
        assert hub.ready == f"serving {hub.endpoint}, data in {tmp_path / 'hub'}\n"
        with urllib.request.urlopen(hub.endpoint) as answer:
            assert answer.status == 200
        assert hub.stop(number) == 0
        events = [line["event"] for line in hub.lines()]
        assert (events[0], events[-1]) == ("start", "stop")
        assert hub.lines()[0]["free_bytes"] > 0


def test_requests_in_flight_are_finished(tmp_path: Path) -> None:
    body = b'{"content": "a: 1", "repoType": "kernel"}'
    with served(tmp_path) as hub, begun_post(hub.endpoint, len(body)) as connection:
        connection.sendall(body[:10])
        hub.process.send_signal(signal.SIGTERM)
        wait_until_refused(hub.endpoint)
        connection.sendall(body[10:])
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        assert hub.process.wait(PATIENCE) == 0


def test_a_request_that_never_ends_does_not_hold_it(tmp_path: Path) -> None:
    shorter = "from kernelworks.hubserver import serving\nserving.GRACE_SECONDS = 1"
    with served(tmp_path, before=shorter) as hub, begun_post(hub.endpoint, 100):
        assert hub.stop() == 0


def begun_post(endpoint: str, length: int) -> socket.socket:
    """A request that the server has begun to answer: it asks for the body."""
    address = urlsplit(endpoint)
    connection = socket.create_connection((address.hostname, address.port), timeout=PATIENCE)
    head = f"POST /api/validate-yaml HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: {length}\r\n"
    connection.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
    assert connection.recv(100).startswith(b"HTTP/1.1 100")
    return connection


def wait_until_refused(endpoint: str) -> None:
    """Until no new connection is taken, which is when the server has begun to stop."""
    address = urlsplit(endpoint)
    while True:
        try:
            socket.create_connection((address.hostname, address.port), timeout=PATIENCE).close()
        except OSError:
            return


def test_a_port_in_use_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = refusal(capsys, "hub", "serve", "--root", tmp_path / "hub", "--port", port)
    assert f"--port {port}: cannot listen there" in said


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--open", "--host", "0.0.0.0"], "--open would let everyone who reaches 0.0.0.0"),
        (["--open", "--token-file", "x"], "leave one of them out"),
        (["--private"], "--private needs a --token-file"),
        (["--token-file", "/nonexistent/tokens"], "/nonexistent/tokens: cannot be read"),
        (["--public-url", "hub.example.org"], "does not begin with http"),
        (["--host", "no.such.host.invalid", "--open"], "is no address"),
        (["--host", "192.0.2.1"], "cannot listen there"),
        (["--log-file", "/nonexistent/log"], "--log-file /nonexistent/log: cannot be written"),
        (["--root", "/proc/hub"], "cannot be written"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    root = [] if "--root" in options else ["--root", tmp_path / "hub"]
    assert sentence in refusal(capsys, "hub", "serve", *root, *options)


@pytest.mark.parametrize("port", ["70000", "-1", "x"])
def test_a_port_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str], port: str) -> None:
    with pytest.raises(SystemExit):
        main(["hub", "serve", "--root", str(tmp_path), f"--port={port}"])
    assert "is not a port" in capsys.readouterr().err


def test_loopback_is_this_machine_alone() -> None:
    assert all(map(hosting.is_loopback, ("127.0.0.1", "127.1.2.3", "localhost", "::1")))
    assert not any(map(hosting.is_loopback, ("0.0.0.0", "192.0.2.1", "::")))


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'uvicorn'", name="uvicorn")

    monkeypatch.setattr(importlib, "import_module", missing)
    said = refusal(capsys, "hub", "serve", "--root", tmp_path / "hub")
    assert "pip install 'kernelworks[hub]'" in said


def test_without_tokens_it_is_read_only(tmp_path: Path) -> None:
    """P13: the client learns what is missing before it has sent anything."""
    with served(tmp_path) as hub, pytest.raises(HfHubHTTPError, match="set HF_TOKEN to a token of this Hub"):
        HfApi(endpoint=hub.endpoint, token=False).create_repo("acme/scale-it", repo_type="kernel")


def test_open_lets_anyone_on_this_machine_write_but_no_web_page(tmp_path: Path) -> None:
    """A page that a person happens to visit could otherwise replace a kernel on this machine."""
    with served(tmp_path, "--open") as hub:
        hub_kernel.publish(hub.endpoint, tmp_path / "kernel")
        body = json.dumps({"name": "x", "organization": "acme", "type": "kernel"}).encode()
        request = urllib.request.Request(
            f"{hub.endpoint}/api/repos/create",
            body,
            {"Origin": "http://elsewhere.example", "Content-Type": "text/plain"},
        )
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(request)
        assert raised.value.code == 403
        assert raised.value.headers["X-Error-Code"] == "Forbidden"
        assert not HfApi(endpoint=hub.endpoint, token=False).repo_exists("acme/x", repo_type="kernel")
        assert hub.stop() == 0
    assert raised.value.headers["X-Request-Id"] in [line.get("id") for line in hub.lines()]


def test_tokens_are_made_listed_and_revoked_while_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = token(tmp_path, capsys, "--read", "--days", "30", name="reader")
    file = tmp_path / "tokens.json"
    with served(tmp_path, "--token-file", file) as hub:
        writer = token(tmp_path, capsys, "--write", name="writer")
        assert main(["hub", "token", "list", "--token-file", str(file)]) == 0
        listed = capsys.readouterr().out
        assert [line.split()[:3] for line in listed.splitlines()] == [
            ["reader", "read", "acme"],
            ["writer", "write", "acme"],
        ]
        assert writer not in listed
        assert HfApi(endpoint=hub.endpoint, token=reader).whoami()["name"] == "reader"
        with pytest.raises(HfHubHTTPError, match="token reader may only read acme"):
            HfApi(endpoint=hub.endpoint, token=reader).create_repo("acme/scale-it", repo_type="kernel")
        api = HfApi(endpoint=hub.endpoint, token=writer)
        api.create_repo("acme/scale-it", repo_type="kernel")
        with pytest.raises(HfHubHTTPError, match="is not for other"):
            api.create_repo("other/scale-it", repo_type="kernel")
        assert main(["hub", "token", "revoke", "--token-file", str(file), "--name", "writer"]) == 0
        with pytest.raises(HfHubHTTPError, match="not known here"):
            api.create_repo("acme/more", repo_type="kernel")


def test_days_are_days(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(
            ["hub", "token", "add", "--token-file", "x", "--name", "n", "--org", "o", "--read", "--days", "0"]
        )
    assert "give 1 or more" in capsys.readouterr().err


def test_the_logs_say_who_did_what_and_hold_no_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = token(tmp_path, capsys, "--write")
    with served(tmp_path, "--token-file", tmp_path / "tokens.json") as hub:
        commit = hub_kernel.publish(hub.endpoint, tmp_path / "kernel", token=secret)
        request = urllib.request.Request(
            f"{hub.endpoint}/kernels/acme/scale-it?signature=hidden",
            headers={"Authorization": f"Bearer {secret}"},
        )
        with urllib.request.urlopen(request) as answer:
            request_id, size = answer.headers["X-Request-Id"], len(answer.read())
        assert hub.stop() == 0
    text, lines = hub.log.read_text(), hub.lines()
    assert secret not in text
    assert "hidden" not in text
    assert "authorization" not in text.lower()
    line = next(line for line in lines if line.get("id") == request_id)
    assert {key: line[key] for key in ("method", "path", "status", "bytes", "caller")} == {
        "method": "GET",
        "path": "/kernels/acme/scale-it",
        "status": 200,
        "bytes": size,
        "caller": "ci",
    }
    assert line["ms"] > 0
    moves = [json.loads(line) for line in (tmp_path / "hub/commits.log").read_text().splitlines()]
    assert secret not in str(moves)
    assert [(move["caller"], move["repo"]) for move in moves if move["commit"] == commit] == [
        ("ci", "acme/scale-it")
    ]


def test_a_client_that_goes_away_is_logged(tmp_path: Path) -> None:
    with served(tmp_path) as hub:
        with begun_post(hub.endpoint, 100) as connection:
            connection.sendall(b"{")
        assert hub.stop() == 0
    line = next(line for line in hub.lines() if line.get("path") == "/api/validate-yaml")
    assert line["complete"] is False
    assert line["received"] == 1


@pytest.mark.slow
def test_trust_is_the_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """L11: a client is refused until the operator trusts the organization, or the user the repository."""
    words = ["hub", "org", "acme", "--root", str(tmp_path / "hub")]
    with served(tmp_path, "--open") as hub:
        hub_kernel.publish(hub.endpoint, tmp_path / "kernel")
        environment = hub.environment(tmp_path / "home")
        plain, named = client(
            LOAD, "{}", "{'trust_remote_code': ['acme/scale-it']}", env=environment
        ).splitlines()
        assert plain.startswith("refused")
        assert "not from a trusted publisher" in plain
        assert named == "result 42"
        assert main([*words, "--trusted"]) == 0
        assert "result 42" in client(LOAD, "{}", env=environment)
        assert main([*words, "--untrusted"]) == 0
        with urllib.request.urlopen(f"{hub.endpoint}/api/organizations/acme/overview") as answer:
            assert json.load(answer)["trustedKernelPublisher"] is False
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines() == [
        "acme is a trusted publisher",
        "acme is not a trusted publisher",
        "acme is not a trusted publisher",
    ]


def test_trust_in_a_name_that_is_not_there_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(tmp_path) as hub:
        assert hub.stop() == 0
    assert main(["hub", "org", "acmee", "--trusted", "--root", str(tmp_path / "hub")]) == 0
    assert "nothing of acmee is on this Hub yet" in capsys.readouterr().err


def test_two_servers_share_a_directory(tmp_path: Path) -> None:
    with served(tmp_path, "--open") as first, served(tmp_path, "--open") as second:
        hub_kernel.publish(first.endpoint, tmp_path / "kernel")
        api = HfApi(endpoint=second.endpoint, token=False)
        assert [ref.name for ref in api.list_repo_refs(hub_kernel.REPO, repo_type="kernel").branches] == [
            "main",
            "v1",
        ]
        assert first.stop() == 0
        assert second.stop() == 0


def test_the_data_of_a_newer_format_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "hub"
    root.mkdir()
    (root / "hub.json").write_text('{"format": 7, "hub": "x"}')
    for words in (["serve"], ["check"], ["org", "acme"]):
        assert "is of format 7" in refusal(capsys, "hub", *words, "--root", root)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """The data of a Hub with one large file, for a test to damage."""
    large = tmp_path / "kernel" / "benchmarks" / "large.bin"
    large.parent.mkdir(parents=True)
    large.write_bytes(os.urandom(400_000))
    with served(tmp_path, "--open") as hub:
        hub_kernel.publish(hub.endpoint, tmp_path / "kernel")
        assert hub.stop() == 0
    return tmp_path / "hub"


def large_object(root: Path) -> Path:
    return next(path for path in root.glob("repos/acme/scale-it.lfs/*/*/*") if len(path.name) == 64)


def git_object(root: Path) -> Path:
    return sorted(root.glob("repos/acme/scale-it.git/objects/??/*"))[0]


def flip(path: Path) -> None:
    """Change one byte, and not the size."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


@pytest.mark.parametrize("damage", ["none", "missing", "short", "flipped", "git", "ref"])
def test_check_finds_damage(damaged: Path, capsys: pytest.CaptureFixture[str], damage: str) -> None:
    found = large_object(damaged)
    if damage == "missing":
        found.unlink()
    elif damage == "short":
        found.write_bytes(b"x")
    elif damage == "flipped":
        flip(found)
    elif damage == "git":
        flip(git_object(damaged))
    elif damage == "ref":
        (damaged / "repos/acme/scale-it.git/refs/heads/v1").write_text("0" * 39 + "1\n")
    code = main(["hub", "check", "--root", str(damaged)])
    *findings, summary = capsys.readouterr().out.splitlines()
    if damage == "none":
        assert code == 0
        assert findings == []
        assert summary == "1 repositories, 1 large files: no damage"
        return
    assert code == hosting.FOUND
    assert all(line.startswith("acme/scale-it: ") for line in findings)
    expected = {
        "missing": f"benchmarks/large.bin: object {found.name} is missing",
        "short": "has 1 bytes, not 400000",
        "flipped": "has other bytes than were stored",
        "git": "git fsck: ",
        "ref": "git",
    }[damage]
    assert any(expected in line for line in findings), findings


def test_a_private_hub_shows_nothing_without_a_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = token(tmp_path, capsys, "--write")
    with served(tmp_path, "--token-file", tmp_path / "tokens.json", "--private") as hub:
        hub_kernel.publish(hub.endpoint, tmp_path / "kernel", token=writer)
        assert HfApi(endpoint=hub.endpoint, token=writer).repo_exists(hub_kernel.REPO, repo_type="kernel")
        assert not HfApi(endpoint=hub.endpoint, token=False).repo_exists(hub_kernel.REPO, repo_type="kernel")
