# SPDX-License-Identifier: Apache-2.0
"""The newest section of a changelog, and its heading once it has come out."""

from __future__ import annotations

import pytest

from kernelworks import release_notes
from kernelworks.errors import ReleaseError

TEXT = """# Changelog of toy

Words.

## 1.1 (not yet published)

### Added
- more

## 1.0 - 2026-11-30

- all
"""


def test_the_newest_section_is_the_first() -> None:
    section = release_notes.newest(TEXT, "CHANGELOG.md")
    assert (section.name, section.date, section.body) == ("1.1", None, "### Added\n- more")
    assert section.has_entries


def test_it_gets_a_date_and_a_name() -> None:
    section = release_notes.newest(TEXT, "CHANGELOG.md")
    text = release_notes.dated(TEXT, section, "2.0", "2026-12-01")
    assert text == TEXT.replace("1.1 (not yet published)", "2.0 - 2026-12-01")
    again = release_notes.newest(text, "CHANGELOG.md")
    assert (again.version, again.number, again.date) == (2, 0, "2026-12-01")


def test_words_are_no_entries() -> None:
    assert not release_notes.newest(
        "## 1.1 (not yet published)\n\nSoon.\n\n## 1.0 - 2026-11-30\n- a", ""
    ).has_entries


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# Changelog\n", "'nothing'"),
        ("## Unreleased\n\n- x\n\n## 1.0 - 2026-11-30\n", "'## Unreleased'"),
        ("## 1.0\n", "'## 1.0'"),
        ("## 1.0 - yesterday\n", "'## 1.0 - yesterday'"),
    ],
)
def test_another_heading_is_refused(text: str, found: str) -> None:
    with pytest.raises(
        ReleaseError, match=f"CHANGELOG.md has {found} where its newest release belongs; write"
    ):
        release_notes.newest(text, "CHANGELOG.md")
