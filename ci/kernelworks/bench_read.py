# SPDX-License-Identifier: Apache-2.0
"""Reads a record back from its JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from kernelworks import bench_model_record
from kernelworks.bench_model_record import ModelRecord
from kernelworks.bench_record import FORMAT, Record
from kernelworks.errors import RepositoryError


def read(path: Path) -> Record:
    """The record of a kernel in this file; what is derived is left out, as a record works it out again."""
    document = _document(path)
    if _is_of_a_model(document):
        raise RepositoryError(f"{path} is the record of a model, wanted one that `kernelworks bench` wrote")
    record: Record = _checked(Record, document, path, "bench")
    return record


def read_model(path: Path) -> ModelRecord:
    """The record of a model in this file."""
    document = _document(path)
    if not _is_of_a_model(document):
        raise RepositoryError(
            f"{path} is not the record of a model, wanted one that `kernelworks bench-model` wrote"
        )
    record: ModelRecord = _checked(ModelRecord, document, path, "bench-model")
    return record


def is_model(path: Path) -> bool:
    """Whether this file holds the record of a model."""
    return _is_of_a_model(_document(path))


def _is_of_a_model(document: Any) -> bool:
    return isinstance(document, dict) and document.get("kind") == bench_model_record.KIND


def _document(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise RepositoryError(
            f"{path}: {error.strerror}; `kernelworks bench --json` writes a record"
        ) from error
    except json.JSONDecodeError as error:
        raise RepositoryError(f"{path} is not JSON ({error}); run `kernelworks bench` again") from error


def _checked(cls: Any, document: Any, path: Path, verb: str) -> Any:
    found = document.get("format") if isinstance(document, dict) else None
    if found != FORMAT:
        raise RepositoryError(
            f"{path} has format {found}, and this tool reads {FORMAT}; run `kernelworks {verb}` again"
        )
    try:
        return _made(cls, document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RepositoryError(
            f"{path} is not a record ({type(error).__name__}: {error}); run `kernelworks {verb}` again"
        ) from error


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
    if origin is UnionType:  # of something and None
        return None if value is None else _value(arguments[0], value)
    if is_dataclass(hint):
        return _made(hint, value)
    if origin is tuple:
        return tuple(_value(arguments[0], each) for each in value)
    if origin is Mapping:
        return {key: _value(arguments[1], each) for key, each in value.items()}
    return float(value) if hint is float else value
