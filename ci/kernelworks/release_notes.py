# SPDX-License-Identifier: Apache-2.0
"""The newest section of a kernel's CHANGELOG.md: what the next release says, or what the last one said."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernelworks.errors import ReleaseError

HEADING = re.compile(r"^## (\d+)\.(\d+) (?:\(not yet published\)|- (\d{4}-\d{2}-\d{2}))[ \t]*$", re.MULTILINE)
ANY_HEADING = re.compile(r"^## ", re.MULTILINE)


@dataclass(frozen=True)
class Section:
    """One release in a changelog."""

    version: int
    number: int
    date: str | None  # None: not yet published
    body: str
    span: tuple[int, int]  # of the heading

    @property
    def name(self) -> str:
        """1.4"""
        return f"{self.version}.{self.number}"

    @property
    def has_entries(self) -> bool:
        """Whether it lists anything."""
        return re.search(r"^[-*] \S", self.body, re.MULTILINE) is not None


def newest(text: str, where: str) -> Section:
    """The first section; `where` names the file in the error for a text without one."""
    first = ANY_HEADING.search(text)
    heading = HEADING.match(text, first.start()) if first else None
    if heading is None:
        line = text[first.start() :].partition("\n")[0] if first else "nothing"
        raise ReleaseError(
            f"{where} has {line!r} where its newest release belongs; "
            "write '## VERSION.N (not yet published)' and what changed below it"
        )
    following = ANY_HEADING.search(text, heading.end())
    body = text[heading.end() : following.start() if following else len(text)]
    return Section(int(heading[1]), int(heading[2]), heading[3], body.strip("\n"), heading.span())


def dated(text: str, section: Section, name: str, date: str) -> str:
    """The text with the heading of a release that has come out."""
    start, end = section.span
    return f"{text[:start]}## {name} - {date}{text[end:]}"
