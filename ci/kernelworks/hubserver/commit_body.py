# SPDX-License-Identifier: Apache-2.0
"""Reads the body of a commit as it arrives: one JSON object a line, files in base64, memory bounded."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernelworks.hubserver import names, objects
from kernelworks.hubserver.changes import Add, AddLarge, Change, Content, Delete, Header, Operation
from kernelworks.hubserver.failures import Failure, bad_request, too_large
from kernelworks.hubserver.settings import Limits

LONG = 64 * 1024  # a text longer than this is a file's content, and goes to the disk
LINE = 1024 * 1024  # of a line without such texts


class ContentWriter:
    """Decodes base64 that comes in pieces into a file."""

    def __init__(self, file: Path, limit: int) -> None:
        self._path, self._limit = file, limit
        self._file = file.open("wb")
        self._hash = hashlib.sha256()
        self._size = 0
        self._rest = b""  # base64 is decoded four characters at a time
        self._padded = False

    def write(self, text: bytes) -> None:
        """Take the next piece of the text."""
        text = self._rest + text
        whole = len(text) - len(text) % 4
        self._rest = text[whole:]
        self._decode(text[:whole])

    def close(self) -> Content:
        """The content, once its text has ended."""
        self._file.close()
        if self._rest:
            raise bad_request("content of a file: the base64 is cut short; send it again")
        return Content(self._path, self._size, self._hash.hexdigest())

    def abandon(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _decode(self, text: bytes) -> None:
        if not text:
            return
        try:
            if self._padded:
                raise ValueError("text after the padding")
            data = base64.b64decode(text, validate=True)
        except ValueError as error:
            raise bad_request(f"content of a file: is not base64 ({error})") from error
        self._padded = text.endswith(b"=")
        self._size += len(data)
        if self._size > self._limit:
            raise too_large(
                f"a file of the commit is larger than {self._limit} bytes, which is the limit here"
            )
        self._hash.update(data)
        self._file.write(data)


class Reader:
    """Takes the body in pieces of any size; long texts of its JSON never lie in memory as a whole."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._folder, self._limits = folder, limits
        self._mark = secrets.token_hex(16)  # stands for a content in its line, and cannot be guessed
        self._contents: dict[str, Content] = {}
        self._header: Header | None = None
        self._operations: list[Operation] = []
        self._received = self._files = 0
        self._line = bytearray()  # without its long texts
        self._text: bytearray | None = None  # the JSON string that is being read
        self._writer: ContentWriter | None = None  # takes it instead when it is long
        self._escaped = False
        self._newline = -1  # where the line ends in the data at hand

    def feed(self, data: bytes) -> None:
        """Take the next piece of the body."""
        self._received += len(data)
        if self._received > self._limits.commit_bytes:
            raise too_large(
                f"the commit is larger than {self._limits.commit_bytes} bytes, which is the limit here; "
                "publish it in two commits, or ask the operator"
            )
        position, self._newline = 0, -1
        while position < len(data):
            position = self._outside(data, position) if self._text is None else self._inside(data, position)

    def close(self) -> Change:
        """The commit, once the body has ended."""
        if self._text is not None:
            raise bad_request("the body of the commit ends in the middle of a text; send it again")
        self._end_of_line()
        if self._header is None:
            raise bad_request("the body of the commit has no header line; it must be the first one")
        return Change(self._header, tuple(self._operations))

    def abandon(self) -> None:
        """Let go of an open file; what lies in the folder is the caller's to remove."""
        if self._writer:
            self._writer.abandon()

    def _outside(self, data: bytes, position: int) -> int:
        """Read up to the next text or the end of the line."""
        if self._newline < position:  # looked for once a line, or many short texts would take hours
            newline = data.find(b"\n", position)
            self._newline = len(data) if newline < 0 else newline
        quote = data.find(b'"', position, self._newline)
        if quote >= 0:
            self._append(data[position : quote + 1])
            self._text = bytearray()
            return quote + 1
        self._append(data[position : self._newline])
        if self._newline < len(data):
            self._end_of_line()
        return self._newline + 1

    def _inside(self, data: bytes, position: int) -> int:
        """Read a text up to its closing quote, a backslash, or the end of the data."""
        if self._escaped:
            self._escaped = False
            self._take(self._unescaped(data[position : position + 1]))
            return position + 1
        quote = data.find(b'"', position)
        stop = len(data) if quote < 0 else quote
        backslash = data.find(b"\\", position, stop)
        if backslash >= 0:
            self._take(data[position:backslash])
            self._escaped = True
            return backslash + 1
        self._take(data[position:stop])
        if quote >= 0:
            self._end_of_text()
        return stop + 1

    def _unescaped(self, character: bytes) -> bytes:
        """A short text keeps its escapes for the JSON reader; in base64 only a slash can have one."""
        if self._writer is None:
            return b"\\" + character
        if character != b"/":
            raise bad_request("content of a file: is not base64 (it has an escaped character)")
        return character

    def _take(self, piece: bytes) -> None:
        assert self._text is not None
        if self._writer:
            self._writer.write(piece)
            return
        self._text += piece
        if len(self._text) > LONG:
            self._writer = self._new_content()
            self._writer.write(bytes(self._text).replace(b"\\/", b"/"))
            self._text.clear()

    def _end_of_text(self) -> None:
        assert self._text is not None
        if self._writer:
            mark = f"{self._mark}-{len(self._contents)}"
            self._contents[mark] = self._writer.close()
            self._writer = None
            self._append(mark.encode())
        else:
            self._append(bytes(self._text))
        self._append(b'"')
        self._text = None

    def _append(self, piece: bytes) -> None:
        self._line += piece
        if len(self._line) > LINE:
            raise bad_request("a line of the commit is longer than anything that belongs into one")

    def _new_content(self) -> ContentWriter:
        self._files += 1
        return ContentWriter(self._folder / f"content-{self._files}", self._limits.file_bytes)

    def _end_of_line(self) -> None:
        line = bytes(self._line).strip()
        self._line.clear()
        if not line:
            return
        try:
            document = json.loads(line)
            key, value = document["key"], document["value"]
            if not isinstance(value, dict):
                raise TypeError("the value is no object")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise bad_request(f"a line of the commit is not what a client sends ({error})") from error
        self._accept(key, value)

    def _accept(self, key: object, value: dict[str, Any]) -> None:
        if key == "header":
            if self._header or self._operations:
                raise bad_request("the header of the commit must be the first line, and the only one")
            self._header = _header(value)
            return
        readers: dict[object, Callable[[dict[str, Any]], Operation]] = {
            "file": self._file,
            "lfsFile": _large,
            "deletedFile": _deleted_file,
            "deletedFolder": _deleted_folder,
        }
        if not isinstance(key, str) or key not in readers:
            raise Failure(501, "NotOffered", f"this Hub does not offer {key!r} in a commit")
        if len(self._operations) >= self._limits.commit_files:
            raise too_large(f"the commit changes more than {self._limits.commit_files} files, the limit here")
        self._operations.append(readers[key](value))

    def _file(self, value: dict[str, Any]) -> Add:
        path, text = names.path(value.get("path")), value.get("content")
        if value.get("encoding") != "base64" or not isinstance(text, str):
            raise bad_request(f"file {path}: wanted its content in base64")
        content = self._contents.pop(text, None) or self._short(text)
        if content.size < objects.POINTER_BYTES and objects.pointer_in(content.file.read_bytes()):
            raise bad_request(
                f"file {path}: is a pointer of git-lfs and not the file itself; "
                "run `git lfs pull` where it comes from, then send it again"
            )
        return Add(path, content)

    def _short(self, text: str) -> Content:
        writer = self._new_content()
        try:
            writer.write(text.encode())
            return writer.close()
        finally:
            writer.abandon()


