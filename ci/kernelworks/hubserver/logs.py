# SPDX-License-Identifier: Apache-2.0
"""What a server writes down: a line of JSON for each request and each commit, and never a secret."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

ACCESS = logging.getLogger("kernelworks.hub.access")
AGENT_LENGTH = 300
_KEY = "kernelworks"


@dataclass
class Request:
    """What is known about one request while it is answered."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    caller: str | None = None
    status: int | None = None  # None for a client that went away before there was an answer
    received: int = 0
    sent: int = 0
    complete: bool = False
    error: str | None = None  # of a mistake in this program, which uvicorn logs in full


def request_of(scope: Scope) -> Request:
    """The record of a request, for whoever learns more about it (the application learns the caller)."""
    found = scope.setdefault(_KEY, Request())
    assert isinstance(found, Request)
    return found


class AccessLog:
    """Middleware around everything: gives a request its id, and logs it however it ended."""

    def __init__(self, app: Application) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _KEY in scope:  # further out, another one has it in hand
            await self.app(scope, receive, send)
            return
        request, began = request_of(scope), time.perf_counter()

        async def counting_receive() -> MutableMapping[str, Any]:
            message = await receive()
            request.received += len(message.get("body", b""))
            return message

        async def counting_send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                request.status = message["status"]
                message["headers"] = _with_id(message.get("headers", ()), request.id)
            await send(message)
            request.sent += len(message.get("body", b""))
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                request.complete = True

        try:
            await self.app(scope, counting_receive, counting_send)
        except Exception as error:
            request.error = type(error).__name__
            raise
        finally:
            ACCESS.info("request", extra={"fields": _fields(scope, request, time.perf_counter() - began)})


def _with_id(headers: Any, request_id: str) -> list[tuple[bytes, bytes]]:
    kept = [(name, value) for name, value in headers if name.lower() != b"x-request-id"]
    return [*kept, (b"x-request-id", request_id.encode())]


def _fields(scope: Scope, request: Request, seconds: float) -> dict[str, Any]:
    """No header but the client's name, and no query: both can hold what opens doors."""
    agents = [value for name, value in scope["headers"] if name == b"user-agent"]
    path = scope.get("raw_path") or scope["path"].encode()
    return {
        "id": request.id,
        "method": scope["method"],
        "path": path.decode("ascii", "backslashreplace").partition("?")[0],
        "status": request.status,
        "bytes": request.sent,
        "received": request.received,
        "ms": round(seconds * 1000, 1),
        "caller": request.caller,
        "client": (scope.get("client") or (None,))[0],
        "agent": agents[0].decode("latin-1")[:AGENT_LENGTH] if agents else None,
        **({} if request.complete else {"complete": False}),
        **({"error": request.error} if request.error else {}),
    }


class JsonLines(logging.Formatter):
    """One line of JSON for each record; line breaks and quotes in what strangers send stay inside it."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": now(), "event": record.getMessage(), "level": record.levelname.lower()}
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up(file: Path | None) -> None:
    """Send the lines of this program and the warnings of uvicorn to a file, or to stderr."""
    # A file that was moved away by a log rotation is opened anew.
    handler = logging.StreamHandler(sys.stderr) if file is None else WatchedFileHandler(file)
    handler.setFormatter(JsonLines())
    for name, level in (("kernelworks.hub", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False


def append_commit(
    file: Path, *, caller: str | None, repo: str, branch: str, before: str | None, commit: str | None
) -> None:
    """Add a line to the log of commits (`commit` is None when the branch went away): safe over processes."""
    line = {"time": now(), "caller": caller, "repo": repo, "branch": branch}
    text = json.dumps({**line, "before": before, "commit": commit}) + "\n"
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def now() -> str:
    """The time as every line has it."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
