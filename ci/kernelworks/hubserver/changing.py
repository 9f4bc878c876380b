# SPDX-License-Identifier: Apache-2.0
"""How clients change repositories: each request is a whole change, or none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from starlette.responses import JSONResponse, Response

from kernelworks.hubserver import committing, logs, names, references
from kernelworks.hubserver.call import Call
from kernelworks.hubserver.commit_body import Reader
from kernelworks.hubserver.failures import Failure, bad_request, too_large
from kernelworks.hubserver.references import Outcome

LOG = logging.getLogger("kernelworks.hub")


async def create_repository(call: Call) -> Response:
    """A new repository; only kernels live here."""
    body = await call.json()
    repo_id = _named(call, body, names.new_repository)
    visibility = body.get("visibility")
    if visibility not in (None, "public", "private"):
        raise bad_request(f"visibility {visibility!r}: wanted public or private")
    private = body.get("private") is True if visibility is None else visibility == "private"
    answer = {"url": f"{call.url}/kernels/{repo_id}", "name": repo_id, "id": repo_id}
    try:
        work = partial(call.hub.store.create, repo_id, private=private, author=call.author)
        made = await call.writing(work)
    except Failure as failure:
        if failure.status != 409:
            raise
        # With exist_ok the client goes on, and takes the address from here.
        return failure.response(**answer)
    main = f"refs/heads/{names.DEFAULT_BRANCH}"
    _log(call, repo_id, Outcome(main, None, made.resolve(main)))
    return JSONResponse(answer)


async def delete_repository(call: Call) -> Response:
    """A repository with all that it holds."""
    repo_id = _named(call, await call.json(), names.repository)
    await call.writing(partial(call.hub.store.delete, repo_id))
    _log(call, repo_id, Outcome("*", "*", "*"), gone=True)
    return JSONResponse({})


async def create_branch(call: Call) -> Response:
    """A branch at a revision."""
    repo_id = await call.to_be_written()
    starting_point = (await call.json()).get("startingPoint")
    if starting_point is not None and not isinstance(starting_point, str):
        raise bad_request(f"startingPoint {starting_point!r}: wanted a branch, a tag or a commit")
    branch, store = call.parts["branch"], call.hub.store
    made = await call.writing(partial(references.create_branch, store, repo_id, branch, starting_point))
    _log(call, repo_id, made)
    return JSONResponse({})


async def delete_branch(call: Call) -> Response:
    """A branch, not its commits."""
    return await _delete_ref(call, f"refs/heads/{names.branch(call.parts['branch'])}")


async def create_tag(call: Call) -> Response:
    """A tag at a revision."""
    repo_id = await call.to_be_written()
    body = await call.json()
    tag, message = names.tag(body.get("tag")), names.message(body.get("message") or "", "message")
    store, revision = call.hub.store, call.parts["rev"]
    work = partial(references.create_tag, store, repo_id, tag, revision, message, call.author)
    _log(call, repo_id, await call.writing(work))
    return JSONResponse({})


async def delete_tag(call: Call) -> Response:
    """A tag, not its commit."""
    return await _delete_ref(call, f"refs/tags/{names.tag(call.parts['tag'])}")


async def validate_yaml(call: Call) -> Response:
    """A card is shown as it is: nothing in it can be wrong for this server."""
    await call.body()
    return JSONResponse({"errors": [], "warnings": []})


async def preupload(call: Call) -> Response:
    """How each file is to be sent: always inside the commit, which every client can do."""
    await call.to_be_written()
    asked = (await call.json()).get("files")
    if not isinstance(asked, list) or not all(isinstance(each, dict) for each in asked):
        raise bad_request("files: wanted a list of objects with a path each")
    paths = [names.path(each.get("path")) for each in asked]
    known = await call.thread(lambda: _known(call, paths))
    return JSONResponse(
        {
            "files": [
                {"path": path, "uploadMode": "regular", "shouldIgnore": False, **known.get(path, {})}
                for path in paths
            ]
        }
    )


async def commit(call: Call) -> Response:
    """Files added, replaced and deleted in one step."""
    repo_id = await call.to_be_written()
    limits, revision = call.hub.settings.limits, call.parts["rev"]
    if int(call.headers.get("content-length") or 0) > limits.commit_bytes:
        raise too_large(f"the commit is larger than {limits.commit_bytes} bytes, which is the limit here")
    pull_request = call.asks("create_pr")
    async with call.spool() as folder:
        reader = Reader(folder, limits)
        try:
            await call.feed(reader.feed)
            change = await call.thread(reader.close)
        finally:
            reader.abandon()
        work = partial(
            committing.commit,
            call.hub.store,
            repo_id,
            revision,
            change,
            author=call.author,
            pull_request=pull_request,
            folder=folder,
        )
        made = await call.writing(work)
    if made.moved:
        _log(call, repo_id, made)
    page = f"{call.url}/kernels/{repo_id}"
    answer = {"success": True, "commitOid": made.commit, "commitUrl": f"{page}/commit/{made.commit}"}
    if pull_request:
        answer["pullRequestUrl"] = f"{page}/discussions/{made.ref.rpartition('/')[2]}"
    return JSONResponse(answer)


def _known(call: Call, paths: Sequence[str]) -> dict[str, dict[str, str]]:
    """The ids of files that are there: a client leaves out what has not changed, unless it was damaged."""
    listing, repository = call.listing(), call.repository()
    entries = [listing.entries[path] for path in paths if path in listing.entries]
    return {
        entry.path: {"oid": entry.oid}
        for entry in entries
        if not entry.is_folder and repository.intact(entry)
    }


def _named(call: Call, body: dict[str, Any], check: Callable[[str, str], str]) -> str:
    """The repository that a body names, when the caller may change its organization's."""
    name, org = body.get("name"), body.get("organization")
    if org is None and isinstance(name, str) and "/" in name:
        org, _, name = name.partition("/")
    if not isinstance(name, str) or not isinstance(org, str):
        raise bad_request(f"repository {name!r}: wanted ORG/NAME; repositories here belong to organizations")
    kind = body.get("type") or "model"
    if kind != "kernel":
        raise bad_request(f"type {kind}: only kernels live here; ask with repo_type='kernel'")
    repo_id = check(org, name)
    call.require_write(org)
    return repo_id


async def _delete_ref(call: Call, ref: str) -> Response:
    repo_id = await call.to_be_written()
    made = await call.writing(partial(references.delete_ref, call.hub.store, repo_id, ref))
    _log(call, repo_id, made, gone=True)
    return JSONResponse({})


def _log(call: Call, repo_id: str, made: Outcome, *, gone: bool = False) -> None:
    """One line for whoever asks later who moved what; the move is done, whether or not it can be written."""
    try:
        logs.append_commit(
            call.hub.settings.commit_log,
            caller=call.caller.name,
            repo=repo_id,
            branch=made.ref,
            before=made.before,
            commit=None if gone else made.commit,
        )
    except OSError as error:
        LOG.error("the log of commits cannot be written: %s", error)
