# SPDX-License-Identifier: Apache-2.0
"""Reads a record back from its JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from kernelworks.bench_record import FORMAT, Record
from kernelworks.errors import RepositoryError


def read(path: Path) -> Record:
    """The record in this file; what is derived is left out, as a record works it out again."""
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise RepositoryError(
            f"{path}: {error.strerror}; `kernelworks bench --json` writes a record"
        ) from error
    except json.JSONDecodeError as error:
        raise RepositoryError(f"{path} is not JSON ({error}); run `kernelworks bench` again") from error
    found = document.get("format") if isinstance(document, dict) else None
    if found != FORMAT:
        raise RepositoryError(
            f"{path} has format {found}, and this tool reads {FORMAT}; run `kernelworks bench` again"
        )
    try:
        record: Record = _made(Record, document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RepositoryError(
            f"{path} is not a record ({type(error).__name__}: {error}); run `kernelworks bench` again"
        ) from error
    return record


def _made(cls: Any, document: Mapping[str, Any]) -> Any:
    """A dataclass of its entries; what has a default may be missing, as it is newer than some records."""
    hints = get_type_hints(cls)
    return cls(
        **{
            each.name: _value(hints[each.name], document[each.name])
            for each in fields(cls)
            if each.name in document
        }
    )


def _value(hint: Any, value: Any) -> Any:
    """JSON has neither tuples nor dataclasses, and writes infinity as a word."""
    origin, arguments = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        return _made(hint, value)
    if origin is tuple:
        return tuple(_value(arguments[0], each) for each in value)
    if origin is Mapping:
        return {key: _value(arguments[1], each) for key, each in value.items()}
    return float(value) if hint is float else value
