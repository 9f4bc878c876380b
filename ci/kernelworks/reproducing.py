# SPDX-License-Identifier: Apache-2.0
"""Compiles a build a second time, in a folder that knows nothing of the first, and compares bit for bit."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from elftools.elf.elffile import ELFFile

from kernelworks.compiling import compile_build
from kernelworks.errors import BuildError
from kernelworks.ninja_file import EXTENSION
from kernelworks.plan import Build

NOT_COPIED = shutil.ignore_patterns("build", ".build", "__pycache__")

HINT = "; a __global__ function in an anonymous namespace has a name that tells where its source lies"


def check(build: Build, jobs: int | None) -> None:
    """An error that names what differs, where the compiled extension of `build` cannot be made again."""
    kernel = build.kernel
    print(f"{kernel.name} {build.variant}: a second time, elsewhere")
    with tempfile.TemporaryDirectory(prefix="kernelworks-again-") as folder:
        # As deep as the first, and under another path: a name that gets into the binary shows.
        directory = Path(folder) / "kernels" / kernel.name
        shutil.copytree(kernel.directory, directory, ignore=NOT_COPIED)
        again = replace(build, kernel=replace(kernel, directory=directory))
        again.directory.mkdir(parents=True)
        compile_build(again, jobs, verbose=False)
        found = difference(build.directory / EXTENSION, again.directory / EXTENSION)
    if found:
        raise BuildError(
            f"kernels/{kernel.name} {build.variant} is not the same when it is built again: {found}"
        )
    print(f"{kernel.name} {build.variant}: the same, bit for bit")


def difference(one: Path, other: Path) -> str | None:
    """Which sections of two shared libraries differ, or None where no byte does."""
    if one.read_bytes() == other.read_bytes():
        return None
    sections = [_sections(path) for path in (one, other)]
    names = sorted(
        name for name in {*sections[0], *sections[1]} if sections[0].get(name) != sections[1].get(name)
    )
    if not names:
        return "bytes outside of all sections differ"
    return f"sections {', '.join(names)} differ" + (HINT if ".nv_fatbin" in names else "")


def _sections(path: Path) -> dict[str, bytes]:
    with path.open("rb") as stream:
        return {
            each.name: b"" if each["sh_type"] == "SHT_NOBITS" else each.data()
            for each in ELFFile(stream).iter_sections()
        }
