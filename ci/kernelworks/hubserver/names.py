# SPDX-License-Identifier: Apache-2.0
"""Which names, paths and revisions are taken: what is refused here never meets the file system."""

from __future__ import annotations

import re
import unicodedata

import pygit2
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils._validators import validate_repo_id

from kernelworks.hubserver.failures import bad_request

DEFAULT_BRANCH = "main"
COMMIT = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")
PART_BYTES = 255  # what file systems take
PATH_BYTES = 1024
REVISION_BYTES = 200

# First parts of addresses of this server, which an organization of that name would hide.
RESERVED = frozenset({"api", "kernels", "lfs", "models", "datasets", "spaces", "static", "health"})
# Controls, invisible and directional marks, halves of surrogates, line and paragraph separators.
ODD = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# What Windows and macOS take for .git too.
GIT = frozenset({".git", "git~1"})


def repository(org: str, name: str) -> str:
    """`org/name`, when the clients would take it too."""
    repo_id = f"{org}/{name}"
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise bad_request(f"repository name: {error}") from error
    return repo_id


def new_repository(org: str, name: str) -> str:
    """A name that a repository may be created with."""
    repo_id = repository(org, name)
    if org in RESERVED:
        raise bad_request(f"organization {org}: this name is an address of the Hub; take another one")
    return repo_id


def path(text: object) -> str:
    """A path inside a repository that is the same file on every system, and inside it."""
    if not isinstance(text, str):
        raise bad_request(f"path {text!r}: wanted a text")
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise bad_request(f"path {text!r}: is not valid Unicode") from error
    if len(encoded) > PATH_BYTES:
        raise bad_request(f"path {text[:80]!r}...: longer than {PATH_BYTES} bytes")
    for part in text.split("/"):
        complaint = _complaint_about_part(part)
        if complaint:
            raise bad_request(f"path {text!r}: {complaint}")
    return text


def branch(text: str) -> str:
    """A name for a branch."""
    return _ref(text, "branch", "refs/heads/")


def tag(text: object) -> str:
    """A name for a tag."""
    if not isinstance(text, str):
        raise bad_request(f"tag {text!r}: wanted a text")
    return _ref(text, "tag", "refs/tags/")


def revision(text: str) -> str:
    """What may be looked up as a branch, tag or commit."""
    if not text or len(text) > REVISION_BYTES or not text.isprintable():
        raise bad_request(f"revision {text[:80]!r}: wanted a branch, a tag or a commit of 40 digits")
    return text


def message(text: object, where: str) -> str:
    """What a commit or a tag says, as git can hold it."""
    if not isinstance(text, str):
        raise bad_request(f"{where}: wanted a text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise bad_request(f"{where}: is not valid Unicode") from error
    return text.replace("\0", "")


def _complaint_about_part(part: str) -> str | None:
    if part in ("", ".", ".."):
        return "a part of it is empty, `.` or `..`"
    if part.partition(":")[0].rstrip(" .").lower() in GIT:  # behind a colon, NTFS has streams of the same
        return f"{part} is git's own"
    if "\\" in part or any(unicodedata.category(each) in ODD for each in part):
        return "holds a backslash, a control character or an invisible one"
    if len(part.encode()) > PART_BYTES:
        return f"a part of it is longer than {PART_BYTES} bytes"
    return None


def _ref(text: str, kind: str, prefix: str) -> str:
    if (
        len(text.encode("utf-8", "replace")) > REVISION_BYTES
        or not text.isprintable()
        or text.startswith(("-", "refs/"))
        or text == "HEAD"
        or COMMIT.fullmatch(text.lower())
        or not pygit2.reference_is_valid_name(prefix + text)
    ):
        raise bad_request(
            f"{kind} {text[:80]!r}: not a name that git takes, or one that looks like a commit, an option "
            "or a reference; take letters, digits, `.`, `-` and `_`"
        )
    return text
