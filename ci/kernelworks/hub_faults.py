# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between us and a Hub: what is tried again, for how long, and the sentence at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

from kernelworks.errors import HubAccessError, HubConflictError, HubError, HubUnavailableError

T = TypeVar("T")

# The base of every failure of the HTTP library, which is httpx or httpx2 by the version of huggingface_hub.
TransportError: type[Exception] = HfHubHTTPError.__mro__[1]
# ValueError and RuntimeError: answers that are no JSON, and uploads of single files.
CAUGHT: tuple[type[Exception], ...] = (TransportError, OSError, ValueError, RuntimeError)

WAITS = (1, 2, 4, 8)  # seconds between five attempts
PATIENCE = 300  # a Hub that asks to wait longer than this many seconds is left alone
BUSY = frozenset({408, 429, 500, 502, 503, 504})
FULL = 507
SILENCE = 600  # seconds without a byte after which a Hub counts as gone; huggingface_hub waits for ever


def with_retries(endpoint: str, call: Callable[[], T]) -> T:
    """Call until it succeeds, fails for good, or has failed five times; say on stderr what is waited for."""
    for attempt in range(len(WAITS) + 1):
        try:
            return call()
        except CAUGHT as error:
            wait = pause(error, attempt)
            if wait is None:
                raise
            print(f"{endpoint}: {reason(error)}; trying again in {wait} s", file=sys.stderr)
            time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


def pause(error: Exception, attempt: int) -> int | None:
    """How long to wait before the next attempt, or None when there is to be none."""
    if attempt >= len(WAITS) or not is_passing(error):
        return None
    asked = _header(error, "Retry-After")
    if asked.isdigit():
        return int(asked) if int(asked) <= PATIENCE else None
    return WAITS[attempt]


def is_passing(error: Exception) -> bool:
    """Whether the same request may well succeed a little later."""
    status = status_of(error)
    return status in BUSY if status is not None else _is_connection(error)


def is_doubtful(error: Exception) -> bool:
    """Whether the Hub may have done what was asked, though it did not say so."""
    status = status_of(error)
    return status in BUSY - {429} if status is not None else _is_connection(error)


def status_of(error: BaseException) -> int | None:
    """The HTTP status behind an error, or None where no answer came."""
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    return status if isinstance(status, int) else None


def reason(error: BaseException) -> str:
    """What happened, without the library's advice on what to do."""
    status = status_of(error)
    said = (getattr(error, "server_message", None) or "").strip().splitlines()
    if status is not None:
        return f"{status}{f' {said[0]}' if said else ''}"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")


def translated(error: Exception, endpoint: str, deed: str) -> HubError:
    """The sentence for a person, of the class whose exit code says what kind of failure it is."""
    cause = error.__cause__
    # huggingface_hub wraps what happened to a download in an error about its cache.
    if status_of(error) is None and isinstance(cause, CAUGHT) and not isinstance(error, OfflineModeIsEnabled):
        error = cause
    what = f"{endpoint} did not {deed}: {reason(error)}"
    status = status_of(error)
    if isinstance(error, OfflineModeIsEnabled):
        return HubUnavailableError(f"cannot {deed}: HF_HUB_OFFLINE is set; unset it to reach {endpoint}")
    if status == 401:
        return HubAccessError(f"{what}; set HF_TOKEN to a valid token of this Hub, or run `hf auth login`")
    if status == 403:
        return HubAccessError(f"{what}; ask the owner of the organization for the right to write")
    if status in (409, 412):
        return HubConflictError(f"{what}; somebody else changed it in the meantime: look, and run this again")
    if status == FULL:
        return HubError(f"{what}; nothing was changed: the operator has to make room on its disk")
    if status in BUSY:
        return HubUnavailableError(f"{what}, also after waiting; nothing is half done: run this again later")
    if status is None and _is_connection(error):
        return HubUnavailableError(
            f"cannot reach {endpoint} to {deed}: {reason(error)}; look at the network, HF_ENDPOINT, proxies"
        )
    return HubError(what)


def _header(error: Exception, name: str) -> str:
    response = getattr(error, "response", None)
    return str(response.headers.get(name, "")).strip() if response is not None else ""


def _is_connection(error: Exception) -> bool:
    if isinstance(error, OfflineModeIsEnabled):
        return False
    return isinstance(error, (TransportError, ConnectionError, TimeoutError))
