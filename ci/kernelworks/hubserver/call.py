# SPDX-License-Identifier: Apache-2.0
"""One request of a client, and the route that took it: split before it is decoded, answered or refused."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from anyio import CancelScope, CapacityLimiter, to_thread
from starlette.datastructures import Headers, QueryParams
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import Response
from starlette.routing import BaseRoute, Match

from kernelworks.hubserver import logs, names
from kernelworks.hubserver.auth import Caller, Organizations, Tokens
from kernelworks.hubserver.failures import (
    Failure,
    bad_request,
    from_system,
    no_entry,
    no_repository,
    too_large,
)
from kernelworks.hubserver.logs import Receive, Scope, Send
from kernelworks.hubserver.settings import Settings
from kernelworks.hubserver.store import Repository, Store
from kernelworks.hubserver.trees import Listing

LOG = logging.getLogger("kernelworks.hub")
WRITERS = 8  # of changes at a time in one process; others wait, and reads never wait for them
PIECE = 1024 * 1024  # of a body, handed to a thread at a time
DRAIN_SECONDS = 60

T = TypeVar("T")


@dataclass(frozen=True)
class Hub:
    """What every request works with."""

    settings: Settings
    store: Store
    tokens: Tokens
    organizations: Organizations
    writers: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(WRITERS))


class Call:
    """One request: its parts decoded, its caller known, its body read in pieces."""

    def __init__(self, hub: Hub, scope: Scope, receive: Receive, parts: dict[str, str]) -> None:
        self.hub, self.parts = hub, parts
        self.connection = HTTPConnection(scope)
        self.caller: Caller = hub.tokens.caller(self.headers.get("authorization"))
        logs.request_of(scope).caller = self.caller.name
        self._receive = receive
        self._ended = False

    @property
    def headers(self) -> Headers:
        """The headers of the request."""
        return self.connection.headers

    @property
    def query(self) -> QueryParams:
        """What stands behind the question mark."""
        return self.connection.query_params

    @property
    def raw_path(self) -> str:
        """The address as it came."""
        return _raw_path(self.connection.scope).decode("latin-1")

    @cached_property
    def url(self) -> str:
        """How clients reach this server, without a slash at the end."""
        return self.hub.settings.public_url or str(self.connection.base_url).rstrip("/")

    @property
    def repo_id(self) -> str:
        """The repository that the address names."""
        return names.repository(self.parts["org"], self.parts["name"])

    @property
    def author(self) -> str:
        """The name that a commit gets."""
        return self.caller.name or "anyone"

    def repository(self) -> Repository:
        """The repository, when this caller may know of it."""
        repository = self.hub.store.open(self.repo_id)
        hidden = self.hub.settings.private or repository.private
        if hidden and not self.caller.may_read(self.parts["org"]):
            raise no_repository(self.repo_id)
        return repository

    def listing(self) -> Listing:
        """What is in the revision that the address names."""
        repository = self.repository()
        return repository.listing(repository.resolve(self.parts["rev"]))

    def asks(self, question: str) -> bool:
        """Whether a question behind the question mark is answered with yes."""
        return self.query.get(question, "").lower() in ("1", "true")

    def require_write(self, org: str) -> None:
        """Refuse a caller who may not change this organization's repositories."""
        refusal = self.caller.refusal(org)
        if refusal:
            status, sentence = refusal
            raise Failure(status, {401: "Unauthorized"}.get(status, "Forbidden"), sentence)

    async def to_be_written(self) -> str:
        """The id of the repository, when it is here and this caller may change it."""
        self.require_write(self.parts["org"])
        return (await self.thread(self.repository)).id

    async def thread(self, work: Callable[[], T]) -> T:
        """Read files or git without holding up the others."""
        return await to_thread.run_sync(work)

    async def writing(self, work: Callable[[], T]) -> T:
        """Change something, after the changes before it."""
        return await to_thread.run_sync(work, limiter=self.hub.writers)

    @asynccontextmanager
    async def spool(self) -> AsyncIterator[Path]:
        """A folder for what arrives, which is gone afterwards, also when the request is cancelled."""
        upload = self.hub.store.upload()
        folder = await self.thread(upload.__enter__)
        try:
            yield folder
        finally:
            with CancelScope(shield=True):
                await self.thread(lambda: upload.__exit__(None, None, None))

    async def feed(self, take: Callable[[bytes], None]) -> None:
        """Hand the body on as it arrives, in pieces and in a thread."""
        piece = bytearray()
        while not self._ended:
            piece += await self._next()
            if len(piece) >= PIECE or self._ended:
                data = bytes(piece)
                piece.clear()
                await to_thread.run_sync(take, data)

    async def body(self) -> bytes:
        """A small body as a whole."""
        limit, body = self.hub.settings.limits.json_bytes, bytearray()
        while not self._ended:
            body += await self._next()
            if len(body) > limit:
                raise too_large(f"the request is larger than {limit} bytes, which is the limit for it")
        return bytes(body)

    async def json(self) -> dict[str, Any]:
        """A small body that is a JSON object."""
        return self.json_of(await self.body())

    def json_of(self, body: bytes) -> dict[str, Any]:
        """A body that is a JSON object."""
        try:
            document = json.loads(body or b"{}")
        except (ValueError, RecursionError) as error:
            raise bad_request(f"the body is not JSON ({error})") from error
        if not isinstance(document, dict):
            raise bad_request("the body is not a JSON object")
        return document

    async def drain(self) -> None:
        """Read the rest of the body away: a client that is still sending would not see the answer."""
        limit, end, rest = self.hub.settings.limits.commit_bytes, time.monotonic() + DRAIN_SECONDS, 0
        while not self._ended and rest <= limit and time.monotonic() < end:
            rest += len(await self._next())

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        self._ended = not message.get("more_body", False)
        body: bytes = message.get("body", b"")
        return body


