# SPDX-License-Identifier: Apache-2.0
"""What clients ask about repositories, and how they change them; docs/hub.md has the table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import parse_qs, quote, urlencode

from starlette.responses import JSONResponse, Response

from kernelworks.hubserver import logs, names, writing
from kernelworks.hubserver.call import Call
from kernelworks.hubserver.commit_body import Reader
from kernelworks.hubserver.failures import Failure, bad_request, not_offered, too_large
from kernelworks.hubserver.store import Commit, Ref
from kernelworks.hubserver.writing import Outcome

COMMITS_PAGE = 100
PATHS = 1000

T = TypeVar("T")


async def whoami(call: Call) -> Response:
    """The caller's own name and rights."""
    caller = call.caller
    if not caller.known or caller.expired:
        why = f"token expired: {caller.name}" if caller.expired else "no token of this Hub was sent"
        raise Failure(401, "Unauthorized", f"{why}; set HF_TOKEN to a token of this Hub")
    role = "write" if caller.write else "read"
    return JSONResponse(
        {
            "type": "user",
            "id": caller.name,
            "name": caller.name,
            "fullname": caller.name,
            "isPro": False,
            "orgs": [{"type": "org", "name": org, "fullname": org, "roleInOrg": role} for org in caller.orgs],
            "auth": {
                "type": "access_token",
                "accessToken": {"displayName": caller.name, "role": role},
            },
        }
    )


async def organization(call: Call) -> Response:
    """Whether the operator trusts an organization: every load asks, unless told to trust."""
    org = call.parts["org"]
    names.repository(org, "any")
    if not await call.thread(lambda: call.hub.organizations.exists(org)):
        raise Failure(404, "NotFound", f"organization {org} is not here; check the name")
    trusted = call.hub.organizations.trusted(org)
    return JSONResponse({"name": org, "fullname": org, "avatarUrl": "", "trustedKernelPublisher": trusted})


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


async def information(call: Call) -> Response:
    """A repository at a revision."""
    return JSONResponse(await call.thread(lambda: _information(call)))


async def refs(call: Call) -> Response:
    """Branches and tags, and pull requests when asked for."""
    found = await call.thread(lambda: call.repository().refs())
    answer = {
        "branches": _refs(found, "refs/heads/"),
        "converts": [],
        "tags": _refs(found, "refs/tags/"),
    }
    if _true(call.query.get("include_prs")):
        answer["pullRequests"] = _refs(found, "refs/pr/")
    return JSONResponse(answer)


async def tree(call: Call) -> Response:
    """The entries of a folder, in pages."""
    path = names.path(call.parts["path"]) if "path" in call.parts else ""
    recursive = _true(call.query.get("recursive"))
    entries = await call.thread(lambda: call.repository().tree(call.parts["rev"], path, recursive))
    start, size = _page(call, call.hub.settings.limits.page_entries)
    following = start + size if start + size < len(entries) else None
    return _paged(call, [entry.as_json() for entry in entries[start : start + size]], following)


async def paths_info(call: Call) -> Response:
    """The entries of some paths; those that are not there are left out."""
    body = await call.body()
    if "json" in call.headers.get("content-type", ""):
        asked = call.json_of(body).get("paths")
    else:
        asked = parse_qs(body.decode("utf-8", "replace"), max_num_fields=PATHS + 10).get("paths", [])
    if not isinstance(asked, list) or len(asked) > PATHS:
        raise too_large(f"paths: wanted a list of at most {PATHS}")
    paths = [names.path(path) for path in asked]
    listing = await call.thread(lambda: _listing(call))
    return JSONResponse([listing.entries[path].as_json() for path in paths if path in listing.entries])


async def commits(call: Call) -> Response:
    """The history of a revision, newest first, in pages."""
    start, size = _page(call, COMMITS_PAGE)

    def page() -> list[Commit]:
        return list(islice(call.repository().commits(call.parts["rev"]), start, start + size + 1))

    found = await call.thread(page)
    return _paged(call, [_commit(each) for each in found[:size]], start + size if len(found) > size else None)


async def create_branch(call: Call) -> Response:
    """A branch at a revision."""
    repo_id = await call.to_be_written()
    starting_point = (await call.json()).get("startingPoint")
    if starting_point is not None and not isinstance(starting_point, str):
        raise bad_request(f"startingPoint {starting_point!r}: wanted a branch, a tag or a commit")
    branch, store = call.parts["branch"], call.hub.store
    made = await call.writing(partial(writing.create_branch, store, repo_id, branch, starting_point))
    _log(call, repo_id, made)
    return JSONResponse({})


async def delete_branch(call: Call) -> Response:
    """A branch, not its commits."""
    return await _delete_ref(call, f"refs/heads/{call.parts['branch']}")


async def create_tag(call: Call) -> Response:
    """A tag at a revision."""
    repo_id = await call.to_be_written()
    body = await call.json()
    tag, message = names.tag(body.get("tag")), body.get("message") or ""
    if not isinstance(message, str):
        raise bad_request(f"message {message!r}: wanted a text")
    store, revision = call.hub.store, call.parts["rev"]
    work = partial(writing.create_tag, store, repo_id, tag, revision, message, call.author)
    _log(call, repo_id, await call.writing(work))
    return JSONResponse({})


