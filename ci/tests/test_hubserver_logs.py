# SPDX-License-Identifier: Apache-2.0
"""Lines of JSON: one for each request, whatever happens to it, and one for each commit."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kernelworks.hubserver import logs
from kernelworks.hubserver.logs import AccessLog, Application, Receive, Scope, Send

Message = MutableMapping[str, Any]


@pytest.fixture
def lines(tmp_path: Path) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """What has been logged to a file so far."""
    file = tmp_path / "log"
    loggers = [logging.getLogger(name) for name in ("kernelworks.hub", "uvicorn")]
    before = [(logger.handlers, logger.level, logger.propagate) for logger in loggers]
    logs.set_up(file)
    yield lambda: [json.loads(line) for line in file.read_text().splitlines()]
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def request(app: Application, path: bytes = b"/a", query: bytes = b"") -> list[Message]:
    """What an application answers."""
    scope = {
        "type": "http",
        "method": "GET",
        "path": path.decode("latin-1"),
        "raw_path": path,
        "query_string": query,
        "headers": [(b"user-agent", b'a"b\nc\xff'), (b"authorization", b"Bearer kw_hidden")],
        "client": ("127.0.0.1", 1),
    }
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"1234", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(_call(app, scope, receive, send))
    return sent


async def _call(app: Application, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)


def answer(status: int = 200, *, ends: bool = True) -> Application:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        logs.request_of(scope).caller = "ci"
        await receive()
        headers = [(b"x-request-id", b"forged")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"12345", "more_body": not ends})

    return app


def test_a_line_says_what_was_answered(lines: Callable[[], list[dict[str, Any]]]) -> None:
    start, _ = request(AccessLog(answer(206)), b"/a%2Fb", b"signature=hidden")
    (line,) = lines()
    assert start["headers"] == [(b"x-request-id", line["id"].encode())], "the id in the log is the client's"
    assert (line["status"], line["bytes"], line["received"], line["caller"]) == (206, 5, 4, "ci")
    assert line["path"] == "/a%2Fb"
    assert "complete" not in line
    assert "hidden" not in json.dumps(line)


def test_what_strangers_send_stays_on_its_line(lines: Callable[[], list[dict[str, Any]]]) -> None:
    request(AccessLog(answer()), b'/"\n{"event": "request"}\xff')
    (line,) = lines()
    assert line["path"] == '/"\n{"event": "request"}\\xff'


def test_an_answer_that_was_cut_is_not_complete(lines: Callable[[], list[dict[str, Any]]]) -> None:
    request(AccessLog(answer(ends=False)))
    assert lines()[0]["complete"] is False


def test_a_mistake_is_logged_with_its_request(lines: Callable[[], list[dict[str, Any]]]) -> None:
    async def wrong(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        request(AccessLog(wrong))
    (line,) = lines()
    assert (line["status"], line["error"]) == (None, "ZeroDivisionError")


def test_one_request_is_one_line_however_often_it_is_wrapped(
    lines: Callable[[], list[dict[str, Any]]],
) -> None:
    request(AccessLog(AccessLog(answer())))
    assert len(lines()) == 1


def test_other_scopes_pass(lines: Callable[[], list[dict[str, Any]]]) -> None:
    seen = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    call: Awaitable[None] = AccessLog(app)({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    asyncio.run(_await(call))
    assert seen == ["lifespan"]
    assert lines() == []


async def _await(call: Awaitable[None]) -> None:
    await call


def test_commits_of_several_writers_are_whole_lines(tmp_path: Path) -> None:
    file = tmp_path / "commits.log"

    def append(number: int) -> None:
        logs.append_commit(
            file, caller="c" * 200, repo="o/n", branch="v1", before=None, commit=f"{number:040}"
        )

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(append, range(200)))
    found = [json.loads(line)["commit"] for line in file.read_text().splitlines()]
    assert sorted(found) == [f"{number:040}" for number in range(200)]


def test_a_rotated_file_is_opened_anew(tmp_path: Path, lines: Callable[[], list[dict[str, Any]]]) -> None:
    request(AccessLog(answer()))
    (tmp_path / "log").rename(tmp_path / "log.1")
    request(AccessLog(answer()))
    assert len(lines()) == 1
