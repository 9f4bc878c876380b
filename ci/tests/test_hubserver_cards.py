# SPDX-License-Identifier: Apache-2.0
"""Cards come from strangers: what a page makes of them can be read, and does nothing."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from kernelworks.hubserver import cards

FILES = "/kernels/acme/scale-it/resolve/main/"
ATTACKS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](java&#115;cript:alert(1))",
    "[x](\tjavascript:alert(1))",
    "[x](vbscript:x)",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "![x](javascript:alert(1))",
    "![x](data:image/svg+xml;base64,PHN2Zz4=)",
    '![" onerror="alert(1)](a.png)',
    '[x](<a" onclick="alert(1)>)',
    '[x](a "t\\" onclick=\\"alert(1)")',
    "<javascript:alert(1)>",
    "[x][r]\n\n[r]: javascript:alert(1)",
    '```"><script>alert(1)</script>\n```',
    "| <script>alert(1)</script> |\n| --- |\n| <b onclick=alert(1)> |",
    "---\nlicense: <script>alert(1)</script>\ntags: [<b>]\n---\n# <i onclick=x>",
]
HARMLESS = {"href", "src", "alt", "rel", "class", "title", "style", "start"}


class Reader(HTMLParser):
    """Every tag and every attribute of a text of HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        """Those of each tag of this name."""
        return [attributes for name, attributes in self.tags if name == tag]


def shown(text: str) -> Reader:
    return Reader(cards.card(text.encode(), FILES).html)


@pytest.mark.parametrize("text", ATTACKS)
def test_nothing_in_a_card_does_anything(text: str) -> None:
    for tag, attributes in shown(text).tags:
        assert tag not in ("script", "svg", "iframe", "object", "form", "style")
        assert set(attributes) <= HARMLESS, attributes
        for name in ("href", "src"):
            address = attributes.get(name) or ""
            assert ":" not in address or address.startswith(("http://", "https://", "mailto:")), address


def test_front_matter_is_facts_and_not_text() -> None:
    card = cards.card(b"---\nlicense: mit\ntags: [a, 3]\n---\n\n# Title\n", FILES)
    assert card.license == "mit"
    assert card.tags == ("a",)
    assert "license" not in card.html
    assert "Title" in card.html


@pytest.mark.parametrize(
    "front",
    [
        "a: [",
        "- 1",
        "a: !!timestamp x",
        "a: !!bool x",
        "a: !!int ''",
        "a: &x [*x]",
        "!!python/object:os.system x",
        "\t",
        "[" * 5000,
    ],
)
def test_front_matter_that_is_none_is_left_out(front: str) -> None:
    card = cards.card(f"---\n{front}\n---\ntext\n".encode(), FILES)
    assert card.license is None
    assert "text" in card.html


def test_links_lead_into_the_repository_and_out_of_it() -> None:
    reader = shown(
        "[a](docs/x.md#p) [b](../../../etc/passwd) [c](https://example.org/a?b=1) [d](#here) [e](//o.org/x)"
    )
    addresses = [attributes["href"] for attributes in reader.attributes("a")]
    assert addresses == [
        f"{FILES}docs/x.md#p",
        f"{FILES}etc/passwd",
        "https://example.org/a?b=1",
        "#here",
        "//o.org/x",
    ]
    assert all("noopener" in str(attributes["rel"]) for attributes in reader.attributes("a"))


def test_images_from_elsewhere_are_links() -> None:
    """No page may tell another server who is looking."""
    reader = shown("![plot](docs/plot.png) ![badge](https://example.org/badge.svg)")
    assert [attributes["src"] for attributes in reader.attributes("img")] == [f"{FILES}docs/plot.png"]
    assert [attributes["href"] for attributes in reader.attributes("a")] == ["https://example.org/badge.svg"]


def test_tables_and_headings_are_below_the_page_title() -> None:
    reader = shown("# One\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n")
    tags = [tag for tag, _ in reader.tags]
    assert "h1" not in tags
    assert "h2" in tags
    assert tags.count("td") == 2


def test_long_and_strange_cards_are_survived() -> None:
    assert "too long" in cards.card(b"x" * (cards.LONGEST + 1), FILES).html
    assert "�" in cards.card(b"\xff\xfe", FILES).html
    slow = b"![" * (cards.LONGEST // 2)
    assert cards.card(slow, FILES) is cards.card(bytes(bytearray(slow)), FILES), "it is read once"
    cards.card(b"> " * 5_000 + b"x", FILES)
    assert cards.card(b"", FILES).html == ""
