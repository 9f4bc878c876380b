# SPDX-License-Identifier: Apache-2.0
"""A committed repository with the small kernel, ready for its next release."""

from __future__ import annotations

from pathlib import Path

import small_kernel
from repositories import commit, edit, git
from small_kernel import KERNEL, PACKAGE

from kernelworks.cli import main

NAME = "scale-it"
CHANGELOG = f"{KERNEL}/CHANGELOG.md"
INIT = f"{PACKAGE}/__init__.py"
UNPUBLISHED = "# Changelog\n\n## 2.0 (not yet published)\n\n- `scale`\n"


def repository(root: Path) -> Path:
    """Nothing of it is released yet."""
    small_kernel.make(root)
    (root / CHANGELOG).write_text(UNPUBLISHED)
    (root / ".gitignore").write_text("kernels/*/build/\nkernels/*/.build/\n")
    git(root, "init", "--quiet")
    for key, value in (("user.name", "test"), ("user.email", "test@localhost")):
        git(root, "config", key, value)
    commit(root, "scale-it")
    return root


def change(root: Path, path: str, old: str, new: str) -> None:
    """Commit a change of a file, with a line about it in the changelog."""
    edit(root / path, old, new)
    changelog = root / CHANGELOG
    text = changelog.read_text()
    if "(not yet published)" not in text:
        head, _, rest = text.partition("## ")
        version, number = rest.split()[0].split(".")
        entry = f"## {version}.{int(number) + 1} (not yet published)\n\n- another {new!r}\n\n"
        changelog.write_text(f"{head}{entry}## {rest}")
    commit(root, "a change")


def release(root: Path, *words: str) -> int:
    """Run `kernelworks release`."""
    return main(["release", NAME, "--root", str(root), *words])