Endpoint = Callable[[Call], Awaitable[Response]]


class RawRoute(BaseRoute):
    """A route over the parts of the address as they came: `refs%2Fpr%2F1` is one part, `%2e%2e` no way up.

    In a pattern `{x}` is one part, `{x*}` all that follow, and `{x}.git` a part that ends so.
    """

    def __init__(self, hub: Hub, methods: str, pattern: str, endpoint: Endpoint) -> None:
        self.hub, self.methods, self.endpoint = hub, frozenset(methods.split()), endpoint
        self.pattern = pattern.strip("/").split("/")
        if "GET" in self.methods:
            self.methods |= {"HEAD"}

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether the address is of this form."""
        if scope["type"] != "http":
            return Match.NONE, {}
        parts = self._parts(_raw_path(scope).split(b"/")[1:])
        if parts is None:
            return Match.NONE, {}
        match = Match.FULL if scope["method"] in self.methods else Match.PARTIAL
        return match, {"raw_parts": parts}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or say why not."""
        call = Call(self.hub, scope, receive, {})
        try:
            response = await self._answer(call, scope)
        except ClientDisconnect:
            return
        except Failure as failure:
            with suppress(ClientDisconnect):
                await call.drain()
            if failure.status >= 500:
                LOG.error("%s", failure, extra={"fields": {"id": logs.request_of(scope).id}})
            response = failure.response()
        await response(scope, receive, send)

    async def _answer(self, call: Call, scope: Scope) -> Response:
        try:
            if scope["method"] not in self.methods:
                allowed = {"Allow": ", ".join(sorted(self.methods))}
                raise Failure(405, "MethodNotAllowed", f"{scope['method']} is not offered here", allowed)
            call.parts.update({name: _decoded(part) for name, part in scope["raw_parts"].items()})
            return await self.endpoint(call)
        except Exception as error:
            failure = from_system(error, self.hub.settings.root)
            if failure is None:
                raise
            raise failure from error

    def _parts(self, path: list[bytes]) -> dict[str, bytes] | None:
        found: dict[str, bytes] = {}
        for number, form in enumerate(self.pattern):
            if form.endswith("*}"):
                found[form[1:-2]] = b"/".join(path[number:])
                return found if path[number:] else None
            if number >= len(path):
                return None
            name, _, end = form.partition("}")
            part = path[number]
            if not name.startswith("{"):
                if part.decode("latin-1") != form:
                    return None
            elif not part or not part.endswith(end.encode()):
                return None
            else:
                found[name[1:]] = part.removesuffix(end.encode())
        return found if len(path) == len(self.pattern) else None


def _raw_path(scope: Scope) -> bytes:
    """The path as it came, below the prefix that a reverse proxy may have put in front."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.partition(b"?")[0].removeprefix(scope.get("root_path", "").encode())


def _decoded(part: bytes) -> str:
    try:
        return unquote(part.decode("ascii"), errors="strict")
    except UnicodeDecodeError as error:
        raise bad_request("the address is not valid UTF-8") from error


async def nothing_here(call: Call) -> Response:
    """Whatever else is asked for below the addresses of clients."""
    raise no_entry(call.parts["rest"], "this Hub, which does not know that address")
