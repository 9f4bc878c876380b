# SPDX-License-Identifier: Apache-2.0
"""What one server is told when it starts: where its data lies, who may read, and how much it accepts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

MIB = 1024 * 1024


@dataclass(frozen=True)
class Limits:
    """How much one request may bring; more is refused with 413 before it fills the disk."""

    commit_bytes: int = 2048 * MIB  # the body of a commit, where files are base64: a third more than they are
    file_bytes: int = 1024 * MIB
    commit_files: int = 10_000
    json_bytes: int = 8 * MIB  # the body of every other request
    page_entries: int = 1000  # entries of one page of a listing; clients expect no more


@dataclass(frozen=True)
class Settings:
    """The choices of the operator; the layout of the data directory is here and nowhere else."""

    root: Path
    secret: bytes = field(repr=False)  # signs the addresses for uploads; whoever has it may upload
    private: bool = False  # nothing is readable without a token
    public_url: str | None = None  # what clients call this server; by default what their request says
    limits: Limits = field(default_factory=Limits)

    @property
    def repositories(self) -> Path:
        """`<org>/<name>.git`, and the large files beside it in `<org>/<name>.lfs`."""
        return self.root / "repos"

    @property
    def spool(self) -> Path:
        """Uploads in progress: on the same file system as the repositories, emptied at every start."""
        return self.root / "tmp"

    @property
    def organizations(self) -> Path:
        """Which organizations the operator trusts."""
        return self.root / "organizations.json"

    @property
    def commit_log(self) -> Path:
        """Who moved which branch to which commit; lines are only ever added."""
        return self.root / "commits.log"
