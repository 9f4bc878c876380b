# SPDX-License-Identifier: Apache-2.0
"""Makes, changes and uses repositories around the toy kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

TOY = Path(__file__).parent / "toy"
GIT = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "init.defaultBranch=main"]
CPU_VARIANT = "torch-stable-abi211-cpu-x86_64-linux"


def git(root: Path, *arguments: str) -> str:
    """Run git in `root` and return what it prints."""
    done = subprocess.run([*GIT, *arguments], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def new_repository(root: Path) -> Path:
    """A committed repository with the toy kernel in it."""
    shutil.copytree(
        TOY, root / "kernels/toy", ignore=shutil.ignore_patterns("build", ".build", "__pycache__")
    )
    (root / "common").mkdir()
    shutil.copyfile(TOY / "kernel_src/vendor/factor.h", root / "common/factor.h")
    (root / ".gitignore").write_text("kernels/*/build/\nkernels/*/.build/\n")
    git(root, "init", "--quiet")
    commit(root, "toy")
    return root


def commit(root: Path, message: str) -> None:
    """Commit everything."""
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", message)


def edit(path: Path, old: str, new: str) -> None:
    """Replace a text, which must be there, in a file."""
    text = path.read_text()
    assert old in text, f"{old!r} is not in {path}"
    path.write_text(text.replace(old, new))


def variant(root: Path, backend: str = "cpu") -> Path:
    """The one variant of the toy that was built for `backend`."""
    (found,) = (root / "kernels/toy/build").glob(f"*-{backend}*-linux")
    return found


def python(code: str, *arguments: str, cwd: Path, **environment: str) -> str:
    """Run `code` in a fresh Python, which has not loaded the kernels of other tests."""
    clean = {name: value for name, value in os.environ.items() if name != "LOCAL_KERNELS"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
