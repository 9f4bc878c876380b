# SPDX-License-Identifier: Apache-2.0
"""A kernel's card as a page shows it: Markdown from strangers, made into HTML that cannot do anything."""

from __future__ import annotations

import html
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import yaml  # type: ignore[import-untyped]
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

LONGEST = 128 * 1024  # bytes; a longer card is offered as a file, as hostile Markdown is read very slowly
LONGEST_FRONT = 16 * 1024  # YAML is read slowly, and nested YAML very slowly
SCHEMES = ("", "http", "https", "mailto")
_FRONT = re.compile(r"\A---[ \t]*\n(.*?)^---[ \t]*$\n?", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Card:
    """What is shown of a README.md."""

    html: Markup
    license: str | None = None
    tags: tuple[str, ...] = ()


@lru_cache(maxsize=64)
def card(data: bytes, files: str) -> Card:
    """The card of a repository whose files have addresses that begin with `files`."""
    if len(data) > LONGEST:
        return Card(
            Markup('<p><a href="{}README.md">README.md</a> is too long to be shown here.</p>').format(files)
        )
    text = data.decode(errors="replace").replace("\r\n", "\n")
    front = _FRONT.match(text)
    facts = _facts(front[1]) if front else {}
    tags = facts.get("tags")
    said = facts.get("license")
    return Card(
        html=render(text[front.end() :] if front else text, files),
        license=said if isinstance(said, str) else None,
        tags=tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else (),
    )


def render(text: str, files: str) -> Markup:
    """Markdown to HTML: no HTML of its own, links to harmless schemes only, nothing loaded from elsewhere."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    markdown.validateLink = _harmless  # type: ignore[method-assign]
    markdown.add_render_rule("image", _image)
    tokens = markdown.parse(text)
    _adapt(tokens, files)
    return Markup(markdown.renderer.render(tokens, markdown.options, {}))


def _facts(front: str) -> dict[str, Any]:
    if len(front) > LONGEST_FRONT:
        return {}
    try:
        found = yaml.safe_load(front)
    except Exception:  # also KeyError, AttributeError and others, for a tag that does not fit its text
        return {}
    return found if isinstance(found, dict) else {}


def _harmless(url: str) -> bool:
    try:
        return urlsplit(url).scheme.lower() in SCHEMES
    except ValueError:
        return False


def _adapt(tokens: Sequence[Token], files: str) -> None:
    """Point relative addresses into the repository, and keep the headings below the page's own."""
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1:]) + 1, 6)}"
        if token.type == "link_open":
            token.attrSet("href", _address(str(token.attrGet("href")), files))
            token.attrSet("rel", "nofollow noopener noreferrer")
        if token.type == "image":
            token.attrSet("src", _address(str(token.attrGet("src")), files))
        _adapt(token.children or (), files)


def _address(url: str, files: str) -> str:
    parts = urlsplit(url)
    if parts.scheme or parts.netloc or not parts.path:
        return url
    inside = posixpath.normpath("/" + unquote(parts.path)).lstrip("/")
    return files + quote(inside) + (f"#{quote(parts.fragment)}" if parts.fragment else "")


def _image(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """An image of the repository; one from elsewhere becomes a link, as no page loads from other places."""
    token = tokens[index]
    source = html.escape(str(token.attrGet("src")))
    alt = html.escape(renderer.renderInlineAsText(token.children or [], options, env)) or source
    if urlsplit(str(token.attrGet("src"))).netloc:
        return f'<a href="{source}" rel="nofollow noopener noreferrer">{alt}</a>'
    return f'<img src="{source}" alt="{alt}">'
