# SPDX-License-Identifier: Apache-2.0
"""What the pages show of a repository: its versions, their variants, and the lines that load one."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kernelworks.hubserver.cards import Card, card
from kernelworks.hubserver.failures import Failure
from kernelworks.hubserver.names import DEFAULT_BRANCH
from kernelworks.hubserver.store import Commit, Repository

METADATA_BYTES = 1024 * 1024
_VERSION = re.compile(r"v([1-9][0-9]{0,8}|0)")


@dataclass(frozen=True)
class Variant:
    """One built directory of a version."""

    name: str
    size: int
    backend: str | None = None
    archs: tuple[str, ...] = ()
    profile: str | None = None
    source: str | None = None  # the commit that it was built from


@dataclass(frozen=True)
class Version:
    """One version branch as it stands."""

    branch: str
    number: int
    commit: Commit
    variants: tuple[Variant, ...]

    @property
    def backends(self) -> list[str]:
        """The backends that it was built for."""
        return sorted({variant.backend for variant in self.variants if variant.backend})


@dataclass(frozen=True)
class Row:
    """A repository in the index."""

    repo: str
    newest: Version | None
    private: bool
    trusted: bool

    @property
    def org(self) -> str:
        """The part before the slash."""
        return self.repo.partition("/")[0]

    @property
    def name(self) -> str:
        """The part behind it."""
        return self.repo.partition("/")[2]


@dataclass(frozen=True)
class Page(Row):
    """A repository on its own page."""

    versions: tuple[Version, ...] = ()
    card: Card | None = None
    snippet: str | None = None


def page(repository: Repository, *, private: bool, trusted: bool, endpoint: str) -> Page:
    """Everything on the page of a repository."""
    found = versions(repository)
    newest = found[0] if found else None
    return Page(
        repository.id,
        newest,
        private,
        trusted,
        versions=found,
        card=_card(repository),
        snippet=snippet(repository.id, newest.number, endpoint, trusted=trusted) if newest else None,
    )


def versions(repository: Repository) -> tuple[Version, ...]:
    """The versions, newest first."""
    numbers = {
        int(match[1]): ref
        for ref in repository.refs()
        if ref.ref.startswith("refs/heads/") and (match := _VERSION.fullmatch(ref.name))
    }
    return tuple(
        Version(
            ref.name,
            number,
            repository.commit(ref.commit),
            _variants(repository.git, repository.id, ref.commit),
        )
        for number, ref in sorted(numbers.items(), reverse=True)
    )


def snippet(repo_id: str, version: int, endpoint: str, *, trusted: bool) -> str:
    """Lines that load a kernel from this Hub in a process that has not imported `kernels` yet."""
    name = re.sub(r"\W", "_", repo_id.partition("/")[2])
    trust = "" if trusted else f', trust_remote_code=["{repo_id}"]'
    return (
        "import os\n\n"
        f'os.environ["HF_ENDPOINT"] = {json.dumps(endpoint)}  # before the next import\n'
        "from kernels import get_kernel\n\n"
        f'{name} = get_kernel("{repo_id}", version={version}{trust})'
    )


@lru_cache(maxsize=1024)
def _variants(git: Path, repo_id: str, commit: str) -> tuple[Variant, ...]:
    """The variants of a commit, which never change."""
    repository = Repository(repo_id, git)
    sizes: dict[str, int] = defaultdict(int)
    for entry in repository.listing(commit).files.values():
        folder, _, rest = entry.path.partition("/")
        if folder == "build" and "/" in rest:
            sizes[rest.partition("/")[0]] += entry.size
    return tuple(
        variant(name, size, _metadata(repository, commit, f"build/{name}/metadata.json"))
        for name, size in sorted(sizes.items())
    )


def variant(name: str, size: int, metadata: Any) -> Variant:
    """A variant as its metadata describes it; other builders may have written less."""
    backend, built = _table(metadata, "backend"), _table(metadata, "kernelworks")
    source = _table(_table(metadata, "provenance"), "kernel")
    archs = backend.get("archs")
    commit = _text(source.get("commit"))
    return Variant(
        name,
        size,
        backend=_text(backend.get("type")),
        archs=tuple(arch for arch in archs if isinstance(arch, str)) if isinstance(archs, list) else (),
        profile=_text(built.get("profile")),
        source=commit and commit[:12] + (" + changes" if source.get("dirty") else ""),
    )


def _metadata(repository: Repository, commit: str, path: str) -> Any:
    entry = repository.listing(commit).entries.get(path)
    if entry is None or entry.size > METADATA_BYTES:
        return None
    try:
        return json.loads(repository.read(commit, path))
    except (Failure, ValueError, RecursionError):
        return None


def _card(repository: Repository) -> Card | None:
    files = f"/kernels/{repository.id}/resolve/{DEFAULT_BRANCH}/"
    try:
        return card(repository.read(DEFAULT_BRANCH, "README.md"), files)
    except Failure:
        return None


def _table(metadata: Any, key: str) -> dict[str, Any]:
    found = metadata.get(key) if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
