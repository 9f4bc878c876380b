# SPDX-License-Identifier: Apache-2.0
"""Who gets which variant, of a complete release and of a partial one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kernelworks import catalog, loader, matrix, matrix_systems
from kernelworks.loader import System
from kernelworks.matrix_systems import Served

ROOT = Path(__file__).resolve().parents[2]
SYSTEMS = matrix.used_systems()


@pytest.fixture(scope="module")
def names() -> Sequence[str]:
    return matrix.complete(catalog.load(ROOT, "rmsnorm"))


def expected(system: System) -> str | None:
    """By hand: the newest CUDA of the same major version that is not newer than torch's."""
    if system.python < (3, 10):
        return None
    newest = {None: "cpu", (12, 6): "cu126", (12, 8): "cu126", (12, 9): "cu126", (13, 1): "cu130"}
    compute = newest.get(system.cuda) or "cu{}{}".format(*(system.cuda or ()))
    return f"torch-stable-abi211-{compute}-{system.machine}-linux"


def test_every_system_with_a_python_for_it_gets_its_own(names: Sequence[str]) -> None:
    found = matrix_systems.served(names, SYSTEMS)
    assert len(found) == 2 * 7 * 5 * 6
    assert {each.system: each.variant for each in found} == {system: expected(system) for system in SYSTEMS}


def test_each_result_is_one_line(names: Sequence[str]) -> None:
    text = list(matrix_systems.lines(matrix_systems.served(names, SYSTEMS)))
    assert len(text) == 2 * (len(names) + 1)
    at = text.index("  torch-stable-abi211-cu126-aarch64-linux")
    assert text[at + 1] == "    torch 2.11 to 2.15 for CUDA 12.6, 12.8, 12.9, aarch64, Python 3.10 to 3.14"


def test_what_a_release_lacks_is_nothing_for_those_who_need_it() -> None:
    partial = ["torch-stable-abi211-cpu-x86_64-linux", "torch-stable-abi211-cu132-x86_64-linux"]
    here = System((2, 13), (13, 0), "x86_64", (3, 12))
    (older,) = matrix_systems.served(partial, [here])
    (newer,) = matrix_systems.served(partial, [replace(here, cuda=(13, 2))])
    assert (older.variant, older.reason) == (None, "none fits")
    assert newer.variant == partial[1]


def test_systems_that_have_no_simple_name_are_named_one_by_one() -> None:
    one = System((2, 11), (12, 6), "x86_64", (3, 10))
    other = replace(one, torch=(2, 12), cuda=None)
    text = list(matrix_systems.lines([Served(each, "v", "") for each in (one, other)]))
    assert text == ["  v", f"    {one}", f"    {other}"]


def test_a_choice_says_why_not_the_others(names: Sequence[str]) -> None:
    system = System((2, 12), (13, 1), "aarch64", (3, 11))
    text = list(matrix_systems.choice_lines(system, loader.simulate(names, system)))
    assert text[0] == (
        "  torch 2.12 for CUDA 13.1, aarch64, Python 3.11 gets torch-stable-abi211-cu130-aarch64-linux"
    )
    assert len(text) == len(names)
    assert (
        "    not torch-stable-abi211-cu132-aarch64-linux: "
        "CUDA version (13.2) is not compatible with system CUDA version (13.1)"
    ) in text