def _header(value: dict[str, Any]) -> Header:
    summary, description = value.get("summary"), value.get("description") or ""
    parent = value.get("parentCommit")
    if not isinstance(summary, str) or not summary.strip() or not isinstance(description, str):
        raise bad_request("header of the commit: wanted a summary, and a description that is a text")
    if parent is not None and not (isinstance(parent, str) and names.COMMIT.fullmatch(parent)):
        raise bad_request(f"parentCommit {parent!r}: wanted the 40 digits of a commit")
    where = "header of the commit"
    return Header(names.message(summary, where), names.message(description, where), parent)


def _large(value: dict[str, Any]) -> AddLarge:
    path, sha256, size = names.path(value.get("path")), value.get("oid"), value.get("size")
    if not (isinstance(sha256, str) and names.SHA256.fullmatch(sha256)) or value.get("algo") != "sha256":
        raise bad_request(f"lfsFile {path}: wanted a sha256 of 64 digits in `oid`")
    return AddLarge(path, sha256, size if isinstance(size, int) else None)


def _deleted_file(value: dict[str, Any]) -> Delete:
    return Delete(names.path(value.get("path")), is_folder=False)


def _deleted_folder(value: dict[str, Any]) -> Delete:
    path = value.get("path")
    return Delete(names.path(path.rstrip("/") if isinstance(path, str) else path), is_folder=True)
