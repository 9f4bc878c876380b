# SPDX-License-Identifier: Apache-2.0
"""What kernel-builder takes of a kernel's directory, and nothing else, told from build.toml alone.

Its rule, in words: build.toml; what the `src` of [torch] and of every [kernel.NAME] lists, for all backends,
and of a folder all that is in it; and under torch-ext/ and tests/ the files whose extension is in `pyext`.
Nothing from outside of the directory, and nothing that git does not track.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import tomlkit


def source_set(directory: Path) -> list[str]:
    """The paths, relative to the kernel's directory; one that is listed and not there is an error."""
    document = tomlkit.parse((directory / "build.toml").read_text()).unwrap()
    torch, components = document["torch"], document["kernel"].values()
    listed = ["build.toml", *torch["src"], *(path for each in components for path in each["src"])]
    suffixes = tuple(f".{extension}" for extension in torch.get("pyext", ("py", "pyi")))
    found = {path for name in listed for path in _files(directory, name)}
    found |= {
        path
        for room in ("torch-ext", "tests")
        if (directory / room).is_dir()
        for path in _files(directory, room)
        if path.endswith(suffixes)
    }
    return sorted(found)


def _files(directory: Path, name: str) -> Iterator[str]:
    path = directory / name
    if not path.resolve().is_relative_to(directory.resolve()):
        raise ValueError(f"{name} is outside of {directory}")
    if path.is_dir():
        for below in path.iterdir():
            yield from _files(directory, f"{name}/{below.name}")
    elif path.is_file():
        yield name
    else:
        raise FileNotFoundError(path)


def tracked(directory: Path) -> set[str]:
    """The paths that git knows; a flake in a repository is made of these."""
    words = ["git", "-C", str(directory), "ls-files", "-z"]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return set(listed.split("\0")) - {""}


def copy(directory: Path, target: Path) -> Path:
    """Lay the source set, and only it, into a new folder."""
    for name in source_set(directory):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(directory / name, target / name)
    return target
