# SPDX-License-Identifier: Apache-2.0
"""Requests that end otherwise than asked: a status, a code that clients know, and a sentence."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pygit2
from starlette.responses import JSONResponse

HEADER_LENGTH = 1000  # proxies refuse an answer with long headers, and clients take that for an outage
LITTLE = 256 * 1024  # bytes that are free on a disk that counts as full
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Failure(Exception):
    """An answer that is not what was asked for."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        # What a stranger sent may be in it: half a surrogate fits into no answer.
        message = message.encode(errors="backslashreplace").decode()
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers or {}

    def response(self, **more: str) -> JSONResponse:
        """What goes over the wire, with more keys in its body; the client shows the text of the header."""
        headers = {"X-Error-Code": self.code, "X-Error-Message": _one_line(self.message), **self.headers}
        return JSONResponse({"error": self.message, **more}, self.status, headers)


def bad_request(message: str) -> Failure:
    """What was sent cannot be meant."""
    return Failure(400, "BadRequest", message)


def too_large(message: str) -> Failure:
    """More than the operator's limits allow."""
    return Failure(413, "PayloadTooLarge", message)


def conflict(message: str) -> Failure:
    """There is one already."""
    return Failure(409, "Conflict", message)


def no_repository(repo_id: str) -> Failure:
    """No such repository, or none that this caller may know of: the two must look the same."""
    return Failure(
        404,
        "RepoNotFound",
        f"kernel repository {repo_id} is not here, or this token may not read it; "
        "check the name, and set HF_TOKEN where it is private",
    )


def no_revision(repo_id: str, revision: str) -> Failure:
    """No such branch, tag or commit."""
    return Failure(404, "RevisionNotFound", f"{repo_id} has no branch, tag or commit {revision}")


def no_entry(path: str, where: str, commit: str | None = None) -> Failure:
    """No such file or folder; the client keeps the commit, so as not to ask again."""
    headers = {"X-Repo-Commit": commit} if commit else {}
    return Failure(404, "EntryNotFound", f"A file with this name doesn't exist: {path} in {where}", headers)


def not_offered(what: str) -> Failure:
    """A part of the protocol that this server does not have."""
    return Failure(501, "NotOffered", f"this Hub does not offer {what}")


def corrupted(what: str) -> Failure:
    """Stored bytes that are not what was stored."""
    return Failure(
        500,
        "ObjectCorrupted",
        f"object corrupted: {what}; the operator can look with `kernelworks hub check`, "
        "and restore it from a backup or publish it again",
    )


def disk_full() -> Failure:
    """No space left, or a quota or file size limit reached."""
    return Failure(
        507,
        "InsufficientStorage",
        "the Hub's disk is full and nothing of this request was kept; "
        "ask the operator to make room, then publish again",
    )


def from_system(error: Exception, root: Path) -> Failure | None:
    """The answer for an error of the file system or of git, or None when it is a mistake of ours."""
    if not isinstance(error, (OSError, pygit2.GitError)):
        return None
    # libgit2 hands on the system's sentence alone, or on a full disk even that it found no error.
    said = any(os.strerror(number) in str(error) for number in NO_SPACE)
    if said or getattr(error, "errno", None) in NO_SPACE or shutil.disk_usage(root).free < LITTLE:
        return disk_full()
    if isinstance(error, pygit2.GitError):
        return Failure(
            500,
            "StorageFailed",
            f"git could not do it: {error}; nothing of this request was kept",
        )
    return None


def _one_line(message: str) -> str:
    """As a header may hold it: printable ASCII, and not too much of it; the body has all."""
    shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in " ".join(message.split()))
    text = shown.encode("ascii", "backslashreplace").decode()
    return text if len(text) <= HEADER_LENGTH else f"{text[:HEADER_LENGTH]}..."
