# SPDX-License-Identifier: Apache-2.0
"""Large files sent beside the commit, for clients that ask for it: whole, or in numbered parts."""

from __future__ import annotations

import hashlib
import hmac
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from starlette.responses import JSONResponse, Response

from kernelworks.hubserver import names, objects
from kernelworks.hubserver.call import Call
from kernelworks.hubserver.failures import Failure, bad_request, not_offered, too_large
from kernelworks.hubserver.objects import Pointer
from kernelworks.hubserver.store import Store

PART = 16 * 1024 * 1024
VALID_SECONDS = 6 * 3600
OBJECTS = 1000  # of one batch
MEDIA_TYPE = "application/vnd.git-lfs+json"


async def batch(call: Call) -> Response:
    """Where to send each object, or nothing where it is here already."""
    repo_id = await call.to_be_written()
    body = await call.json()
    asked, transfers = body.get("objects"), body.get("transfers") or ["basic"]
    if body.get("operation") != "upload":
        raise not_offered("downloads by git-lfs; files are at /kernels/ORG/NAME/resolve/REVISION/PATH")
    if body.get("hash_algo", "sha256") != "sha256" or not isinstance(asked, list) or len(asked) > OBJECTS:
        raise bad_request(f"objects: wanted a list of at most {OBJECTS}, by sha256")
    if not isinstance(transfers, list):
        raise bad_request("transfers: wanted a list")
    pointers = [Pointer(_sha256(each), _size(each)) for each in asked]
    multipart = "multipart" in transfers and any(each.size > PART for each in pointers)
    store = call.hub.store
    have = await call.thread(lambda: [store.open(repo_id).objects.intact(each) for each in pointers])
    answers = [
        _answer(call, repo_id, each, is_here=is_here, multipart=multipart)
        for each, is_here in zip(pointers, have, strict=True)
    ]
    transfer = "multipart" if multipart else "basic"
    return JSONResponse({"transfer": transfer, "objects": answers}, media_type=MEDIA_TYPE)


async def upload(call: Call) -> Response:
    """An object, or one part of it, at a signed address."""
    repo_id, sha256, size = _signed(call)
    part = int(call.query.get("part", "0"))
    expected = size if not part else min(PART, size - (part - 1) * PART)
    async with call.spool() as folder:
        received = folder / "received"
        with received.open("wb") as file:
            await call.feed(partial(_append, file, expected))
        found = received.stat().st_size
        if found != expected:
            raise bad_request(
                f"object {sha256}: {found} bytes came and {expected} were announced; send it again"
            )
        if part:
            parts = _parts(call.hub.store, repo_id, sha256)
            etag = await call.writing(partial(_keep_part, received, parts / f"{part:05}"))
        else:
            await call.writing(partial(_take, call.hub.store, repo_id, received, sha256))
            etag = sha256
    return Response(headers={"ETag": f'"{etag}"'})


async def complete(call: Call) -> Response:
    """The parts of an object are all there: put them together."""
    repo_id, sha256, size = _signed(call)
    await call.body()
    async with call.spool() as folder:
        await call.writing(partial(_join, call.hub.store, repo_id, Pointer(sha256, size), folder))
    return JSONResponse({})


async def verify(call: Call) -> Response:
    """Whether an object arrived."""
    repo_id = await call.to_be_written()
    asked = await call.json()
    sha256, size = _sha256(asked), _size(asked)
    found = await call.thread(lambda: call.hub.store.open(repo_id).objects.size(sha256))
    if found != size:
        raise Failure(404, "NotFound", f"object {sha256}: is not here in this size; send it again")
    return JSONResponse({})


