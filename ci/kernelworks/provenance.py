# SPDX-License-Identifier: Apache-2.0
"""Which commit a build came from, and whether the tree had changes on top of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kernelworks.errors import ToolchainError
from kernelworks.process import run


@dataclass(frozen=True)
class Origin:
    """The state of the repository, or why it is not known."""

    commit: str | None
    dirty: bool
    note: str | None = None  # says why when `commit` is None

    def __str__(self) -> str:
        if self.commit is None:
            return f"commit unknown ({self.note})"
        return f"commit {self.commit[:12]}{' with uncommitted changes' if self.dirty else ''}"


def origin_of(root: Path) -> Origin:
    """The commit of the repository at `root`; files that git does not track do not make it dirty."""
    try:
        top = run(["git", "rev-parse", "--show-toplevel"], cwd=root)
    except ToolchainError:
        return Origin(None, False, "git is not installed")
    if top.returncode != 0:
        return Origin(None, False, _reason(top.stderr))
    # An unpacked archive inside somebody else's repository must not take that one's commit for its own.
    if Path(top.stdout.strip()).resolve() != root.resolve():
        return Origin(None, False, f"{root.name} is not the top of a git repository")
    head = run(["git", "rev-parse", "--verify", "HEAD"], cwd=root)
    if head.returncode != 0:
        return Origin(None, False, "the git repository has no commit yet")
    # --no-optional-locks: a build must not fight an editor or a commit over the index.
    status = run(
        [
            "git",
            "--no-optional-locks",
            "status",
            "--porcelain",
            "--untracked-files=no",
            "--ignore-submodules",
        ],
        cwd=root,
    )
    if status.returncode != 0:
        return Origin(None, False, _reason(status.stderr))
    return Origin(head.stdout.strip(), bool(status.stdout.strip()))


def _reason(stderr: str) -> str:
    lines = stderr.strip().splitlines() or ["git failed"]
    return "not a git repository" if "not a git repository" in lines[0] else lines[0].removeprefix("fatal: ")


def untracked(root: Path, paths: Iterable[Path]) -> list[str]:
    """Those of `paths` that no commit can hold, because git does not track them."""
    names = [str(path.relative_to(root)) for path in paths]
    tracked = run(["git", "ls-files", "-z", "--", *names], cwd=root)
    known = set(tracked.stdout.split("\0"))
    return [name for name in names if name not in known]
