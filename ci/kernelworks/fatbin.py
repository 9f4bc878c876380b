# SPDX-License-Identifier: Apache-2.0
"""Which GPU architectures a CUDA extension holds code for, read from its fat binary without any CUDA tool."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.elffile import ELFFile

# Seen in the output of nvcc 13.0: a container is this magic number, a version, the sizes of its header and
# of its body; the body is a row of entries, each a header (kind, size, architecture, flags) and its code.
MAGIC = 0xBA55ED50
CONTAINER = struct.Struct("<IHHQ")
ENTRY = struct.Struct("<HHIQIIII8xQ")
PTX, MACHINE_CODE = 1, 2
SUFFIXES = {1 << 20: "a", 1 << 21: "f"}  # flags of sm_90a and sm_100f


@dataclass(frozen=True, order=True)
class Code:
    """The code for one architecture inside a fat binary."""

    arch: str  # as metadata.json writes it: 9.0, 9.0a, 12.1
    is_ptx: bool


def archs(extension: Path) -> frozenset[str]:
    """The architectures as metadata.json lists them, `+PTX` where a newer GPU can compile the code."""
    codes = frozenset(read(extension))
    ptx = {code.arch for code in codes if code.is_ptx}
    return frozenset(code.arch + ("+PTX" if code.arch in ptx else "") for code in codes)


def read(extension: Path) -> Iterator[Code]:
    """Every piece of GPU code in `extension`; none for a library without CUDA code."""
    with extension.open("rb") as stream:
        section = ELFFile(stream).get_section_by_name(".nv_fatbin")
        data = section.data() if section is not None else b""
    position = 0
    while position + CONTAINER.size <= len(data):
        magic, _, header, size = CONTAINER.unpack_from(data, position)
        if magic != MAGIC:
            position += 8  # containers are aligned, with zeros between them
            continue
        yield from _entries(data, position + header, position + header + size)
        position += header + size


def _entries(data: bytes, position: int, end: int) -> Iterator[Code]:
    while position < end:
        kind, _, header, size, _, _, _, number, flags = ENTRY.unpack_from(data, position)
        if kind in (PTX, MACHINE_CODE):
            suffix = "".join(letter for bit, letter in SUFFIXES.items() if flags & bit)
            yield Code(arch=f"{number // 10}.{number % 10}{suffix}", is_ptx=kind == PTX)
        position += header + size
