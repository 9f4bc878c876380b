# SPDX-License-Identifier: Apache-2.0
"""GPU architectures: how they are written, which ones a build compiles for, and nvcc's flags for them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kernelworks.errors import BuildError

WRITTEN = re.compile(r"(\d+)\.(\d)([af]?)(\+PTX)?")

# What kernel-builder compiles for, by the oldest CUDA that has it. Code for 8.0 runs on 8.9 too, and so on;
# the newest comes with PTX, which the driver of a GPU that is still to come can compile.
RELEASED = (
    ((13, 0), "7.5 8.0 8.6 8.7 8.9 9.0 10.0 11.0 12.0 12.1+PTX"),
    ((12, 8), "7.0 7.2 7.5 8.0 8.6 8.7 8.9 9.0 10.0 10.1 12.0+PTX"),
    ((0, 0), "7.0 7.2 7.5 8.0 8.6 8.7 8.9 9.0+PTX"),
)


@dataclass(frozen=True, order=True)
class Arch:
    """One architecture, as build.toml and metadata.json write it: 8.0, 9.0a, 12.0+PTX."""

    major: int
    minor: int
    suffix: str = ""
    ptx: bool = False

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}{self.suffix}{'+PTX' if self.ptx else ''}"

    @property
    def number(self) -> int:
        """The 90 of sm_90a."""
        return self.major * 10 + self.minor


def parse(text: str) -> Arch:
    """Read `9.0`, `9.0a` or `12.0+PTX`."""
    match = WRITTEN.fullmatch(text)
    if match is None:
        raise BuildError(f"{text!r} is not a GPU architecture; write it like 8.0, 9.0a or 12.0+PTX")
    major, minor, suffix, ptx = match.groups()
    return Arch(int(major), int(minor), suffix, ptx is not None)


def released(cuda: tuple[int, int]) -> list[Arch]:
    """Every architecture that a release for this CUDA version holds."""
    return next([parse(text) for text in archs.split()] for oldest, archs in RELEASED if cuda >= oldest)


def split_by_support(wanted: Iterable[Arch], supported: frozenset[int]) -> tuple[list[Arch], list[Arch]]:
    """Those that this nvcc compiles for, and those that it does not know."""
    each = list(dict.fromkeys(wanted))
    return [arch for arch in each if arch.number in supported], [a for a in each if a.number not in supported]


def narrow(targets: Iterable[Arch], capabilities: Iterable[str]) -> list[Arch]:
    """For each target the newest of a component's `cuda-capabilities` that its GPU can run; all without any.

    This is kernel-builder's rule: of 8.0 and 9.0a, a target 8.9 takes 8.0, and a target 9.0 takes 9.0a.
    """
    offered = [parse(text) for text in capabilities]
    if not offered:
        return sorted(set(targets))
    chosen = set()
    for target in targets:
        # Code for 9.0a runs on a 9.0 only; that for 9.0 or 10.0f on later ones of its generation too.
        fitting = [
            arch
            for arch in offered
            if arch.major == target.major
            and (arch.minor == target.minor if arch.suffix == "a" else arch.minor <= target.minor)
        ]
        if fitting:
            chosen.add(max(fitting))
    return sorted(chosen)


def nvcc_flags(archs: Iterable[Arch]) -> list[str]:
    """What makes nvcc emit machine code for each, and PTX where asked."""
    flags = []
    for arch in archs:
        name = f"{arch.number}{arch.suffix}"
        flags.append(f"-gencode=arch=compute_{name},code=sm_{name}")
        if arch.ptx:
            flags.append(f"-gencode=arch=compute_{name},code=compute_{name}")
    return flags
