# SPDX-License-Identifier: Apache-2.0
"""Who a caller is, what this caller may do, and which organizations the operator trusts."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from filelock import FileLock

from kernelworks.errors import HostingError
from kernelworks.hubserver import documents

PREFIX = "kw_"  # tells people, and scanners for lost secrets, what such a text is
EVERY_ORG = "*"
OTHERS = stat.S_IRWXO | stat.S_IWGRP  # a service's own group may read; nobody else may do anything


@dataclass(frozen=True)
class Caller:
    """The one behind a request; without a token that we know, a reader of what is public."""

    name: str | None = None
    orgs: tuple[str, ...] = ()
    write: bool = False
    expired: bool = False
    offered: bool = False  # whether the request carried a token at all

    @property
    def known(self) -> bool:
        """False for no token, and for one that is not ours."""
        return self.name is not None

    def may_read(self, org: str) -> bool:
        """Whether this caller sees the private repositories of an organization."""
        return self.known and not self.expired and (org in self.orgs or EVERY_ORG in self.orgs)

    def may_write(self, org: str) -> bool:
        """Whether this caller may create, change and delete in an organization."""
        return self.write and self.may_read(org)

    def refusal(self, org: str) -> tuple[int, str] | None:
        """The status and the sentence for a write that is not allowed, or None when it is."""
        if self.may_write(org):
            return None
        if self.expired:
            return 401, f"token expired: {self.name}; ask the operator of this Hub for a new one"
        if not self.known:
            given = "this token is not known here" if self.offered else "no token was sent"
            return 401, f"{given}, and writing to {org} needs one; set HF_TOKEN to a token of this Hub"
        if not self.may_read(org):
            return 403, f"token {self.name} is not for {org}; ask for one that may write to {org}"
        return 403, f"token {self.name} may only read {org}; ask for one that may write to {org}"


ANYONE = Caller()
OPEN = Caller(name="anyone", orgs=(EVERY_ORG,), write=True)


@dataclass(frozen=True)
class Entry:
    """One token as the file holds it: never the token itself, and never enough to make it."""

    name: str
    sha256: str
    orgs: tuple[str, ...]
    write: bool
    created: str
    expires: str | None = None

    def expired(self, now: datetime) -> bool:
        """Whether its last day is over."""
        return self.expires is not None and datetime.fromisoformat(self.expires) <= now


class Tokens:
    """The tokens of a running server."""

    def __init__(self, source: documents.Reread[tuple[Entry, ...]] | None, without: Caller) -> None:
        self._source, self._without = source, without

    @classmethod
    def from_file(cls, path: Path) -> Tokens:
        """The tokens of this file, which must be in order now; later changes take effect at once."""
        source = documents.Reread(path, read_entries)
        source.get()
        return cls(source, ANYONE)

    @classmethod
    def none(cls) -> Tokens:
        """Nobody may write."""
        return cls(None, ANYONE)

    @classmethod
    def open(cls) -> Tokens:
        """Everybody may write, whatever they send."""
        return cls(None, OPEN)

    @property
    def given(self) -> bool:
        """Whether there is a file of tokens at all."""
        return self._source is not None

    def caller(self, authorization: str | None) -> Caller:
        """Who sent this `Authorization` header; a file that was damaged meanwhile knows nobody."""
        token, browser = _token_in(authorization)
        if not token:
            return self._without
        entry = match(self._source.get_or(()), token) if self._source else None
        if entry is None:
            return replace(self._without, offered=True)
        expired = entry.expired(datetime.now(timezone.utc))
        # A browser sends what it remembers with every form that any other site shows: it may only look.
        write = entry.write and not browser
        return Caller(entry.name, entry.orgs, write, expired=expired, offered=True)


def match(entries: Sequence[Entry], token: str) -> Entry | None:
    """The entry of a token; the time it takes says nothing about which entry, or how much, agreed."""
    digest = _digest(token)
    found = None
    for entry in entries:
        if hmac.compare_digest(entry.sha256, digest):
            found = entry
    return found


def read_entries(path: Path) -> tuple[Entry, ...]:
    """The entries of a token file that is in order, and that nobody else may read or change."""
    document = documents.read_json(path, "tokens")
    if path.stat().st_mode & OTHERS:
        raise HostingError(
            f"--token-file {path}: other users may read or change it; run `chmod 600 {path}` first"
        )
    try:
        return tuple(_entry(each) for each in document["tokens"])
    except (KeyError, TypeError, ValueError) as error:
        raise HostingError(
            f"--token-file {path}: an entry is damaged ({error}); mend it, or make the file anew "
            "with `kernelworks hub token add`"
        ) from error


def add(path: Path, name: str, orgs: Sequence[str], *, write: bool, days: int | None) -> str:
    """Put a new token into the file, which is made if there is none, and return the token: only now."""
    token = PREFIX + secrets.token_urlsafe(32)
    now = datetime.now(timezone.utc).replace(microsecond=0)
    expires = None if days is None else (now + timedelta(days=days)).isoformat()
    new = Entry(name, _digest(token), tuple(dict.fromkeys(orgs)), write, now.isoformat(), expires)

    def with_new(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        if any(entry.name == name for entry in entries):
            raise HostingError(
                f"--name {name}: {path} has a token of this name; take another name, or revoke that one first"
            )
        return (*entries, new)

    _change(path, with_new)
    return token


def revoke(path: Path, name: str) -> None:
    """Take a token out of the file; a running server stops accepting it at its next request."""

    def without(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        kept = tuple(entry for entry in entries if entry.name != name)
        if len(kept) == len(entries):
            known = ", ".join(entry.name for entry in entries) or "none"
            raise HostingError(f"--name {name}: no token of this name in {path}; there is {known}")
        return kept

    _change(path, without)


class Organizations:
    """The organizations of a data directory: one exists when it has a repository or was given a flag."""

    def __init__(self, flags: Path, repositories: Path) -> None:
        self._flags, self._repositories = documents.Reread(flags, read_flags), repositories

    def trusted(self, org: str) -> bool:
        """Whether clients load this organization's kernels without being told to trust them."""
        return self._flags.get_or({}).get(org, False)

    def exists(self, org: str) -> bool:
        """Whether there is anything of this name."""
        return org in self._flags.get_or({}) or (bool(org) and (self._repositories / org).is_dir())


