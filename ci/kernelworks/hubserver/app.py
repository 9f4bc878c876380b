# SPDX-License-Identifier: Apache-2.0
"""The web application: the addresses of clients first, then the pages for people."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from kernelworks.hubserver import api, lfs, logs, pages, resolve
from kernelworks.hubserver.auth import Organizations, Tokens
from kernelworks.hubserver.call import Endpoint, Hub, RawRoute, nothing_here
from kernelworks.hubserver.settings import Settings
from kernelworks.hubserver.store import Store

REPOSITORY = "/api/kernels/{org}/{name}"
MODEL = "/api/models/{org}/{name}"  # `kernels benchmark` asks for a kernel as if it were a model

ROUTES: tuple[tuple[str, str, Endpoint], ...] = (
    ("GET", "/api/whoami-v2", api.whoami),
    ("GET", "/api/organizations/{org}/overview", api.organization),
    ("GET", "/api/agent-harnesses", api.harnesses),
    ("POST", "/api/validate-yaml", api.validate_yaml),
    ("POST", "/api/repos/create", api.create_repository),
    ("DELETE", "/api/repos/delete", api.delete_repository),
    ("GET", REPOSITORY, api.information),
    ("GET", REPOSITORY + "/revision/{rev}", api.information),
    ("GET", REPOSITORY + "/refs", api.refs),
    ("GET", REPOSITORY + "/tree/{rev}", api.tree),
    ("GET", REPOSITORY + "/tree/{rev}/{path*}", api.tree),
    ("GET", REPOSITORY + "/commits/{rev}", api.commits),
    ("POST", REPOSITORY + "/paths-info/{rev}", api.paths_info),
    ("POST", REPOSITORY + "/preupload/{rev}", api.preupload),
    ("POST", REPOSITORY + "/commit/{rev}", api.commit),
    ("POST", REPOSITORY + "/branch/{branch}", api.create_branch),
    ("DELETE", REPOSITORY + "/branch/{branch}", api.delete_branch),
    ("POST", REPOSITORY + "/tag/{rev}", api.create_tag),
    ("DELETE", REPOSITORY + "/tag/{tag}", api.delete_tag),
    # 404 and not 501, which the client of that storage would repeat for minutes
    ("GET", REPOSITORY + "/xet-write-token/{rest*}", nothing_here),
    ("GET", REPOSITORY + "/xet-read-token/{rest*}", nothing_here),
    ("GET POST PUT DELETE", REPOSITORY + "/{rest*}", api.nowhere),
    ("GET", MODEL, api.information),
    ("GET", MODEL + "/revision/{rev}", api.information),
    ("GET", MODEL + "/tree/{rev}", api.tree),
    ("GET", MODEL + "/tree/{rev}/{path*}", api.tree),
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