async def delete_tag(call: Call) -> Response:
    """A tag, not its commit."""
    return await _delete_ref(call, f"refs/tags/{call.parts['tag']}")


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
    listing = await call.thread(lambda: _listing(call))
    answer = []
    for path in paths:
        entry = listing.entries.get(path)
        # With the id of what is there, a client leaves out what has not changed.
        known = {"oid": entry.oid} if entry and not entry.is_folder else {}
        answer.append({"path": path, "uploadMode": "regular", "shouldIgnore": False, **known})
    return JSONResponse({"files": answer})


async def commit(call: Call) -> Response:
    """Files added, replaced and deleted in one step."""
    repo_id = await call.to_be_written()
    limits, revision = call.hub.settings.limits, call.parts["rev"]
    if int(call.headers.get("content-length") or 0) > limits.commit_bytes:
        raise too_large(f"the commit is larger than {limits.commit_bytes} bytes, which is the limit here")
    pull_request = _true(call.query.get("create_pr"))
    async with call.spool() as folder:
        reader = Reader(folder, limits)
        try:
            await call.feed(reader.feed)
            change = await call.thread(reader.close)
        finally:
            reader.abandon()
        work = partial(
            writing.commit,
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


async def harnesses(call: Call) -> Response:
    """A question of huggingface_hub about agents; the answer is kept for a day, an error is not."""
    return JSONResponse({"standardEnvVars": [], "harnesses": {}})


async def nowhere(call: Call) -> Response:
    """Parts of huggingface.co's protocol that are known, and not offered."""
    raise not_offered(f"{call.connection.url.path}; docs/hub.md lists what there is")


def _named(call: Call, body: dict[str, Any], check: Any) -> str:
    """The repository that a body names, when the caller may change its organization's."""
    name, org = body.get("name"), body.get("organization")
    if org is None and isinstance(name, str) and "/" in name:
        org, _, name = name.partition("/")
    if not isinstance(name, str) or not isinstance(org, str):
        raise bad_request(f"repository {name!r}: wanted ORG/NAME; repositories here belong to organizations")
    kind = body.get("type") or "model"
    if kind != "kernel":
        raise bad_request(f"type {kind}: only kernels live here; ask with repo_type='kernel'")
    repo_id: str = check(org, name)
    call.require_write(org)
    return repo_id


async def _delete_ref(call: Call, ref: str) -> Response:
    repo_id = await call.to_be_written()
    made = await call.writing(partial(writing.delete_ref, call.hub.store, repo_id, ref))
    _log(call, repo_id, made, gone=True)
    return JSONResponse({})


def _information(call: Call) -> dict[str, Any]:
    repository = call.repository()
    commit = repository.commit(repository.resolve(call.parts.get("rev", names.DEFAULT_BRANCH)))
    return {
        "id": repository.id,
        "author": call.parts["org"],
        "sha": commit.id,
        "lastModified": _date(commit),
        "createdAt": _date(commit),
        "private": repository.private,
        "gated": False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": [],
        "siblings": [{"rfilename": path} for path in repository.listing(commit.id).files],
    }


def _listing(call: Call) -> Any:
    repository = call.repository()
    return repository.listing(repository.resolve(call.parts["rev"]))


def _refs(found: Sequence[Ref], start: str) -> list[dict[str, str]]:
    return [
        {"name": ref.name, "ref": ref.ref, "targetCommit": ref.commit}
        for ref in found
        if ref.ref.startswith(start)
    ]


def _commit(commit: Commit) -> dict[str, Any]:
    return {
        "id": commit.id,
        "title": commit.title,
        "message": commit.body,
        "date": _date(commit),
        "authors": [{"user": commit.author}],
    }


def _date(commit: Commit) -> str:
    return commit.date.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _true(value: str | None) -> bool:
    return value is not None and value.lower() in ("1", "true")


def _page(call: Call, most: int) -> tuple[int, int]:
    """Where a page starts, and how long it is at most."""
    asked = {key: call.query.get(key, default) for key, default in (("cursor", "0"), ("limit", str(most)))}
    for key, value in asked.items():
        if not value.isascii() or not value.isdigit() or len(value) > 9:
            raise bad_request(f"{key} {value!r}: wanted a number")
    return int(asked["cursor"]), min(max(int(asked["limit"]), 1), most)


def _paged(call: Call, items: list[Any], following: int | None) -> Response:
    """A page; the address of the next one is whole, with every question that this one answered."""
    if following is None:
        return JSONResponse(items)
    query = [(key, value) for key, value in call.query.multi_items() if key != "cursor"]
    path = quote(call.raw_path, safe="/%:@!$&'()*+,;=~")
    link = f'<{call.url}{path}?{urlencode([*query, ("cursor", str(following))])}>; rel="next"'
    return JSONResponse(items, headers={"Link": link})


def _log(call: Call, repo_id: str, made: Outcome, *, gone: bool = False) -> None:
    """One line for whoever asks later who moved what."""
    logs.append_commit(
        call.hub.settings.commit_log,
        caller=call.caller.name,
        repo=repo_id,
        branch=made.ref,
        before=made.before,
        commit=None if gone else made.commit,
    )
