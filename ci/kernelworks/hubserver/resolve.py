# SPDX-License-Identifier: Apache-2.0
"""Files to download: HEAD and GET with the headers that clients keep, and parts of files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

from starlette.responses import Response, StreamingResponse

from kernelworks.hubserver import names
from kernelworks.hubserver.call import Call
from kernelworks.hubserver.failures import Failure
from kernelworks.hubserver.store import Repository
from kernelworks.hubserver.trees import Entry

CHUNK = 256 * 1024
MEDIA_TYPE = "application/octet-stream"
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


async def resolve(call: Call) -> Response:
    """A file of a revision, whole or in part, without a redirect."""
    repository, commit, entry = await call.thread(lambda: _found(call))
    headers = {
        "X-Repo-Commit": commit,
        "ETag": f'"{entry.etag}"',
        "Accept-Ranges": "bytes",
        "Content-Disposition": "attachment",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "X-Content-Type-Options": "nosniff",
        # What a branch names changes; what a commit holds does not.
        "Cache-Control": "private, no-cache",
    }
    if headers["ETag"] in call.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    part = _part(call, entry.size, headers["ETag"])
    if part is not None:
        headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{entry.size}"
    status = 200 if part is None else 206
    wanted = range(entry.size) if part is None else part
    headers["Content-Length"] = str(len(wanted))
    if call.connection.scope["method"] == "HEAD":
        # The bytes are looked at when they are asked for: a client that has them needs no more than this.
        return Response(status_code=status, headers=headers, media_type=MEDIA_TYPE)
    stream = await call.thread(lambda: repository.open(entry))
    return StreamingResponse(_pieces(stream, wanted), status, headers, media_type=MEDIA_TYPE)


def _found(call: Call) -> tuple[Repository, str, Entry]:
    repository = call.repository()
    commit = repository.resolve(call.parts["rev"])
    return repository, commit, repository.entry(commit, names.path(call.parts["path"]))


def _part(call: Call, size: int, etag: str) -> range | None:
    """The bytes that were asked for, or None for all: also when the file is not the one asked about."""
    asked = _RANGE.fullmatch(call.headers.get("range", "").strip())
    if asked is None or asked.group() == "bytes=-" or call.headers.get("if-range", etag) != etag:
        return None
    first, last = asked.groups()
    if first:
        part = range(int(first), min(int(last) + 1 if last else size, size))
        if last and int(last) < int(first):
            return None
    else:
        part = range(max(size - int(last), 0), size)
    if not part:
        raise Failure(
            416,
            "RangeNotSatisfiable",
            f"the file has {size} bytes, and none of {asked.group()}",
            {"Content-Range": f"bytes */{size}"},
        )
    return part


def _pieces(stream: BinaryIO, wanted: range) -> Iterator[bytes]:
    """The bytes, a piece at a time; a file that ends early ends the connection, not the promise."""
    with stream:
        stream.seek(wanted.start)
        rest = len(wanted)
        while rest:
            piece = stream.read(min(CHUNK, rest))
            if not piece:
                raise OSError(f"{rest} bytes of a stored file are missing")
            rest -= len(piece)
            yield piece
