# SPDX-License-Identifier: Apache-2.0
"""The web application: the addresses of clients first, then the pages for people."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from kernelworks.hubserver import changing, lfs, logs, pages, reading, resolve
from kernelworks.hubserver.auth import Organizations, Tokens
from kernelworks.hubserver.call import Endpoint, Hub, RawRoute, nothing_here
from kernelworks.hubserver.settings import Settings
from kernelworks.hubserver.store import Store

REPOSITORY = "/api/kernels/{org}/{name}"
MODEL = "/api/models/{org}/{name}"  # `kernels benchmark` asks for a kernel as if it were a model

ROUTES: tuple[tuple[str, str, Endpoint], ...] = (
    ("GET", "/api/whoami-v2", reading.whoami),
    ("GET", "/api/organizations/{org}/overview", reading.organization),
    ("GET", "/api/agent-harnesses", reading.harnesses),
    ("POST", "/api/validate-yaml", changing.validate_yaml),
    ("POST", "/api/repos/create", changing.create_repository),
    ("DELETE", "/api/repos/delete", changing.delete_repository),
    ("GET", REPOSITORY, reading.information),
    ("GET", REPOSITORY + "/revision/{rev}", reading.information),
    ("GET", REPOSITORY + "/refs", reading.refs),
    ("GET", REPOSITORY + "/tree/{rev}", reading.tree),
    ("GET", REPOSITORY + "/tree/{rev}/{path*}", reading.tree),
    ("GET", REPOSITORY + "/commits/{rev}", reading.commits),
    ("POST", REPOSITORY + "/paths-info/{rev}", reading.paths_info),
    ("POST", REPOSITORY + "/preupload/{rev}", changing.preupload),
    ("POST", REPOSITORY + "/commit/{rev}", changing.commit),
    ("POST", REPOSITORY + "/branch/{branch}", changing.create_branch),
    ("DELETE", REPOSITORY + "/branch/{branch}", changing.delete_branch),
    ("POST", REPOSITORY + "/tag/{rev}", changing.create_tag),
    ("DELETE", REPOSITORY + "/tag/{tag}", changing.delete_tag),
    # 404 and not 501, which the client of that storage would repeat for minutes
    ("GET", REPOSITORY + "/xet-write-token/{rest*}", nothing_here),
    ("GET", REPOSITORY + "/xet-read-token/{rest*}", nothing_here),
    ("GET POST PUT DELETE", REPOSITORY + "/{rest*}", reading.nowhere),
    ("GET", MODEL, reading.information),
    ("GET", MODEL + "/revision/{rev}", reading.information),
    ("GET", MODEL + "/tree/{rev}", reading.tree),
    ("GET", MODEL + "/tree/{rev}/{path*}", reading.tree),
    ("GET", "/kernels/{org}/{name}/resolve/{rev}/{path*}", resolve.resolve),
    ("GET", "/{org}/{name}/resolve/{rev}/{path*}", resolve.resolve),
    ("POST", "/kernels/{org}/{name}.git/info/lfs/objects/batch", lfs.batch),
    ("POST", "/kernels/{org}/{name}.git/info/lfs/verify", lfs.verify),
    ("PUT", "/lfs/{org}/{name}/{sha256}", lfs.upload),
    ("POST", "/lfs/{org}/{name}/{sha256}", lfs.complete),
    ("GET POST PUT DELETE PATCH", "/api/{rest*}", nothing_here),
)


def create_app(settings: Settings, tokens: Tokens, organizations: Organizations) -> Starlette:
    """The application over one data directory."""
    store = Store(settings)
    hub = Hub(settings, store, tokens, organizations)
    routes: list[BaseRoute] = [RawRoute(hub, *route) for route in ROUTES]
    routes += pages.routes(store, settings, tokens, organizations)
    return Starlette(
        routes=routes,
        middleware=[Middleware(logs.AccessLog)],
        exception_handlers={Exception: _mistake},
    )


async def _mistake(request: Request, error: Exception) -> Response:
    """A mistake of ours: the log has it under the id that the client was given."""
    message = "this Hub made a mistake; its log says more under the id of this request"
    return JSONResponse(
        {"error": message}, 500, {"X-Error-Code": "InternalError", "X-Error-Message": message}
    )
