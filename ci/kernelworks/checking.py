# SPDX-License-Identifier: Apache-2.0
"""`kernelworks check`: says, without building, what is wrong with a kernel's sources and with its build."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from kernelworks import (
    catalog,
    checks_build,
    checks_cpp,
    checks_docs,
    checks_layout,
    checks_python,
)
from kernelworks.catalog import Kernel
from kernelworks.errors import ManifestError
from kernelworks.finding import Finding

Check = Callable[[Kernel], Iterable[Finding]]

CHECKS: tuple[Check, ...] = (
    checks_layout.names_agree,
    checks_layout.files_are_listed,
    checks_layout.files_are_real,
    checks_layout.vendored_are_equal,
    checks_layout.rooms_exist,
    checks_cpp.includes_go_one_way,
    checks_cpp.no_macros,
    checks_cpp.launches_are_checked,
    checks_python.files_parse,
    checks_python.all_is_true,
    checks_python.ops_are_namespaced,
    checks_python.imports_are_allowed,
    checks_docs.versions_agree,
    checks_docs.changelog_is_current,
    checks_docs.card_is_complete,
    checks_build.variants_are_sound,
)
FOUND = 8  # the exit code when there is a finding


@dataclass(frozen=True)
class Report:
    """What was found in a repository, and a line for each kernel in which nothing was."""

    findings: tuple[Finding, ...]
    clean: tuple[str, ...]


def report(root: Path, names: Iterable[str] = ()) -> Report:
    """Check the shared headers and the kernels of these names, or all of them when no name is given."""
    found = findings_of_common(root)
    clean = []
    for name in list(dict.fromkeys(names)) or catalog.names(root):
        try:
            kernel = catalog.load(root, name)
        except ManifestError as error:
            found.append(_from_manifest(root, error))
            continue
        of_kernel = findings(kernel)
        found += of_kernel
        if not of_kernel:
            clean.append(summary(kernel))
    return Report(tuple(found), tuple(clean))


def findings(kernel: Kernel) -> list[Finding]:
    """Everything that is wrong with one kernel, each thing once."""
    return list(dict.fromkeys(finding for check in CHECKS for finding in check(kernel)))


def findings_of_common(root: Path) -> list[Finding]:
    """What is wrong with the shared headers, which every kernel gets a copy of."""
    headers = [path for path in (root / "common").rglob("*") if path.suffix in checks_layout.SOURCE_SUFFIXES]
    return list(checks_cpp.macros_in(sorted(headers)))


def summary(kernel: Kernel) -> str:
    """One line on a kernel in which nothing was found."""
    parts = (
        _count(len(kernel.listed), "listed source"),
        _count(len(checks_python.package_files(kernel)), "Python file"),
        _count(len(checks_build.variants(kernel)), "built variant"),
    )
    return f"{kernel.name} version {kernel.version}: {', '.join(parts)}; nothing to say"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `kernelworks check`."""
    parser = subparsers.add_parser(
        "check",
        help="say what is wrong with a kernel's directory, without building",
        description=__doc__,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="kernels (default: all)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each finding, and for each clean kernel what was checked."""
    root = catalog.root_of(arguments.root)
    result = report(root, arguments.names)
    for line in (*result.clean, *(finding.line(root) for finding in result.findings)):
        print(line)
    if not result.findings:
        return 0
    print(f"error: {_count(len(result.findings), 'finding')}", file=sys.stderr)
    return FOUND


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _from_manifest(root: Path, error: ManifestError) -> Finding:
    """The catalog's sentence is `file: what` or `file: what; what to do`."""
    path, _, sentence = str(error).partition(": ")
    what, _, fix = sentence.rpartition("; ") if "; " in sentence else (sentence, "", "")
    return Finding(root / path, what, fix or "correct it; the manifest is read before all else")
