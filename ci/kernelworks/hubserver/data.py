# SPDX-License-Identifier: Apache-2.0
"""The data directory: looked over, and made ready, before the first request."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from filelock import FileLock

from kernelworks.errors import HostingError
from kernelworks.hubserver import documents
from kernelworks.hubserver.settings import Settings

MARKER = "hub.json"
SECRET_BYTES = 32
FREE_AT_LEAST = 1024**3
OVER_A_NETWORK = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "fuse.sshfs", "lustre", "gpfs", "beegfs")
)


@dataclass(frozen=True)
class Data:
    """A directory that is ready, and that no other server empties while this one lives."""

    settings: Settings
    free_bytes: int
    removed: int  # leftovers of uploads that a crash interrupted
    warnings: tuple[str, ...]
    lock: IO[bytes]


def prepare(root: Path, *, private: bool = False, public_url: str | None = None) -> Data:
    """Make the directory if it is not there, or check it; whatever is wrong is one sentence."""
    root = root.resolve()
    _check_place(root)
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Two servers that start at once must agree on one secret, and on who tidies up.
        with FileLock(root / "start.lock"):
            _check_format(root)
            settings = Settings(root, _secret(root / "secret"), private=private, public_url=public_url)
            settings.repositories.mkdir(exist_ok=True)
            settings.spool.mkdir(exist_ok=True)
            lock, alone = _lock(root / "serving.lock")
            removed = _tidy(settings.spool) if alone else 0
    except OSError as error:
        raise HostingError(
            f"--root {root}: cannot be written: {error.strerror} ({error.filename}); "
            "give this user the directory, or name another one"
        ) from error
    free = shutil.disk_usage(root).free
    return Data(settings, free, removed, tuple(_warnings(root, free)), lock)


def require(root: Path) -> Settings:
    """The settings of a data directory that must be there already, for commands beside the server."""
    root = root.resolve()
    if not (root / MARKER).is_file():
        raise HostingError(
            f"--root {root}: is not the data of a Hub; name the directory of `kernelworks hub serve`"
        )
    documents.read_json(root / MARKER, "hub")
    return Settings(root, b"")


def _check_place(root: Path) -> None:
    if root.exists() and not root.is_dir():
        raise HostingError(f"--root {root}: is not a directory; name one, or a new one")
    for above in root.parents:
        if (above / MARKER).is_file():
            raise HostingError(f"--root {root}: lies in the data of another Hub, {above}; name another place")
        if (above / "HEAD").is_file() and (above / "objects").is_dir() and (above / "refs").is_dir():
            raise HostingError(f"--root {root}: lies inside a git repository, {above}; name another place")


def _check_format(root: Path) -> None:
    """Data of a newer format is refused: this program would not keep what it does not know."""
    marker = root / MARKER
    if marker.exists():
        documents.read_json(marker, "hub")
        return
    strangers = {path.name for path in root.iterdir()} - {"start.lock", "lost+found"}
    if strangers:
        raise HostingError(
            f"--root {root}: is not the data of a Hub and holds {min(strangers)}; name an empty or a new one"
        )
    documents.write_json(marker, {"hub": "data of `kernelworks hub serve`"})


def _secret(path: Path) -> bytes:
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
            os.fsync(file.fileno())
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise HostingError(f"{path}: others may read what signs uploads; run `chmod 600 {path}` first")
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise HostingError(f"{path}: is damaged; remove it, and the next start makes a new one")
    return secret


def _lock(path: Path) -> tuple[IO[bytes], bool]:
    """A lock that every server on this directory shares, and whether this is the only one."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        alone = True
    except BlockingIOError:
        alone = False
    fcntl.flock(file, fcntl.LOCK_SH)
    return file, alone


def _tidy(spool: Path) -> int:
    """Remove what uploads left there that no process is working on any more."""
    leftovers = list(spool.iterdir())
    for path in leftovers:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    return len(leftovers)


def _warnings(root: Path, free: int) -> Iterator[str]:
    system = file_system(root)
    if system in OVER_A_NETWORK:
        yield (
            f"{root} is on {system}, where locks may not hold between machines; "
            "use a local disk, or let one server alone use it"
        )
    if free < FREE_AT_LEAST:
        yield f"{root} has {free / 1024**2:.0f} MiB free; uploads are refused when it is full"


def file_system(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """The type of the file system that a path is on, where the system says so (Linux)."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return None
    # A later mount hides an earlier one of the same place.
    types = {Path(words[1].encode().decode("unicode_escape")): words[2] for words in lines}
    return next((types[place] for place in (path, *path.parents) if place in types), None)