def read_flags(path: Path) -> dict[str, bool]:
    """Organization to trusted or not; no file says nothing."""
    if not path.exists():
        return {}
    flags = documents.read_json(path, "trusted")["trusted"]
    if not isinstance(flags, dict) or not all(isinstance(each, bool) for each in flags.values()):
        raise HostingError(f"{path}: `trusted` must map organizations to true or false; mend or remove it")
    return flags


def set_trusted(path: Path, org: str, trusted: bool) -> None:
    """Write the operator's flag down; a running server follows at its next request."""
    with _alone_with(path, "organizations"):
        documents.write_json(path, {"trusted": {**read_flags(path), org: trusted}})


def _change(path: Path, change: Callable[[tuple[Entry, ...]], tuple[Entry, ...]]) -> None:
    """Read, change and write the file while no other command does."""
    with _alone_with(path, "--token-file"):
        entries = change(read_entries(path) if path.exists() else ())
        documents.write_json(path, {"tokens": [asdict(entry) for entry in entries]})


@contextmanager
def _alone_with(path: Path, what: str) -> Iterator[None]:
    try:
        with FileLock(f"{path}.lock"):
            yield
    except OSError as error:
        raise HostingError(
            f"{what} {path}: cannot be written: {error.strerror or error}; name a file in a "
            "directory that is there and yours"
        ) from error


def _entry(document: dict[str, Any]) -> Entry:
    entry = Entry(**{**document, "orgs": tuple(document["orgs"])})
    if len(bytes.fromhex(entry.sha256)) != hashlib.sha256().digest_size:
        raise ValueError(f"sha256 of {entry.name} is not 64 hexadecimal digits")
    if entry.expires is not None and datetime.fromisoformat(entry.expires).tzinfo is None:
        raise ValueError(f"expires of {entry.name} has no time zone")
    if not isinstance(entry.write, bool):
        raise TypeError(f"write of {entry.name} is not true or false")
    return entry


def _token_in(authorization: str | None) -> tuple[str, bool]:
    """The token of a client (Bearer), or the password that a person gave to a browser (Basic)."""
    scheme, _, rest = (authorization or "").strip().partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip(), False
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest, validate=True).decode().partition(":")[2], True
        except ValueError:
            return "", True
    return "", False


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
