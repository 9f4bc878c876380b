# SPDX-License-Identifier: Apache-2.0
"""Reads a build.toml, and says on one line which table and key of it are wrong.

The official validator has the last word on what is allowed, but does not say where; so what it can find is
looked for here first, table by table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from kernelworks import official
from kernelworks.errors import ManifestError

EDITION = 5
VERSION_NUMBER = re.compile(r"\d+\.\d+")
CAPABILITY = re.compile(r"\d+\.\d[af]?(\+PTX)?")


@dataclass(frozen=True)
class Key:
    """What the value of one key must be, in words and as a test."""

    words: str
    accepts: Callable[[Any], bool]
    required: bool = False


def _is_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_version(value: Any) -> bool:
    return isinstance(value, str) and VERSION_NUMBER.fullmatch(value) is not None


def _is_stable_abi(value: Any) -> bool:
    if isinstance(value, dict):
        return bool(value) and all(_is_version(item) for item in value.values())
    return _is_version(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_capabilities(value: Any) -> bool:
    return _is_strings(value) and all(CAPABILITY.fullmatch(item) for item in value)


def _string(required: bool = False) -> Key:
    return Key("a string", lambda value: isinstance(value, str), required)


def _strings(required: bool = False) -> Key:
    return Key("a list of strings", _is_strings, required)


GENERAL = {
    "edition": Key(f"{EDITION}", lambda value: value is not True and value == EDITION, required=True),
    "name": _string(required=True),
    "version": Key("a whole number", _is_count, required=True),
    "license": _string(required=True),
    "backends": _strings(required=True),
    "upstream": _string(),
    "source": _string(),
    "python-depends": _strings(),
}
HUB = {"repo-id": _string(required=True)}
TORCH = {
    "stable-abi": Key('a torch version such as "2.11", or a table of them by backend', _is_stable_abi, True),
    "src": _strings(required=True),
    "include": _strings(),
    "pyext": _strings(),
}
COMPONENT = {
    "backend": _string(required=True),
    "depends": _strings(required=True),
    "src": _strings(required=True),
    "include": _strings(),
    "cxx-flags": _strings(),
    "cuda-flags": _strings(),
    "cuda-capabilities": Key('a list of capabilities such as "8.0", "9.0a" or "12.0+PTX"', _is_capabilities),
    "cuda-minver": Key('a CUDA version such as "13.0"', _is_version),
}


def read(directory: Path) -> dict[str, Any]:
    """The content of `directory`/build.toml, found valid."""
    path = directory / "build.toml"
    where = "/".join(path.parts[-3:])  # kernels/NAME/build.toml
    try:
        document: dict[str, Any] = tomlkit.parse(path.read_text(encoding="utf-8")).unwrap()
    except OSError as error:
        raise ManifestError(f"{where}: {error.strerror}") from error
    except (TOMLKitError, UnicodeDecodeError) as error:
        raise ManifestError(f"{where}: not TOML: {error}") from error
    finding = next(_findings(document), None)
    if finding is None and (complaint := official.complaint_about_build(directory)) is not None:
        finding = _locate(complaint, document) + complaint
    if finding is not None:
        raise ManifestError(f"{where}: {finding}")
    return document


def _findings(document: Mapping[str, Any]) -> Iterator[str]:
    yield from _in_table("general", document.get("general"), GENERAL)
    general = document["general"]
    if (complaint := official.complaint_about_name(general["name"])) is not None:
        yield f"[general] name: {complaint}"
    yield from _in_table("general.hub", general.get("hub"), HUB)
    yield from _in_table("torch", document.get("torch"), TORCH)
    components = document.get("kernel")
    if not isinstance(components, dict) or not components:
        yield "[kernel.NAME]: no such table; each backend needs one with its sources"
        return
    for name, component in components.items():
        yield from _in_table(f"kernel.{name}", component, COMPONENT)


def _in_table(name: str, table: Any, keys: Mapping[str, Key]) -> Iterator[str]:
    if not isinstance(table, dict):
        wanted = ", ".join(key for key, rule in keys.items() if rule.required)
        yield f"[{name}]: no such table; it needs {wanted}"
        return
    for key, rule in keys.items():
        if key not in table:
            if rule.required:
                yield f"[{name}] {key}: missing; it must be {rule.words}"
        elif not rule.accepts(table[key]):
            yield f"[{name}] {key}: must be {rule.words}, not {table[key]!r}"


def _locate(complaint: str, document: Mapping[str, Any]) -> str:
    """`[table] key: ` for the key or value that the validator quotes, or nothing where it cannot be told."""
    quoted = re.search(r"(field|variant|string|integer) [`\"]?([^`\"\s.]+)", complaint)
    if quoted is None:
        return ""
    kind, word = quoted.groups()
    for table, key, value in _entries("", document):
        values = value if isinstance(value, list) else [value]
        if key == word if kind == "field" else word in (str(item) for item in values):
            return f"[{table}] {key}: " if table else f"[{key}]: " if isinstance(value, dict) else f"{key}: "
    return ""


def _entries(name: str, table: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for key, value in table.items():
        yield name, key, value
        if isinstance(value, dict):
            yield from _entries(f"{name}.{key}" if name else key, value)
