# SPDX-License-Identifier: Apache-2.0
"""Has files and their names survive a power cut: a file that was synced can still be in no folder."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Have a file's bytes, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """The same for all that a folder holds."""
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, where they are missing."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)
