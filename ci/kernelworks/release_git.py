# SPDX-License-Identifier: Apache-2.0
"""What a release asks of git and does with it: earlier tags, files at a tag, a commit, an annotated tag."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kernelworks.errors import ReleaseError
from kernelworks.process import run

# As a release's tag is written: the kernel's name, the version of build.toml, and a number from 0 up.
TAG = re.compile(r"(?P<kernel>[a-z][-a-z0-9]*[a-z0-9])-v(?P<version>0|[1-9]\d*)\.(?P<number>0|[1-9]\d*)")


@dataclass(frozen=True, order=True)
class Tag:
    """One release of a kernel; they are in order by version and number."""

    version: int
    number: int
    kernel: str

    def __str__(self) -> str:
        return f"{self.kernel}-v{self.version}.{self.number}"


def parse(text: str) -> Tag:
    """Read `rmsnorm-v1.4`."""
    match = TAG.fullmatch(text)
    if match is None:
        raise ReleaseError(
            f"{text!r} is no tag of a release; write NAME-v<version>.<number>, like rmsnorm-v1.4"
        )
    return Tag(int(match["version"]), int(match["number"]), match["kernel"])


def tags_of(root: Path, kernel: str) -> list[Tag]:
    """The releases of a kernel that this repository knows, oldest first."""
    listed = _git(root, "tag", "--list", f"{kernel}-v*").split()
    return sorted(tag for text in listed if TAG.fullmatch(text) and (tag := parse(text)).kernel == kernel)


def commit_of(root: Path, revision: str) -> str | None:
    """The commit behind a tag or a branch, or None where there is none."""
    done = run(["git", "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"], cwd=root)
    return done.stdout.strip() if done.returncode == 0 else None


def branch_of(root: Path) -> str | None:
    """The branch that is checked out; None where HEAD is a commit."""
    done = run(["git", "symbolic-ref", "--short", "--quiet", "HEAD"], cwd=root)
    return done.stdout.strip() or None


def file_at(root: Path, revision: str, path: str) -> str | None:
    """The text of a file in a commit, or None where it is not there."""
    done = run(["git", "show", f"{revision}:{path}"], cwd=root)
    return done.stdout if done.returncode == 0 else None


def is_same(root: Path, one: str, other: str, path: str) -> bool:
    """Whether a file or a folder is the same in two commits."""
    return _git(root, "rev-parse", f"{one}:{path}") == _git(root, "rev-parse", f"{other}:{path}")


def commit(root: Path, paths: Iterable[Path], message: str) -> None:
    """Commit these files, and nothing else that may be changed or staged."""
    names = [str(path.relative_to(root)) for path in paths]
    _git(root, "commit", "--quiet", "--message", message, "--only", "--", *names)


def tag(root: Path, name: str, message: str) -> None:
    """An annotated tag at HEAD; lines that begin with # stay."""
    _git(root, "tag", "--annotate", "--cleanup=verbatim", "--message", message, name)


def _git(root: Path, *words: str) -> str:
    done = run(["git", *words], cwd=root)
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise ReleaseError(f"git {words[0]} failed: {said.removeprefix('fatal: ')}")
    return done.stdout.strip()
