# SPDX-License-Identifier: Apache-2.0
"""Answers that are not what was asked for: a status, a code, and a sentence that fits into a header."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pygit2
import pytest

from kernelworks.hubserver import failures
from kernelworks.hubserver.failures import Failure


def test_a_header_holds_whatever_a_stranger_sent() -> None:
    response = failures.bad_request("path 'ü\r\nSet-Cookie: x\u202e\0\x1b': no").response(url="u")
    assert response.status_code == 400
    assert response.headers["X-Error-Code"] == "BadRequest"
    message = response.headers["X-Error-Message"]
    assert message.isascii()
    assert message.isprintable()
    assert "\n" not in message
    assert "Set-Cookie" not in response.headers
    assert json.loads(bytes(response.body)) == {
        "error": "path 'ü\r\nSet-Cookie: x\u202e\0\x1b': no",
        "url": "u",
    }


def test_a_long_sentence_is_whole_in_the_body_alone() -> None:
    """Proxies answer 502 to long headers, and a client then tries again for minutes."""
    response = failures.bad_request("x; " * 5000).response()
    assert len(response.headers["X-Error-Message"]) < 1100
    assert json.loads(bytes(response.body))["error"] == "x; " * 5000


def test_half_a_surrogate_is_answered() -> None:
    assert b"ud800" in bytes(failures.bad_request("name '\ud800': no").response().body)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 507),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), 507),
        (OSError(errno.EFBIG, "File too large"), 507),
        (OSError("failed to write out file: No space left on device"), 507),
        (pygit2.GitError("failed to write out file: No space left on device"), 507),
        (pygit2.GitError("anything else"), 500),
        (OSError(errno.EACCES, "Permission denied"), None),
        (KeyError("a mistake of ours"), None),
    ],
    ids=str,
)
def test_what_the_system_says_becomes_an_answer(tmp_path: Path, error: Exception, status: int | None) -> None:
    found = failures.from_system(error, tmp_path)
    assert (found and found.status) == status


def test_a_missing_file_names_the_commit_for_the_client_to_keep() -> None:
    found = failures.no_entry("x", "acme/toy", "0" * 40)
    assert isinstance(found, Failure)
    assert found.response().headers["X-Repo-Commit"] == "0" * 40
