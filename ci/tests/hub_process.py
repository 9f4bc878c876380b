# SPDX-License-Identifier: Apache-2.0
"""Starts a real Hub on a free port of this machine, for real clients in processes of their own."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kernelworks.hubserver import auth, data, fsck, logs, serving

PATIENCE = 30
# What a user may have set that changes what a client does: the first three break kernels 0.17 altogether.
CLIENT_VARIABLES = ("DISABLE_TELEMETRY", "DO_NOT_TRACK", "LOCAL_KERNELS", "KERNELS_CACHE")


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Message
    body: bytes

    @property
    def code(self) -> str | None:
        return self.headers.get("X-Error-Code")


@dataclass
class RunningHub:
    """A server that answers."""

    root: Path
    endpoint: str
    process: subprocess.Popen[str]
    log: Path
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self.process.pid

    def environment(self, home: Path, token: str | None = None, **more: str) -> dict[str, str]:
        """What a client's process needs: this Hub, a cache of its own, and nothing of the user's."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("HF_") and name not in CLIENT_VARIABLES
        }
        own = {"HF_HOME": str(home), "HF_ENDPOINT": self.endpoint, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        return inherited | own | ({"HF_TOKEN": token} if token else {}) | more

    def requests(self) -> list[dict[str, Any]]:
        """The requests that were answered so far, as the server logged them."""
        lines = map(json.loads, self.log.read_text().splitlines())
        return [line for line in lines if line["event"] == "request"]

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """One request exactly as written: no client tidies the address."""
        address = urlsplit(self.endpoint)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, {key.replace("_", "-"): headers[key] for key in headers})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def check(self) -> None:
        """Every repository must be whole, as `git fsck` and `kernelworks hub check` see it."""
        found = fsck.check(data.require(self.root))
        assert not found.findings, [str(each) for each in found.findings]
        assert not list((self.root / "tmp").iterdir()), "an upload left something behind"

    def kill(self) -> None:
        """End it as a crash or a power cut would."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


@contextmanager
def running_hub(
    root: Path,
    *,
    tokens: Path | None = None,
    trusted: tuple[str, ...] = (),
    private: bool = False,
    limits: dict[str, int] | None = None,
    environment: dict[str, str] | None = None,
) -> Iterator[RunningHub]:
    """A Hub on the data in `root`; without a token file everybody may write."""
    options = {"private": private, "limits": limits or {}, "tokens": tokens and str(tokens)}
    ready = data.prepare(root)
    for org in trusted:
        auth.set_trusted(ready.settings.organizations, org, True)
    ready.lock.close()
    log = root.parent / f"{root.name}-{time.monotonic_ns()}.log"
    process = subprocess.Popen(
        [sys.executable, __file__, str(root), str(log), json.dumps(options)],
        env=os.environ | (environment or {}),
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()  # "serving http://..., data in ..."
            assert line.startswith("serving "), f"the Hub did not start: see {log}"
            yield RunningHub(root, line.split()[1].rstrip(","), process, log, options)
        finally:
            process.kill()


def add_token(file: Path, name: str, org: str, *, write: bool, days: int | None = None) -> str:
    """A token for one organization; less than no days from now it has expired."""
    return auth.add(file, name, [org], write=write, days=days)


def client(code: str, *arguments: str, env: dict[str, str], check: bool = True) -> str:
    """Run `code` in a fresh Python, as a user does; what it prints, errors too, comes back."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert not check or done.returncode == 0, done.stdout
    return done.stdout


def _serve(root: Path, log: Path, options: dict[str, Any]) -> None:
    logs.set_up(log)
    ready = data.prepare(root, private=options["private"])
    settings = replace(ready.settings, limits=replace(ready.settings.limits, **options["limits"]))
    tokens = auth.Tokens.from_file(Path(options["tokens"])) if options["tokens"] else auth.Tokens.open()

    def say(line: str) -> None:
        print(line, flush=True)

    serving.serve(replace(ready, settings=settings), tokens, host="127.0.0.1", port=0, say=say)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
