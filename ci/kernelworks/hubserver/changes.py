# SPDX-License-Identifier: Apache-2.0
"""A commit as it is asked for: what it says about itself, and which files come and go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Header:
    """What the commit says about itself."""

    summary: str
    description: str = ""
    parent: str | None = None

    @property
    def message(self) -> str:
        """The message of the commit in git."""
        return f"{self.summary}\n\n{self.description}".rstrip() + "\n"


@dataclass(frozen=True)
class Content:
    """The bytes of a file, on the disk."""

    file: Path
    size: int
    sha256: str


@dataclass(frozen=True)
class Add:
    """A file that came with the commit."""

    path: str
    content: Content


@dataclass(frozen=True)
class AddLarge:
    """A file whose bytes were uploaded before."""

    path: str
    sha256: str
    size: int | None


@dataclass(frozen=True)
class Delete:
    """A file or a folder to be taken out."""

    path: str
    is_folder: bool


Operation = Add | AddLarge | Delete


@dataclass(frozen=True)
class Change:
    """A whole commit as it was asked for."""

    header: Header
    operations: tuple[Operation, ...]
