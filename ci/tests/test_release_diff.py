# SPDX-License-Identifier: Apache-2.0
"""What breaks a caller and what does not, one change at a time."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from kernelworks import release_api
from kernelworks.release_api import Api
from kernelworks.release_diff import changes


def api(source: str) -> Api:
    node = ast.parse(source).body[0]
    names = dict(release_api._of(node, "f"))
    return Api(names, frozenset({"float32"}), frozenset({"cpu"}), (2, 11), frozenset())


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("def f(x): ...", "def f(x): ...", []),
        ("def f(x): ...", "def f(x, y=1): ...", ["f: y is new"]),
        ("def f(x): ...", "def f(x, *, y=1): ...", ["f: y is new"]),
        ("def f(x): ...", "def f(x, *rest, **more): ...", []),
        ("def f(x, /): ...", "def f(z, /): ...", []),
        ("def f(x, *, y=1): ...", "def f(x, y=1): ...", []),
        ("def f(x): ...", "def f(x=1): ...", []),
        ("def f(x) -> torch.Tensor: ...", "def f(x) -> Tensor: ...", []),
        ("def f(x): ...", "def f(x) -> Tensor: ...", []),
        ("def f(x, *rest): ...", "def f(x, *others): ...", []),
    ],
)
def test_what_takes_every_call_that_it_took_before(old: str, new: str, found: list[str]) -> None:
    seen = changes(api(old), api(new))
    assert [change.what for change in seen] == found
    assert not any(change.breaks for change in seen)


@pytest.mark.parametrize(
    ("old", "new", "first"),
    [
        ("def f(x, y): ...", "def f(y, x): ...", "f: argument 1 was x, and is y"),
        ("def f(x, y=1): ...", "def f(x, z=2, y=1): ...", "f: argument 2 was y, and is z"),
        ("def f(x): ...", "def f(z): ...", "f: argument 1 was x, and is z"),
        ("def f(x, y=1): ...", "def f(x): ...", "f: argument 2 was y, and is not taken there"),
        ("def f(x, y=1): ...", "def f(x, *, y=1): ...", "f: argument 2 was y, and is not taken there"),
        ("def f(x): ...", "def f(x, y): ...", "f: y is new and required"),
        ("def f(x): ...", "def f(x, *, y): ...", "f: y is new and required"),
        ("def f(x, y=1): ...", "def f(x, y): ...", "f: y was optional, and is required"),
        ("def f(x, y=1): ...", "def f(x, y=2): ...", "f: y was 1 by default, and is 2"),
        ("def f(x, *, y=1): ...", "def f(x): ...", "f: y is not taken by name"),
        ("def f(x): ...", "def f(x, /): ...", "f: x is not taken by name"),
        ("def f(x, **more): ...", "def f(x): ...", "f: **more is not taken"),
        (
            "def f(x) -> Tensor: ...",
            "def f(x) -> tuple[Tensor, Tensor]: ...",
            "f: returned Tensor, and returns",
        ),
        ("def f(x): ...", "f = 1", "f could be called, and is something else"),
        ("class f:\n    def run(self, x): ...", "class f: ...", "f.run is gone"),
        ("class f:\n    weight: int", "class f: ...", "f.weight is gone"),
        (
            "class f:\n    def __init__(self): ...",
            "class f:\n    def __init__(self, x): ...",
            "f: x is new and",
        ),
    ],
)
def test_what_does_not(old: str, new: str, first: str) -> None:
    seen = changes(api(old), api(new))
    assert seen[0].breaks
    assert seen[0].what.startswith(first)


def test_names_dtypes_backends_and_versions_of_torch() -> None:
    old = api("def f(x): ...")
    wider = replace(
        old,
        names={**old.names, "g": None},
        dtypes=frozenset({"float32", "float16"}),
        backends=frozenset({"cpu", "cuda"}),
        torch=(2, 10),
    )
    assert [(change.what, change.breaks) for change in changes(old, wider)] == [
        ("g is new", False),
        ("the dtype float16 is new", False),
        ("the backend cuda is new", False),
        ("torch 2.11 was the oldest, and is 2.10", False),
    ]
    back = replace(old, depends=frozenset({"einops"}))
    assert [(change.what, change.breaks) for change in changes(wider, back)] == [
        ("g is gone", True),
        ("the dtype float16 is gone", True),
        ("the backend cuda is gone", True),
        ("the Python package einops must be installed", True),
        ("torch 2.10 was the oldest, and is 2.11", True),
    ]


def test_what_breaks_comes_first() -> None:
    seen = changes(api("def f(x, y=1): ..."), api("def f(x, y=2, z=3): ..."))
    assert [change.breaks for change in seen] == [True, False]
