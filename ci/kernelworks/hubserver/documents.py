# SPDX-License-Identifier: Apache-2.0
"""Small JSON files that commands write while servers read them: replaced whole, read when changed."""

from __future__ import annotations

import json
import logging
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from kernelworks.errors import HostingError
from kernelworks.hubserver import durable

LOG = logging.getLogger("kernelworks.hub")
FORMAT = 1

T = TypeVar("T")


class Reread(Generic[T]):
    """What a small file says, read again whenever the file is another one."""

    def __init__(self, path: Path, read: Callable[[Path], T]) -> None:
        self.path, self.read = path, read
        # Set together: of two threads that read at once, the later one may have the older content.
        self._kept: tuple[tuple[int, ...], T] | None = None
        self._complaint = ""

    def get(self) -> T:
        """The content now; a file that cannot be read raises each time it is asked for."""
        stamp, kept = self._now(), self._kept
        if kept is None or kept[0] != stamp:
            kept = self._kept = (stamp, self.read(self.path))
        return kept[1]

    def get_or(self, safe: T) -> T:
        """The content now, or the safe side where somebody damaged the file under a running server."""
        try:
            value = self.get()
        except HostingError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                LOG.error("taken for empty until it is mended: %s", error)
            return safe
        self._complaint = ""
        return value

    def _now(self) -> tuple[int, ...]:
        try:
            found = self.path.stat()
        except OSError:
            return ()
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode


def read_json(path: Path, key: str) -> dict[str, Any]:
    """A JSON file of ours with this key, or one sentence about why it is not."""
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise HostingError(
            f"{path}: cannot be read: {error.strerror}; check its name and its owner"
        ) from error
    except ValueError as error:
        raise HostingError(f"{path}: is not JSON ({error}); mend it, or remove it and begin anew") from error
    if not isinstance(document, dict) or key not in document:
        raise HostingError(f"{path}: has no {key!r}; it is not a file of this kind, or damaged")
    if document.get("format") != FORMAT:
        raise HostingError(
            f"{path}: is of format {document.get('format')!r}, and this kernelworks reads format {FORMAT}; "
            "use the kernelworks that wrote it, or a newer one"
        )
    return document


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Replace a file as a whole, readable by its owner; its mode and owner stay if it was there."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump({"format": FORMAT, **document}, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        _keep_access(path, temporary)
        temporary.replace(path)
        durable.sync(path.parent)  # a token that was revoked must not be back after a power cut
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _keep_access(path: Path, temporary: Path) -> None:
    """An administrator who adds a token must not take the file away from the service that reads it."""
    if path.exists():
        before = path.stat()
        os.chmod(temporary, stat.S_IMODE(before.st_mode))
        if (before.st_uid, before.st_gid) != (os.getuid(), os.getgid()):
            os.chown(temporary, before.st_uid, before.st_gid)
