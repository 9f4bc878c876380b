# SPDX-License-Identifier: Apache-2.0
"""Checks of what a kernel's card, changelog and every example say about its version and license."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from kernelworks.catalog import Kernel
from kernelworks.finding import Finding

# Where a user may copy `version=N` from: in the repository, and in the kernel's own directory.
REPOSITORY_TEXTS = ("*.md", "docs/**/*.md", "examples/**/*.py", "examples/**/*.md", "skills/**/*.md")
KERNEL_TEXTS = ("*.md", "tests/**/*.py", "benchmarks/**/*.py")
TEMPLATED = "{{"  # kernel-builder fills a card in: a placeholder is right by construction
HEADING = re.compile(r"^##\s+\[?v?(\d+)(?:\.\d+)*\b", re.MULTILINE)


def versions_agree(kernel: Kernel) -> Iterator[Finding]:
    """A consumer pinned to another version would never get this one."""
    for path, text, match in versions_named(kernel):
        if int(match[1]) != kernel.version:
            line = text.count("\n", 0, match.end()) + 1
            yield Finding(
                path,
                f"says version={match[1]} at line {line}, but build.toml has version {kernel.version}",
                f"write version={kernel.version}, or change build.toml",
            )


def versions_named(kernel: Kernel) -> Iterator[tuple[Path, str, re.Match[str]]]:
    """Wherever a text names this kernel with a version: the file, its text, and a match with the number."""
    literal = rf"""["']{re.escape(kernel.repo_id)}["']"""
    # A kernel's own tests may keep its name in a constant.
    own = rf"(?:{literal}|get_kernel\(\s*[A-Z_]+\b)"
    for path in _texts(kernel):
        text = path.read_text(encoding="utf-8", errors="replace")
        named = own if path.is_relative_to(kernel.directory) else literal
        for match in re.finditer(rf"{named}[^()]*?\bversion\s*=\s*(\d+)", text):
            yield path, text, match


def changelog_is_current(kernel: Kernel) -> Iterator[Finding]:
    """The newest heading of CHANGELOG.md is of this version."""
    path = kernel.directory / "CHANGELOG.md"
    if not path.is_file():
        return
    newest = re.search(r"^##\s.*$", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    heading = HEADING.match(newest[0]) if newest else None
    if heading is None or int(heading[1]) != kernel.version:
        found = f"has {newest[0]!r} as its newest heading" if newest else "has no heading"
        yield Finding(
            path, f"{found}, but build.toml version {kernel.version}", f"begin with '## {kernel.version}.N'"
        )


def card_is_complete(kernel: Kernel) -> Iterator[Finding]:
    """The Hub finds a kernel by the front matter of its card."""
    path = kernel.directory / "CARD.md"
    if not path.is_file():
        return
    fields = front_matter(path.read_text(encoding="utf-8", errors="replace"))
    if not fields:
        yield Finding(path, "has no front matter", "begin with --- lines that hold tags and license")
        return
    if "kernels" not in fields.get("tags", []) and "kernel" not in fields.get("tags", []):
        yield Finding(path, "has no tag 'kernels'", "add tags: [kernels] to the front matter")
    stated = " ".join(fields.get("license", []))
    if TEMPLATED not in stated and stated.lower() != kernel.license.lower():
        yield Finding(
            path,
            f"has license {stated or 'none'}, but build.toml {kernel.license}",
            f"write license: {kernel.license.lower()}",
        )


def front_matter(text: str) -> dict[str, list[str]]:
    """The keys between the first two `---` lines with their values, single ones too as a list."""
    block = re.match(r"---\n(.*?)^---\s*$", text, re.DOTALL | re.MULTILINE)
    fields: dict[str, list[str]] = {}
    key = ""
    for line in block[1].splitlines() if block else ():
        if pair := re.match(r"([\w-]+):\s*(.*)$", line):
            key = pair[1]
            fields[key] = [_bare(item) for item in pair[2].strip("[]").split(",") if item.strip()]
        elif (item := re.match(r"\s*-\s+(.*)$", line)) and key:
            fields[key].append(_bare(item[1]))
    return fields


def _bare(value: str) -> str:
    return value.strip().strip("\"'")


def _texts(kernel: Kernel) -> list[Path]:
    root = kernel.directory.parent.parent
    found = [path for pattern in REPOSITORY_TEXTS for path in root.glob(pattern)]
    found += [path for pattern in KERNEL_TEXTS for path in kernel.directory.glob(pattern)]
    return sorted(path for path in set(found) if path.is_file())
