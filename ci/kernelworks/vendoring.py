# SPDX-License-Identifier: Apache-2.0
"""Copies the shared files of common/ into the kernels.

kernel-builder takes only files that lie inside a kernel's directory, so a kernel carries byte-for-byte
copies: of the headers that a `src` of build.toml lists, and of every Python file of common/package/ and
common/tests/.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernelworks import catalog
from kernelworks.catalog import Kernel
from kernelworks.errors import VendorError

FOLDERS = ("kernel_src/vendor", "torch-ext/vendor")  # for headers


@dataclass(frozen=True)
class Difference:
    """One vendored file that is not as it should be."""

    path: Path
    what: str
    content: bytes | None  # what belongs there; None for a file that belongs nowhere


def differences(kernel: Kernel, root: Path) -> list[Difference]:
    """Everything in the kernel's vendor folders that differs from what build.toml and common/ say."""
    wanted = dict([*_headers(kernel, root), *_python_files(kernel, root)])
    found = [_compare(path, content) for path, content in wanted.items()]
    places = [(kernel.directory / folder, "is not in a `src` list of build.toml") for folder in FOLDERS]
    places += [(folder, "has no original in common/") for folder in python_folders(kernel).values()]
    for folder, what in places:
        for path in sorted(folder.rglob("*")):
            if not path.is_dir() and path not in wanted and "__pycache__" not in path.parts:
                found.append(Difference(path, what, None))
    return [difference for difference in found if difference is not None]


def python_folders(kernel: Kernel) -> dict[str, Path]:
    """Where a kernel has its copies of the Python files, by the name of their folder in common/."""
    return {"package": kernel.package / "vendor", "tests": kernel.directory / "tests/vendor"}


def _python_files(kernel: Kernel, root: Path) -> Iterator[tuple[Path, bytes]]:
    for name, folder in python_folders(kernel).items():
        for original in sorted((root / "common" / name).glob("*.py")):
            yield folder / original.name, original.read_bytes()


def _headers(kernel: Kernel, root: Path) -> Iterator[tuple[Path, bytes]]:
    for entry in kernel.listed:
        for folder in FOLDERS:
            if entry.startswith(folder + "/"):
                original = root / "common" / entry.removeprefix(folder + "/")
                try:
                    yield kernel.directory / entry, original.read_bytes()
                except OSError as error:
                    raise VendorError(
                        f"kernels/{kernel.name}/build.toml lists {entry}, but there is no "
                        f"{original.relative_to(root)} to copy"
                    ) from error


def _compare(path: Path, content: bytes) -> Difference | None:
    if path.is_symlink():
        return Difference(path, "is a symbolic link, which kernel-builder does not follow", content)
    if not path.exists():
        return Difference(path, "is missing", content)
    if path.read_bytes() != content:
        return Difference(path, "differs from its original in common/", content)
    return None


def apply(found: list[Difference]) -> None:
    """Write and remove what differs; equal files keep their dates, so nothing is compiled again."""
    for difference in found:
        if difference.content is None or difference.path.is_symlink():
            difference.path.unlink()
        if difference.content is not None:
            difference.path.parent.mkdir(parents=True, exist_ok=True)
            difference.path.write_bytes(difference.content)


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `kernelworks vendor`."""
    parser = subparsers.add_parser(
        "vendor", help="copy shared headers and Python files into the kernels", description=__doc__
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="kernels (default: all)")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if anything would change")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Bring the vendor folders up to date, or with --check only say what is not."""
    root = catalog.root_of(arguments.root)
    kernels = catalog.load_all(root, arguments.names)
    found = [difference for kernel in kernels for difference in differences(kernel, root)]
    for difference in found:
        line = f"{difference.path.relative_to(root)} {difference.what}"
        print(line if arguments.check else f"{line}: {_action(difference)}")
    if not arguments.check:
        apply(found)
    elif found:
        print("error: run `kernelworks vendor` to bring these up to date", file=sys.stderr)
        return VendorError.exit_code
    return 0


def _action(difference: Difference) -> str:
    return "removed" if difference.content is None else "written"
