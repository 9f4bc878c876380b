# SPDX-License-Identifier: Apache-2.0
"""Checks of which files a kernel has, and of what build.toml says about them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kernelworks import vendoring
from kernelworks.catalog import Kernel
from kernelworks.errors import VendorError
from kernelworks.finding import Finding

SOURCE_SUFFIXES = frozenset({".h", ".hpp", ".hh", ".cuh", ".inl", ".inc", ".c", ".cc", ".cpp", ".cxx", ".cu"})
SOURCE_FOLDERS = ("kernel_src", "torch-ext")
# Every room of a kernel, and what it is for; a pattern asks for at least one file.
ROOMS = {
    "CARD.md": "it becomes the README of the kernel on the Hub",
    "CHANGELOG.md": "it says what each version changed",
    "tests/test_*.py": "a kernel without tests is not published",
    "benchmarks/benchmark_*.py": "it shows what the kernel is worth",
}


def sources(kernel: Kernel) -> list[Path]:
    """Every C++ and CUDA file of a kernel, vendored ones included."""
    return sorted(
        path
        for folder in SOURCE_FOLDERS
        for path in (kernel.directory / folder).rglob("*")
        if path.suffix in SOURCE_SUFFIXES and path.is_file()
    )


def names_agree(kernel: Kernel) -> Iterator[Finding]:
    """One name in build.toml, in the Python package and on the Hub."""
    manifest = kernel.directory / "build.toml"
    owner, _, tail = kernel.repo_id.rpartition("/")
    if not owner or tail.replace("-", "_") != kernel.python_name:
        yield Finding(
            manifest,
            f"repo-id {kernel.repo_id!r} does not end in the kernel's name",
            f"write {owner or tail}/{kernel.name}",
        )
    if not (kernel.package / "__init__.py").is_file():
        others = sorted(path.parent.name for path in (kernel.directory / "torch-ext").glob("*/__init__.py"))
        found = f", only {', '.join(others)}" if others else ""
        yield Finding(
            kernel.directory / "torch-ext",
            f"has no package {kernel.python_name!r}{found}",
            f"put the Python files in torch-ext/{kernel.python_name}/",
        )
    if (inner := kernel.package / kernel.python_name).exists():
        yield Finding(inner, "has the package's own name, which the builder refuses", "rename it")


def files_are_listed(kernel: Kernel) -> Iterator[Finding]:
    """kernel-builder leaves out, without a word, a header that no `src` lists."""
    manifest = kernel.directory / "build.toml"
    for entry in kernel.listed:
        path = kernel.directory / entry
        is_vendored = entry.startswith(vendoring.FOLDERS)  # those are compared with common/ below
        if not is_vendored and not path.exists() and not path.is_symlink():
            yield Finding(manifest, f"lists {entry}, which does not exist", "create it or remove the entry")
    for path in sources(kernel):
        relative = path.relative_to(kernel.directory)
        if not any(str(place) in kernel.listed for place in (relative, *relative.parents)):
            yield Finding(
                path, "is in no `src` of build.toml, so kernel-builder leaves it out", "list it, or remove it"
            )


def files_are_real(kernel: Kernel) -> Iterator[Finding]:
    """A link points at nothing once kernel-builder has copied it; a listed path must not lead through one."""
    inside = kernel.directory.resolve()
    for entry in kernel.listed:
        path = kernel.directory / entry
        if path.is_symlink() or not path.resolve().is_relative_to(inside / Path(entry).parts[0]):
            yield Finding(
                path,
                "is a symbolic link or behind one, which dangles in kernel-builder's copy",
                "put the file itself here; a shared header goes to common/ and is vendored",
            )


def vendored_are_equal(kernel: Kernel) -> Iterator[Finding]:
    """The vendored files are those of common/, byte for byte."""
    try:
        differences = vendoring.differences(kernel, kernel.directory.parent.parent)
    except VendorError as error:
        what = str(error).removeprefix(f"kernels/{kernel.name}/build.toml ")
        yield Finding(kernel.directory / "build.toml", what, "add the header to common/, or unlist it")
        return
    for difference in differences:
        is_unlisted = difference.content is None and difference.path.suffix in SOURCE_SUFFIXES
        if not is_unlisted:  # which is said elsewhere
            yield Finding(difference.path, difference.what, "run `kernelworks vendor`")


def rooms_exist(kernel: Kernel) -> Iterator[Finding]:
    """Card, changelog, tests and benchmark are there, and the licence is named."""
    for pattern, reason in ROOMS.items():
        if not any(kernel.directory.glob(pattern)):
            yield Finding(kernel.directory / pattern, "is missing", f"write it: {reason}")
    if not kernel.license.strip():
        yield Finding(kernel.directory / "build.toml", "names no license", 'write license = "Apache-2.0"')
