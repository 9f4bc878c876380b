# SPDX-License-Identifier: Apache-2.0
"""What a Hub tells and is told, in our words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path


@dataclass(frozen=True)
class Account:
    """Who a token belongs to, and what it may do, as far as the Hub says."""

    name: str
    orgs: tuple[str, ...]
    readers: tuple[str, ...]  # organizations in which this account may only read
    role: str  # of the token: read, write, fineGrained, or "" where the Hub does not say


@dataclass(frozen=True)
class Refs:
    """Branches and tags of a repository with the commits that they are at."""

    branches: Mapping[str, str]
    tags: Mapping[str, str]


@dataclass(frozen=True)
class RemoteFile:
    """A file on the Hub: a large one is known by its sha256, any other by git's hash of its content."""

    path: str
    size: int
    oid: str
    sha256: str | None

    @property
    def identity(self) -> str:
        """Equal for equal contents."""
        return self.sha256 or self.oid


def variants_in(tree: Mapping[str, RemoteFile]) -> list[str]:
    """The variants among the files of a tree."""
    parts = (path.split("/") for path in tree)
    return sorted({each[1] for each in parts if each[0] == "build" and len(each) > 2})


@dataclass(frozen=True)
class Commit:
    """One entry of a branch's history."""

    id: str
    title: str
    description: str
    date: datetime


@dataclass(frozen=True)
class Edit:
    """What a commit does to one file: content from here, that of an earlier commit, or its removal."""

    path: str
    content: Path | bytes | None = None
    from_commit: str | None = None

    @property
    def deletes(self) -> bool:
        """Whether the file is gone afterwards."""
        return self.content is None and self.from_commit is None


@dataclass(frozen=True)
class Landed:
    """A commit that is on the Hub now, or a pull request that asks for it."""

    commit: str
    pull_request: str | None = None
