# SPDX-License-Identifier: Apache-2.0
"""GPU architectures: read, narrowed as kernel-builder does it, and turned into flags."""

from __future__ import annotations

import pytest

from kernelworks import archs
from kernelworks.archs import Arch, parse
from kernelworks.errors import BuildError


@pytest.mark.parametrize("text", ["7.5", "9.0a", "10.0f", "12.0+PTX", "12.1a+PTX"])
def test_reading_and_writing_agree(text: str) -> None:
    assert str(parse(text)) == text


@pytest.mark.parametrize("text", ["9", "90", "sm_90", "9.0b", "9.0 +PTX", "9.0+ptx", "", "9.10", "toy"])
def test_other_spellings_are_refused(text: str) -> None:
    with pytest.raises(BuildError, match="write it like"):
        parse(text)


def test_numbers_not_text_decide_the_order() -> None:
    assert sorted(map(parse, ["10.0", "9.0a", "9.0", "7.5"])) == list(
        map(parse, ["7.5", "9.0", "9.0a", "10.0"])
    )


def test_each_cuda_has_its_list() -> None:
    assert [str(arch) for arch in archs.released((13, 2))] == (
        ["7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "11.0", "12.0", "12.1+PTX"]
    )
    assert archs.released((12, 9))[0] == Arch(7, 0)
    assert archs.released((12, 6))[-1] == Arch(9, 0, ptx=True)


def narrowed(targets: str, capabilities: str) -> str:
    return " ".join(map(str, archs.narrow(map(parse, targets.split()), capabilities.split())))


ALL_OF_13 = "7.5 8.0 8.6 8.7 8.9 9.0 10.0 11.0 12.0 12.1+PTX"


@pytest.mark.parametrize(
    ("targets", "capabilities", "expected"),
    [
        (ALL_OF_13, "8.0 9.0a 10.0f", "8.0 9.0a 10.0f"),  # what kernel-builder compiled for
        (ALL_OF_13, "", ALL_OF_13),
        (ALL_OF_13, "8.0 8.9", "8.0 8.9"),
        (ALL_OF_13, "12.0+PTX", "12.0+PTX"),
        ("9.0", "9.0 9.0a", "9.0a"),
        ("12.1", "12.0a", ""),  # 12.0a runs on 12.0 alone
        ("12.1", "12.0f", "12.0f"),
        ("8.0", "8.6", ""),
        ("9.0", "8.0", ""),
    ],
)
def test_capabilities_narrow_the_targets(targets: str, capabilities: str, expected: str) -> None:
    assert narrowed(targets, capabilities) == expected


def test_unsupported_ones_are_told_apart() -> None:
    known, unknown = archs.split_by_support(map(parse, ["8.0", "9.0a", "12.0", "8.0"]), frozenset({80, 90}))
    assert (known, unknown) == ([Arch(8, 0), Arch(9, 0, "a")], [Arch(12, 0)])


def test_flags_name_machine_code_and_ptx() -> None:
    assert archs.nvcc_flags([Arch(9, 0, "a"), Arch(12, 0, ptx=True)]) == [
        "-gencode=arch=compute_90a,code=sm_90a",
        "-gencode=arch=compute_120,code=sm_120",
        "-gencode=arch=compute_120,code=compute_120",
    ]
