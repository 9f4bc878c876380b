# SPDX-License-Identifier: Apache-2.0
"""The pages that people look at: plain HTML, no script, nothing from elsewhere."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from kernelworks.hubserver import logs, names, shown
from kernelworks.hubserver.auth import Caller, Organizations, Tokens
from kernelworks.hubserver.failures import Failure, no_repository, no_revision
from kernelworks.hubserver.settings import Settings
from kernelworks.hubserver.store import Repository, Store

LOG = logging.getLogger("kernelworks.hub")
TEMPLATES = Path(__file__).parent / "templates"
STYLE = (TEMPLATES / "style.css").read_bytes()
COMMITS_SHOWN = 50
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self' data:; "
        "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-cache",
    "Vary": "Authorization",
}
ASK = {"WWW-Authenticate": 'Basic realm="Kernel Hub: any name, and a token as the password", charset="UTF-8"'}

Handler = Callable[[Request], Response]


def routes(store: Store, settings: Settings, tokens: Tokens, organizations: Organizations) -> list[Route]:
    """The addresses of the pages; those of the clients are elsewhere, and come first."""
    pages = Pages(store, settings, tokens, organizations)
    return [
        Route("/", pages.guarded(pages.index)),
        Route("/style.css", style),
        Route("/login", pages.guarded(pages.login)),
        Route("/kernels/{org}/{name}", pages.guarded(pages.kernel)),
        Route("/kernels/{org}/{name}/commit/{commit}", pages.guarded(pages.commit)),
        Route("/kernels/{org}/{name}/discussions/{number:int}", pages.guarded(pages.pull_request)),
        Route("/kernels/{org}/{name}/tree/{rest:path}", pages.guarded(pages.tree)),
        Route("/{org}/{name}", pages.guarded(pages.kernel)),
    ]


def style(request: Request) -> Response:
    """The one style sheet; its address changes with its content."""
    headers = {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
    return Response(STYLE, media_type="text/css", headers=headers)


@dataclass(frozen=True)
class Pages:
    """The handlers, and what they look at."""

    store: Store
    settings: Settings
    tokens: Tokens
    organizations: Organizations

    def guarded(self, handler: Handler) -> Handler:
        """The handler, with a page for what goes wrong."""

        @wraps(handler)
        def answer(request: Request) -> Response:
            try:
                return handler(request)
            except Failure as failure:
                return self.message(request, failure.status, failure.message)
            except Exception:
                name = request.url.path
                LOG.exception(
                    "cannot show %s", name, extra={"fields": {"id": logs.request_of(request.scope).id}}
                )
                return self.message(
                    request, 500, f"{name} cannot be read; the operator finds more in the log."
                )

        return answer

    def index(self, request: Request) -> Response:
        """Every kernel that the viewer may read."""
        caller = self.caller(request)
        if self.settings.private and not (caller.known and not caller.expired):
            return self.message(
                request, 401, "This Hub shows nothing without a token: sign in with one.", ASK
            )
        rows = [row for repo_id in self.store.repositories() if (row := self.row(repo_id, caller))]
        return self.html(request, "index.html", rows=rows)

    def row(self, repo_id: str, caller: Caller) -> shown.Row | None:
        """A line of the index; one that cannot be read must not hide the others."""
        try:
            repository = self.store.open(repo_id)
            if not self.may_read(repository, caller):
                return None
            found = shown.versions(repository)
            return shown.Row(repo_id, found[0] if found else None, repository.private, self.trusted(repo_id))
        except Exception as error:
            if isinstance(error, Failure) and error.status == 404:
                return None
            LOG.exception("cannot show %s", repo_id)
            return (
                shown.Row(repo_id, None, True, False) if caller.may_read(repo_id.partition("/")[0]) else None
            )

    def kernel(self, request: Request) -> Response:
        """The page of one kernel."""
        repository = self.repository(request)
        page = shown.page(
            repository,
            private=repository.private,
            trusted=self.trusted(repository.id),
            endpoint=self.endpoint(request),
        )
        return self.html(request, "kernel.html", page=page)

    def commit(self, request: Request) -> Response:
        """One commit: who, when, why."""
        repository, commit = self.repository(request), request.path_params["commit"]
        if not names.COMMIT.fullmatch(commit):
            raise no_revision(repository.id, commit)
        found = [repository.commit(repository.resolve(commit))]
        return self.of(request, repository, "commit.html", subject=f"Commit {commit[:12]}", commits=found)

    def pull_request(self, request: Request) -> Response:
        """The commits of a pull request."""
        repository, number = self.repository(request), request.path_params["number"]
        found = list(islice(repository.commits(f"refs/pr/{number}"), COMMITS_SHOWN))
        return self.of(request, repository, "commit.html", subject=f"Pull request {number}", commits=found)

    def tree(self, request: Request) -> Response:
        """The files of a revision; it may hold %2F, so the address is split before it is decoded."""
        repository = self.repository(request)
        parts = request.scope["raw_path"].decode("ascii", "replace").split("/")[5:]
        rev, *path = [unquote(part) for part in parts if part] or [""]
        folder = names.path("/".join(path)) if path else ""
        entries = repository.tree(rev, folder, recursive=False)
        return self.of(request, repository, "tree.html", rev=rev, path=folder, entries=entries)

    def login(self, request: Request) -> Response:
        """Have the browser ask for a token, once; it then sends it with every page."""
        caller = self.caller(request)
        if not self.tokens.given or (caller.known and not caller.expired):
            return RedirectResponse("/", headers=HEADERS)
        return self.message(
            request, 401, "Sign in with any name, and a token of this Hub as the password.", ASK
        )

    def repository(self, request: Request) -> Repository:
        """The repository of an address, or the same 404 whether it is missing or hidden."""
        repo_id = names.repository(request.path_params["org"], request.path_params["name"])
        repository = self.store.open(repo_id)
        if not self.may_read(repository, self.caller(request)):
            raise no_repository(repo_id)
        return repository

    def may_read(self, repository: Repository, caller: Caller) -> bool:
        """Whether the viewer may know of it."""
        hidden = self.settings.private or repository.private
        return not hidden or caller.may_read(repository.id.partition("/")[0])

    def trusted(self, repo_id: str) -> bool:
        """Whether clients load it without being told to."""
        return self.organizations.trusted(repo_id.partition("/")[0])

    def caller(self, request: Request) -> Caller:
        """Who looks, for the log too."""
        caller = self.tokens.caller(request.headers.get("authorization"))
        logs.request_of(request.scope).caller = caller.name
        return caller

    def endpoint(self, request: Request) -> str:
        """What clients put into HF_ENDPOINT."""
        return self.settings.public_url or str(request.base_url).rstrip("/")

    def of(self, request: Request, repository: Repository, template: str, **values: Any) -> Response:
        """A page about one repository."""
        org, _, name = repository.id.partition("/")
        return self.html(request, template, repo=repository.id, org=org, name=name, **values)

    def message(
        self, request: Request, status: int, sentence: str, headers: dict[str, str] | None = None
    ) -> Response:
        """A page that says one thing."""
        heading = {401: "Sign in", 404: "Not here"}.get(status, "That did not work")
        return self.html(
            request, "message.html", status=status, headers=headers, heading=heading, sentence=sentence
        )

    def html(
        self,
        request: Request,
        template: str,
        *,
        status: int = 200,
        headers: dict[str, str] | None = None,
        **values: Any,
    ) -> Response:
        """A template with what every page shows."""
        caller = self.caller(request)
        text = ENVIRONMENT.get_template(template).render(
            values,
            viewer=caller.name if self.tokens.given and not caller.expired else None,
            may_sign_in=self.tokens.given,
            endpoint=self.endpoint(request),
        )
        return HTMLResponse(text, status, {**HEADERS, **(headers or {})})


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["style"] = hashlib.sha256(STYLE).hexdigest()[:12]
    return environment


ENVIRONMENT = _environment()
