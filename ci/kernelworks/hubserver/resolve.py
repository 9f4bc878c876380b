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
from kernelworks.hubserver.store import File

CHUNK = 256 * 1024
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


async def resolve(call: Call) -> Response:
    """A file of a revision, whole or in part, without a redirect."""
    commit, file = await call.thread(lambda: _found(call))
    etag = f'"{file.etag}"'
    headers = {
        "X-Repo-Commit": commit,
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Content-Disposition": "attachment",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "X-Content-Type-Options": "nosniff",
        # What a branch names changes; what a commit holds does not.
        "Cache-Control": "private, no-cache",
    }
    if etag in call.headers.get("if-none-match", ""):
        file.stream.close()
        return Response(status_code=304, headers=headers)
    try:
        part = _part(call, file.entry.size, etag)
    except Failure:
        file.stream.close()
        raise
    if part is None:
        start, length, status = 0, file.entry.size, 200
    else:
        start, length, status = part.start, len(part), 206
        headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{file.entry.size}"
    headers["Content-Length"] = str(length)
    if call.connection.scope["method"] == "HEAD":
        file.stream.close()
        return Response(status_code=status, headers=headers, media_type="application/octet-stream")
    pieces = _pieces(file.stream, start, length)
    return StreamingResponse(pieces, status, headers, media_type="application/octet-stream")


def _found(call: Call) -> tuple[str, File]:
    repository = call.repository()
    commit = repository.resolve(call.parts["rev"])
    return commit, repository.file(commit, names.path(call.parts["path"]))


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


def _pieces(stream: BinaryIO, start: int, length: int) -> Iterator[bytes]:
    """The bytes, a piece at a time; a file that ends early ends the connection, not the promise."""
    with stream:
        stream.seek(start)
        while length:
            piece = stream.read(min(CHUNK, length))
            if not piece:
                raise OSError(f"{length} bytes of a stored file are missing")
            length -= len(piece)
            yield piece
