# SPDX-License-Identifier: Apache-2.0
"""What clients ask about a Hub and its repositories; docs/hub.md has the table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

from starlette.responses import JSONResponse, Response

from kernelworks.hubserver import names
from kernelworks.hubserver.call import Call
from kernelworks.hubserver.failures import Failure, bad_request, not_offered, too_large
from kernelworks.hubserver.store import Commit, Ref

COMMITS_PAGE = 100
PATHS = 1000


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
    if call.hub.settings.private and (not call.caller.known or call.caller.expired):
        raise Failure(
            401, "Unauthorized", "this Hub answers nobody without a token; set HF_TOKEN to one of it"
        )
    if not await call.thread(lambda: call.hub.organizations.exists(org)):
        raise Failure(404, "NotFound", f"organization {org} is not here; check the name")
    trusted = call.hub.organizations.trusted(org)
    return JSONResponse({"name": org, "fullname": org, "avatarUrl": "", "trustedKernelPublisher": trusted})


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
    if call.asks("include_prs"):
        answer["pullRequests"] = _refs(found, "refs/pr/")
    return JSONResponse(answer)


async def tree(call: Call) -> Response:
    """The entries of a folder, in pages."""
    path = names.path(call.parts["path"]) if "path" in call.parts else ""
    recursive = call.asks("recursive")
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
        asked = _form(body).get("paths", [])
    if not isinstance(asked, list) or len(asked) > PATHS:
        raise too_large(f"paths: wanted a list of at most {PATHS}")
    paths = [names.path(path) for path in asked]
    listing = await call.thread(call.listing)
    return JSONResponse([listing.entries[path].as_json() for path in paths if path in listing.entries])


async def commits(call: Call) -> Response:
    """The history of a revision, newest first, in pages."""
    start, size = _page(call, COMMITS_PAGE)

    def page() -> list[Commit]:
        return list(islice(call.repository().commits(call.parts["rev"]), start, start + size + 1))

    found = await call.thread(page)
    return _paged(call, [_commit(each) for each in found[:size]], start + size if len(found) > size else None)


async def harnesses(call: Call) -> Response:
    """A question of huggingface_hub about agents; the answer is kept for a day, an error is not."""
    return JSONResponse({"standardEnvVars": [], "harnesses": {}})


async def nowhere(call: Call) -> Response:
    """Parts of huggingface.co's protocol that are known, and not offered."""
    raise not_offered(f"{call.connection.url.path}; docs/hub.md lists what there is")


def _form(body: bytes) -> dict[str, list[str]]:
    try:
        return parse_qs(body.decode("utf-8", "replace"), max_num_fields=PATHS + 10)
    except ValueError as error:
        raise too_large(f"paths: wanted a list of at most {PATHS}") from error


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
