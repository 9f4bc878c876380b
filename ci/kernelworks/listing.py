# SPDX-License-Identifier: Apache-2.0
"""`kernelworks list`: the kernels, what is built of each, and which build this machine loads."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kernelworks import catalog, loader, official
from kernelworks.catalog import Kernel


@dataclass(frozen=True)
class Row:
    """One line of the table, all of it as it is shown."""

    kernel: str
    version: str
    variant: str
    profile: str
    archs: str
    commit: str
    here: str  # what this machine's loader does with it


def rows(kernel: Kernel) -> Iterator[Row]:
    """A row for each variant of a kernel, or one that says how to get one."""
    version = str(kernel.version)
    decisions = loader.decisions(kernel)
    if not decisions:
        yield Row(kernel.name, version, "-", "-", "-", "-", f"run kernelworks build {kernel.name}")
    for decision in decisions:
        metadata = official.metadata_of(kernel.directory / "build" / decision.variant) or {}
        yield Row(
            kernel.name,
            str(metadata.get("version", "-")),
            decision.variant,
            str(_at(metadata, "kernelworks", "profile") or "-"),
            " ".join(_at(metadata, "backend", "archs") or ()) or "-",
            _commit(_at(metadata, "provenance", "kernel")),
            decision.verdict,
        )


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `kernelworks list`."""
    parser = subparsers.add_parser(
        "list", help="show kernels, builds, and which of them this machine loads", description=__doc__
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="kernels (default: all)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the table: with colours for a person, as plain columns into a pipe or a narrow terminal."""
    root = catalog.root_of(arguments.root)
    found = [row for kernel in catalog.load_all(root, arguments.names) for row in rows(kernel)]
    show(found, Console())
    return 0


def show(found: Sequence[Row], console: Console) -> None:
    """Print the rows as this console has room for: a name broken over two lines cannot be copied."""
    shown = table(found)
    wide = console.options.update(width=10_000)
    if console.is_terminal and console.measure(shown, options=wide).maximum <= console.width:
        console.print(shown)
    else:
        console.print("\n".join(plain(found)), soft_wrap=True, highlight=False, markup=False)


def table(found: Sequence[Row]) -> Table:
    """The rows for a terminal."""
    result = Table(box=SIMPLE_HEAD, pad_edge=False)
    for field in fields(Row):
        result.add_column(field.name)
    for row in found:
        style = "bold" if row.here == loader.LOADED else "dim"
        result.add_row(*astuple(row), style=style)
    return result


def plain(found: Sequence[Row]) -> list[str]:
    """The rows for a pipe: one line each, whatever its length."""
    lines = [tuple(field.name for field in fields(Row)), *map(astuple, found)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]


def _at(metadata: Any, *keys: str) -> Any:
    """What lies behind these keys, or None where another builder wrote nothing."""
    for key in keys:
        metadata = metadata.get(key) if isinstance(metadata, dict) else None
    return metadata


def _commit(origin: Any) -> str:
    if not _at(origin, "commit"):
        return "-"
    return str(origin["commit"])[:12] + (" + changes" if origin.get("dirty") else "")
