# SPDX-License-Identifier: Apache-2.0
"""The body of a commit: any way of cutting it gives the same files, and little of it lies in memory."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelworks.hubserver.changes import Add, AddLarge, Change, Delete
from kernelworks.hubserver.commit_body import LONG, Reader
from kernelworks.hubserver.failures import Failure
from kernelworks.hubserver.objects import Pointer
from kernelworks.hubserver.settings import Limits

HEADER = {"key": "header", "value": {"summary": "s", "description": "d"}}
LARGE = os.urandom(LONG)  # more than LONG as base64


def file(path: str, data: bytes, **changes: Any) -> dict[str, Any]:
    content = base64.b64encode(data).decode()
    return {"key": "file", "value": {"content": content, "path": path, "encoding": "base64"} | changes}


def lines(*documents: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in documents)


def read(folder: Path, *pieces: bytes, limits: Limits | None = None) -> Change:
    reader = Reader(folder, limits or Limits())
    try:
        for piece in pieces:
            reader.feed(piece)
        return reader.close()
    finally:
        reader.abandon()


def refused(folder: Path, body: bytes, **limits: int) -> Failure:
    with pytest.raises(Failure) as caught:
        read(folder, body, limits=Limits(**limits))
    return caught.value


BODY = lines(
    HEADER | {"value": {"summary": 'quoted " and \\ and ü', "description": "a\nb", "parentCommit": "0" * 40}},
    file("small.txt", b"hello"),
    file("empty", b""),
    file("large.so", LARGE),
    {"key": "lfsFile", "value": {"path": "x.so", "algo": "sha256", "oid": "0" * 64, "size": 7}},
    {"key": "deletedFile", "value": {"path": 'we"ird'}},
    {"key": "deletedFolder", "value": {"path": "build/old/"}},
)


@given(cuts=st.lists(st.integers(0, len(BODY)), max_size=40))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_pieces_in_which_a_body_arrives_do_not_matter(tmp_path: Path, cuts: list[int]) -> None:
    ends = sorted({0, len(BODY), *cuts})
    change = read(tmp_path, *(BODY[a:b] for a, b in itertools.pairwise(ends)))
    assert change.header.summary == 'quoted " and \\ and ü'
    assert change.header.message == 'quoted " and \\ and ü\n\na\nb\n'
    assert change.header.parent == "0" * 40
    adds = [each for each in change.operations if isinstance(each, Add)]
    assert [each.path for each in adds] == ["small.txt", "empty", "large.so"]
    assert [each.content.file.read_bytes() for each in adds] == [b"hello", b"", LARGE]
    assert [each.content.sha256 for each in adds][2] == hashlib.sha256(LARGE).hexdigest()
    assert change.operations[3:] == (
        AddLarge("x.so", "0" * 64, 7),
        Delete('we"ird', is_folder=False),
        Delete("build/old", is_folder=True),
    )


def test_one_byte_at_a_time_is_the_same_too(tmp_path: Path) -> None:
    body = lines(HEADER, file("a", b"\xff\xfe" * 50))
    change = read(tmp_path, *(body[at : at + 1] for at in range(len(body))))
    (add,) = change.operations
    assert isinstance(add, Add)
    assert add.content.file.read_bytes() == b"\xff\xfe" * 50


@pytest.mark.parametrize("data", [b"\xff\xff\xff", LARGE], ids=["short", "long"])
def test_slashes_that_another_client_escapes_are_understood(tmp_path: Path, data: bytes) -> None:
    body = lines(HEADER, file("a", data)).replace(b"/", b"\\/")
    assert b"\\/" in body
    (add,) = read(tmp_path, body).operations
    assert isinstance(add, Add)
    assert add.content.file.read_bytes() == data


def test_memory_does_not_grow_with_the_size_of_a_file(tmp_path: Path) -> None:
    line = lines(file("a", bytes(1024 * 1024 * 8)))
    reader = Reader(tmp_path, Limits())
    reader.feed(lines(HEADER))
    tracemalloc.start()
    for at in range(0, len(line), 65536):
        reader.feed(line[at : at + 65536])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reader.close().operations
    assert peak < 2 * 1024 * 1024, "an eleven MiB line must not lie in memory"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "no header"),
        (lines(file("a", b"x")), "no header"),
        (lines(HEADER, HEADER), "the only one"),
        (lines(HEADER) + b'{"key": "file", "value', "middle of a text"),
        (lines(HEADER) + b"{]\n", "not what a client sends"),
        (lines(HEADER) + b"[1]\n", "not what a client sends"),
        (lines(HEADER, {"key": "file", "value": 3}), "not what a client sends"),
        (lines(HEADER, {"key": "rename", "value": {}}), "does not offer 'rename'"),
        (lines(HEADER, file("../x", b"x")), "'../x'"),
        (lines(HEADER, file("a", b"x", encoding="utf-8")), "base64"),
        (lines(HEADER, file("a", b"", content="abc")), "cut short"),
        (lines(HEADER, file("a", b"", content="ab=c")), "not base64"),
        (lines(HEADER, file("a", b"", content="QQ==QUJD")), "not base64"),
        (lines(HEADER, file("a", b"", content="A" * LONG + "QQ==" + "A" * LONG)), "not base64"),
        (lines(HEADER, file("a", b"", content="A" * LONG + "\\n" + "A" * LONG)), "not base64"),
        (lines(HEADER, file("a", b"", content="A" * (LONG + 3))), "cut short"),
        (lines(HEADER, file("a", Pointer("0" * 64, 5).text)), "pointer of git-lfs"),
        (lines({"key": "header", "value": {"summary": " "}}), "summary"),
        (lines({"key": "header", "value": {"summary": "s", "parentCommit": "v1"}}), "parentCommit"),
        (lines({"key": "header", "value": {"summary": "\ud800"}}), "Unicode"),
        (lines(HEADER, {"key": "lfsFile", "value": {"path": "a", "algo": "sha256", "oid": "0"}}), "sha256"),
        (lines(HEADER, {"key": "deletedFolder", "value": {"path": "/"}}), "path"),
        (lines(HEADER) + b"{" + b" " * (1024 * 1024 + 1), "longer than anything"),
    ],
)
def test_a_body_that_cannot_be_meant_is_refused_with_a_sentence(
    tmp_path: Path, body: bytes, sentence: str
) -> None:
    failure = refused(tmp_path, body)
    assert failure.status in (400, 501)
    assert sentence in failure.message


def test_the_limits_hold(tmp_path: Path) -> None:
    body = lines(HEADER, file("a", b"x" * 100), file("b", b"x"))
    assert refused(tmp_path, body, commit_bytes=len(body) - 1).status == 413
    assert refused(tmp_path, body, file_bytes=99).status == 413
    assert refused(tmp_path, body, commit_files=1).status == 413
    assert len(read(tmp_path, body, limits=Limits(len(body), 100, 2)).operations) == 2


@pytest.mark.parametrize("text", [b"\n", b'"'], ids=["lines", "texts"])
def test_time_grows_with_the_size_and_not_with_its_square(tmp_path: Path, text: bytes) -> None:
    def took(size: int) -> float:
        reader = Reader(tmp_path, Limits())
        before = time.process_time()
        reader.feed(text * size)
        return time.process_time() - before

    assert took(1 << 19) < 24 * took(1 << 16)
