# SPDX-License-Identifier: Apache-2.0
"""Routes over the parts of an address as they came, and refusals that a client that still sends can read."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from hub_process import RunningHub, running_hub
from starlette.responses import Response
from starlette.routing import Match

from kernelworks.hubserver.call import Call, RawRoute


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    limits = {"json_bytes": 1000, "commit_bytes": 10_000}
    with running_hub(tmp_path_factory.mktemp("call") / "hub", limits=limits) as found:
        yield found


async def nothing(call: Call) -> Response:
    return Response()


@pytest.mark.parametrize(
    ("pattern", "address", "parts"),
    [
        ("/api/{org}/{name}", b"/api/a/b", {"org": b"a", "name": b"b"}),
        ("/api/{org}/{name}", b"/api/a%2Fb/c", {"org": b"a%2Fb", "name": b"c"}),
        ("/api/{org}/{name}", b"/api/a/b?x=/y", {"org": b"a", "name": b"b"}),
        ("/api/{org}/{name}", b"/api/a", None),
        ("/api/{org}/{name}", b"/api/a/", None),
        ("/api/{org}/{name}", b"/api/a/b/c", None),
        ("/api/{org}/{name}", b"/other/a/b", None),
        ("/{name}.git/info", b"/x.git/info", {"name": b"x"}),
        ("/{name}.git/info", b"/x/info", None),
        ("/t/{rev}/{path*}", b"/t/refs%2Fpr%2F1/a/b%20c", {"rev": b"refs%2Fpr%2F1", "path": b"a/b%20c"}),
        ("/t/{rev}/{path*}", b"/t/main", None),
    ],
)
def test_an_address_is_split_before_it_is_decoded(
    pattern: str, address: bytes, parts: dict[str, bytes] | None
) -> None:
    route = RawRoute(None, "GET", pattern, nothing)  # type: ignore[arg-type]
    scope: dict[str, Any] = {"type": "http", "method": "GET", "raw_path": address, "path": "/"}
    match, found = route.matches(scope)
    assert (match, found.get("raw_parts")) == ((Match.FULL, parts) if parts else (Match.NONE, None))
    below = {**scope, "raw_path": b"/prefix" + address, "root_path": "/prefix"}
    assert route.matches(below) == (match, found)


def test_a_client_that_is_still_sending_reads_the_refusal(hub: RunningHub) -> None:
    """Without reading the rest away, the connection would be reset under the answer."""
    body = b"x" * 5_000_000
    answer = hub.ask("POST", "/api/kernels/acme/nothing/branch/v1", body)
    assert answer.status in (404, 413)
    answer = hub.ask("POST", "/api/repos/create", body[:5000])
    assert (answer.status, answer.code) == (413, "PayloadTooLarge")
    assert "1000 bytes" in json.loads(answer.body)["error"]


def test_another_method_is_told_which_there_are(hub: RunningHub) -> None:
    answer = hub.ask("DELETE", "/lfs/acme/toy/" + "0" * 64)
    assert (answer.status, answer.headers["Allow"]) in ((405, "PUT"), (405, "POST"))


def test_requests_that_are_not_http_end_with_400(hub: RunningHub) -> None:
    where = urlsplit(hub.endpoint)
    with socket.create_connection((where.hostname, where.port), timeout=10) as connection:
        connection.sendall(b"GET /\xff\xfe HTTP/9\r\n\r\n")
        assert b" 400 " in connection.recv(1000)
    assert hub.ask("GET", "/api/agent-harnesses").status == 200


def test_every_answer_has_an_id_that_the_log_has_too(hub: RunningHub) -> None:
    ids = {hub.ask("GET", path).headers["X-Request-Id"] for path in ("/api/whoami-v2", "/api/x", "/")}
    assert len(ids) == 3
    assert ids <= {line["id"] for line in hub.requests()}
