# SPDX-License-Identifier: Apache-2.0
"""Runs the application under uvicorn: the socket, the signals, the line that says it is ready."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from kernelworks import __version__
from kernelworks.errors import HostingError
from kernelworks.hubserver.app import create_app
from kernelworks.hubserver.auth import Organizations, Tokens
from kernelworks.hubserver.data import Data
from kernelworks.hubserver.failures import Failure
from kernelworks.hubserver.logs import AccessLog, Application, Receive, Scope, Send

LOG = logging.getLogger("kernelworks.hub")
GRACE_SECONDS = 30  # for requests in flight when the server is told to stop
KEEP_ALIVE_SECONDS = 75  # longer than the 60 s of common proxies, which then never meet a closing connection


class Server(uvicorn.Server):
    """uvicorn, which says when it listens and ends with exit code 0 when it is told to stop."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets=sockets)
        if self.started:
            self._ready()

    def stop(self, number: int, frame: FrameType | None) -> None:
        """uvicorn sends itself the signal again when it has stopped; here it has been obeyed by then."""
        self.should_exit = True


class NoBrowserWrites:
    """Refuses changes that a web page asks a browser for: no client of ours sends an Origin."""

    def __init__(self, app: Application) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] == "http"
            and scope["method"] not in ("GET", "HEAD")
            and any(name == b"origin" for name, _ in scope["headers"])
        ):
            refused = Failure(
                403, "Forbidden", "changes are not taken from web pages; use a client of the Hub"
            )
            await refused.response()(scope, receive, send)
            return
        await self.app(scope, receive, send)


def serve(data: Data, tokens: Tokens, *, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight are finished first, within a bound."""
    settings = data.settings
    app = create_app(settings, tokens, Organizations(settings.organizations, settings.repositories))
    listening = bind(host, port)
    config = uvicorn.Config(
        AccessLog(NoBrowserWrites(app)),  # around everything: every answer has an id and a line
        http="h11",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    address = url(host, listening.getsockname()[1])
    server = Server(config, lambda: say(f"serving {address}, data in {settings.root}"))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, server.stop)
    LOG.info("start", extra={"fields": _facts(data, address)})
    with listening:
        asyncio.run(server.serve(sockets=[listening]))
    LOG.info("stop")


def bind(host: str, port: int) -> socket.socket:
    """A socket on this address; 0 is any port that is free."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        raise HostingError(
            f"--host {host} --port {port}: cannot listen there: {error.strerror or error}; "
            "name another port, or 0 for any that is free"
        ) from error
    return found


def url(host: str, port: int) -> str:
    """The address as a client writes it."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _facts(data: Data, address: str) -> dict[str, Any]:
    return {
        "url": address,
        "root": str(data.settings.root),
        "version": __version__,
        "pid": os.getpid(),
        "private": data.settings.private,
        "free_bytes": data.free_bytes,
        "leftovers_removed": data.removed,
    }
