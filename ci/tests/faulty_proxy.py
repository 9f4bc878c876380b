# SPDX-License-Identifier: Apache-2.0
"""A proxy in front of a real Hub that makes it fail as networks and busy servers do."""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive"}
INSTEAD, AFTER, CUT, CUT_AFTER, HALF = "instead", "after", "cut", "cut after", "half"


@dataclass
class Fault:
    """What happens to requests of one kind, from the first on, or after some went well."""

    method: str
    path: str  # a regular expression that is found in the request's target
    status: int = 0
    how: str = INSTEAD  # the Hub gets the request: INSTEAD never, AFTER yes, HALF the first half of the body
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b'{"error": "made to fail"}'
    times: int = 1
    skip: int = 0  # how many go well before
    act: Callable[[], None] | None = None  # done before the request is looked at
    seen: list[float] = field(default_factory=list)  # when it struck

    def strikes(self, method: str, target: str) -> bool:
        """Whether it strikes this request; counts it."""
        if method != self.method or re.search(self.path, target) is None:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if len(self.seen) >= self.times:
            return False
        self.seen.append(time.monotonic())
        return True


@dataclass
class Proxy:
    """A running proxy."""

    endpoint: str
    requests: list[tuple[str, str]]  # method and target of each, in order

    def count(self, method: str, path: str) -> int:
        return sum(m == method and re.search(path, target) is not None for m, target in self.requests)

    def writes(self) -> list[tuple[str, str]]:
        """The requests that could change something."""
        return [(method, target) for method, target in self.requests if method not in ("GET", "HEAD")]


@contextmanager
def faulty_proxy(endpoint: str, faults: Sequence[Fault] = ()) -> Iterator[Proxy]:
    """Pass everything on to `endpoint`, but for the faults."""
    requests: list[tuple[str, str]] = []
    upstream = urlsplit(endpoint).netloc
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            with lock:
                requests.append((self.command, self.path))
                fault = next((each for each in faults if each.strikes(self.command, self.path)), None)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if fault is not None and fault.act is not None:
                fault.act()
            if fault is None or (fault.how == INSTEAD and not fault.status):
                self.answer(*self.forward(body))
            elif fault.how == HALF:
                self.forward_half(body)
                self.cut()
            else:
                if fault.how in (AFTER, CUT_AFTER):
                    self.forward(body)
                if fault.how in (CUT, CUT_AFTER):
                    self.cut()
                else:
                    self.answer(fault.status, list(fault.headers.items()), fault.body)

        def forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            """With the Host that the client used, so that addresses in the answer lead here again."""
            connection = http.client.HTTPConnection(upstream, timeout=120)
            headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP_BY_HOP}
            connection.request(self.command, self.path, body or None, headers)
            response = connection.getresponse()
            answer = response.status, response.getheaders(), response.read()
            connection.close()
            return answer

        def forward_half(self, body: bytes) -> None:
            """Promise all of the body, send half of it, and hang up."""
            connection = http.client.HTTPConnection(upstream, timeout=120)
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in HOP_BY_HOP:
                    connection.putheader(name, value)
            connection.endheaders()
            connection.send(body[: len(body) // 2])
            connection.close()

        def cut(self) -> None:
            self.close_connection = True
            self.connection.close()

        def answer(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in HOP_BY_HOP | {"content-length"}:
                    self.send_header(name, value)
            length = {k.lower(): v for k, v in headers}.get("content-length", len(body))
            self.send_header("Content-Length", str(length if self.command == "HEAD" else len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_any

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that was cut off
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Proxy(f"http://127.0.0.1:{server.server_port}", requests)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
