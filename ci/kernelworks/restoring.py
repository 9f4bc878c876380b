# SPDX-License-Identifier: Apache-2.0
"""Makes a branch's content equal to an earlier commit's by a new commit: history is never rewritten."""

from __future__ import annotations

from collections.abc import Mapping

from kernelworks.hub import Hub
from kernelworks.hub_data import Edit, RemoteFile

RESTORED = ("build/", "benchmarks/")  # all that a release consists of


def edits(now: Mapping[str, RemoteFile], then: Mapping[str, RemoteFile], commit: str) -> tuple[Edit, ...]:
    """What turns one tree into the other; contents are copied on the Hub, and not sent again."""
    back = [
        Edit(path, from_commit=commit)
        for path, file in then.items()
        if path not in now or now[path].identity != file.identity
    ]
    gone = [Edit(path) for path in now if path not in then]
    return tuple(sorted((*back, *gone), key=lambda edit: edit.path))


def content_of(tree: Mapping[str, RemoteFile]) -> dict[str, RemoteFile]:
    """The part of a tree that a release consists of."""
    return {path: file for path, file in tree.items() if path.startswith(RESTORED)}


def is_equal(one: Mapping[str, RemoteFile], other: Mapping[str, RemoteFile]) -> bool:
    """Whether two trees hold the same release."""
    return {path: file.identity for path, file in content_of(one).items()} == {
        path: file.identity for path, file in content_of(other).items()
    }


def restore(
    hub: Hub,
    repo_id: str,
    branch: str,
    tip: str,
    target: str,
    *,
    title: str,
    description: str,
    whole: bool = False,
) -> str:
    """Commit the release that `target` holds, or its whole tree, on top of `tip`; return the new commit."""
    now, then = hub.tree(repo_id, tip), hub.tree(repo_id, target)
    wanted = edits(now, then, target) if whole else edits(content_of(now), content_of(then), target)
    if not wanted:
        return tip
    landed = hub.commit(repo_id, branch, wanted, parent=tip, title=title, description=description)
    return landed.commit
