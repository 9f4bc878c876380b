# SPDX-License-Identifier: Apache-2.0
"""What a check says: a file, what is wrong with it, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, order=True)
class Finding:
    """One thing that is wrong, on one line."""

    path: Path
    what: str
    fix: str

    def line(self, root: Path) -> str:
        """`file: what; what to do`, with the file as seen from the repository's root."""
        path = self.path.relative_to(root) if self.path.is_relative_to(root) else self.path
        return f"{path}: {self.what}; {self.fix}"
