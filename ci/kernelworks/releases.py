# SPDX-License-Identifier: Apache-2.0
"""Releases: the tags v<version>.<number> on a version's branch, and what their commits say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from kernelworks.hub_data import Commit, Refs

TAG = re.compile(r"v(0|[1-9]\d*)\.(0|[1-9]\d*)")
BRANCH = re.compile(r"v(0|[1-9]\d*)")
SOURCE, VARIANTS = "Source", "Variants"


@dataclass(frozen=True)
class Release:
    """One publication of a version."""

    tag: str
    number: int
    commit: str
    date: datetime | None = None
    source: str = "-"  # the commit of the sources, as the release's own commit says
    variants: tuple[str, ...] = ()


def branch_of(version: int) -> str:
    """The branch that `get_kernel(version=...)` asks for."""
    return f"v{version}"


def version_of(branch: str) -> int | None:
    """The version that a branch serves, or None for any other branch."""
    match = BRANCH.fullmatch(branch)
    return int(match[1]) if match else None


def tag_of(version: int, number: int) -> str:
    """The name of a release."""
    return f"v{version}.{number}"


def versions(refs: Refs) -> list[int]:
    """Every version that a client can ask for."""
    return sorted(version for branch in refs.branches if (version := version_of(branch)) is not None)


def of_version(refs: Refs, version: int, history: Iterable[Commit] = ()) -> list[Release]:
    """The releases of a version, oldest first; dates and sources of those whose commit is in `history`."""
    commits = {commit.id: commit for commit in history}
    found = []
    for tag, commit_id in refs.tags.items():
        match = TAG.fullmatch(tag)
        if match is None or int(match[1]) != version:
            continue
        commit = commits.get(commit_id)
        said = fields(commit.description) if commit else {}
        found.append(
            Release(
                tag=tag,
                number=int(match[2]),
                commit=commit_id,
                date=commit.date if commit else None,
                source=said.get(SOURCE, "-"),
                variants=tuple(said.get(VARIANTS, "").split()),
            )
        )
    return sorted(found, key=lambda release: release.number)


def at(releases: Sequence[Release], commit: str) -> Release | None:
    """The newest release that is at this very commit."""
    return next((each for each in reversed(releases) if each.commit == commit), None)


def description(source: str, variants: Iterable[str]) -> str:
    """What a release's commit says for `fields` to read."""
    return f"{SOURCE}: {source}\n{VARIANTS}: {' '.join(variants)}"


def fields(text: str) -> dict[str, str]:
    """The `Key: value` lines of a commit's description."""
    return {match[1]: match[2].strip() for match in re.finditer(r"^(\w+): (.*)$", text, re.MULTILINE)}