def _answer(call: Call, repo_id: str, asked: Pointer, *, is_here: bool, multipart: bool) -> dict[str, Any]:
    sha256, size = asked.sha256, asked.size
    answer: dict[str, Any] = {"oid": sha256, "size": size}
    limit = call.hub.settings.limits.file_bytes
    if size > limit:
        message = f"the file is larger than {limit} bytes, which is the limit here"
        return {**answer, "error": {"code": 413, "message": message}}
    if is_here:
        return answer
    address = f"{call.url}/lfs/{repo_id}/{sha256}"
    target: dict[str, Any] = {"href": f"{address}?{_signature(call, repo_id, sha256, size)}"}
    if multipart:
        # The transfer is one for the whole batch, so small objects come as a single part.
        count = max(-(-size // PART), 1)
        addresses = {
            f"{number:05}": f"{address}?{_signature(call, repo_id, sha256, size, part=number)}"
            for number in range(1, count + 1)
        }
        target["header"] = {"chunk_size": str(PART), **addresses}
    check = f"{call.url}/kernels/{repo_id}.git/info/lfs/verify"
    return {**answer, "actions": {"upload": target, "verify": {"href": check}}}


def _signature(call: Call, repo_id: str, sha256: str, size: int, part: int = 0) -> str:
    until = int(time.time()) + VALID_SECONDS
    seal = _seal(call, repo_id, sha256, size, part, until)
    return f"size={size}&part={part}&until={until}&seal={seal}"


def _signed(call: Call) -> tuple[str, str, int]:
    """The object that an address is for: the address is the permission, so it must be one that we gave."""
    repo_id, sha256, query = call.repo_id, call.parts["sha256"], call.query
    numbers = [query.get(key, "") for key in ("size", "part", "until")]
    if not all(each.isascii() and each.isdigit() and len(each) < 16 for each in numbers):
        raise Failure(403, "Forbidden", "upload: this address was not given by this Hub")
    size, part, until = map(int, numbers)
    seal = _seal(call, repo_id, sha256, size, part, until)
    if not hmac.compare_digest(seal.encode(), query.get("seal", "").encode()):
        raise Failure(403, "Forbidden", "upload: this address was not given by this Hub")
    if until < time.time():
        raise Failure(403, "Forbidden", "upload: this address has expired; begin the upload again")
    return repo_id, sha256, size


def _seal(call: Call, repo_id: str, sha256: str, size: int, part: int, until: int) -> str:
    text = f"{repo_id}\n{sha256}\n{size}\n{part}\n{until}"
    return hmac.new(call.hub.settings.secret, text.encode(), hashlib.sha256).hexdigest()


def _append(file: BinaryIO, limit: int, data: bytes) -> None:
    if file.tell() + len(data) > limit:
        raise too_large(f"the upload has more than the {limit} bytes that were announced")
    file.write(data)


def _take(store: Store, repo_id: str, received: Path, sha256: str) -> None:
    """Make a file an object of the repository, when it is what its name says."""
    if objects.sha256_of(received) != sha256:
        raise bad_request(f"object {sha256}: the bytes that came have another sha256; send it again")
    git_oid = objects.git_oid_of(received)
    with store.locked(repo_id):
        store.open(repo_id).objects.add(received, sha256, git_oid)


def _parts(store: Store, repo_id: str, sha256: str) -> Path:
    """Where the parts of an object wait for each other: separate requests, maybe of separate processes."""
    return store.settings.spool / f"parts-{repo_id.replace('/', '--')}-{sha256}"


def _keep_part(received: Path, target: Path) -> str:
    target.parent.mkdir(exist_ok=True)
    etag = objects.sha256_of(received)
    received.replace(target)
    return etag


def _join(store: Store, repo_id: str, wanted: Pointer, folder: Path) -> None:
    if store.open(repo_id).objects.intact(wanted):
        return  # it was joined before, and the answer got lost
    sha256 = wanted.sha256
    parts = _parts(store, repo_id, sha256)
    whole = folder / "whole"
    with whole.open("wb") as target:
        for number in range(1, -(-wanted.size // PART) + 1):
            try:
                with (parts / f"{number:05}").open("rb") as source:
                    shutil.copyfileobj(source, target, objects.CHUNK)
            except FileNotFoundError as error:
                raise bad_request(f"object {sha256}: part {number} did not come; send it again") from error
    _take(store, repo_id, whole, sha256)
    shutil.rmtree(parts, ignore_errors=True)


def _sha256(asked: Any) -> str:
    found = asked.get("oid") if isinstance(asked, dict) else None
    if not isinstance(found, str) or not names.SHA256.fullmatch(found):
        raise bad_request("object: wanted a sha256 of 64 digits in `oid`")
    return found


def _size(asked: Any) -> int:
    found = asked.get("size") if isinstance(asked, dict) else None
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < 10**15:
        raise bad_request("object: wanted its size in bytes")
    return found
