# SPDX-License-Identifier: Apache-2.0
"""A progress bar for the upload of a commit, where a person looks on; one line where nobody does."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from huggingface_hub import get_session
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from kernelworks.sizes import human

WORTH_SHOWING = 1 << 20  # bytes; anything smaller is gone before it is seen
PIECE = 1 << 18


class Sent(Protocol):
    """What a commit sends of a file."""

    @property
    def content(self) -> Path | bytes | None: ...


@contextmanager
def upload_progress(edits: Sequence[Sent]) -> Iterator[None]:
    """Show how much of a commit's request has been sent.

    huggingface_hub has bars of its own for large files that go elsewhere (xet, LFS); files that travel inside
    the request have none, and on a Hub of one's own that is all of them.
    """
    total = sum(_size(edit.content) for edit in edits)
    if total < WORTH_SHOWING:
        yield
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        print(f"sending {human(total)}", file=sys.stderr)
        yield
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        hooks = get_session().event_hooks["request"]
        hook = _hook(progress)
        hooks.append(hook)
        try:
            yield
        finally:
            hooks.remove(hook)


def _size(content: Path | bytes | None) -> int:
    if content is None:
        return 0
    return content.stat().st_size if isinstance(content, Path) else len(content)


def _hook(progress: Progress) -> Any:
    """A hook of the HTTP client that makes the body of a large request report on itself."""

    def watch(request: Any) -> None:
        if "/commit/" not in str(request.url):
            return
        body = request.read()
        task = progress.add_task("sending", total=len(body))
        original = type(request.stream)

        class Watched(original):  # type: ignore[misc, valid-type]
            """The same body, in pieces that are counted as they are taken."""

            def __iter__(self) -> Iterator[bytes]:
                progress.reset(task, total=len(body))
                for start in range(0, len(body), PIECE):
                    piece = body[start : start + PIECE]
                    yield piece
                    progress.advance(task, len(piece))

        request.stream = Watched(body)

    return watch
