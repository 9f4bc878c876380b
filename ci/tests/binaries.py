# SPDX-License-Identifier: Apache-2.0
"""Reads compiled files apart from the tool's own reader, which the tests must not trust."""

from __future__ import annotations

from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

# The newest symbol versions that a system of manylinux_2_28 has.
MANYLINUX = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}


def needed_versions(path: Path) -> dict[str, tuple[int, ...]]:
    """The newest version of each system library's symbols that an extension asks for."""
    newest: dict[str, tuple[int, ...]] = {}
    with path.open("rb") as stream:
        for section in ELFFile(stream).iter_sections():
            if isinstance(section, GNUVerNeedSection):
                for _, versions in section.iter_versions():
                    for version in versions:
                        library, _, number = version.name.partition("_")
                        if library in MANYLINUX:  # libcudart numbers its symbols in a way of its own
                            value = tuple(map(int, number.split(".")))
                            newest[library] = max(newest.get(library, ()), value)
    return newest


def dynamic_tags(path: Path) -> dict[str, list[str]]:
    """Each tag of the dynamic section, with its values in words."""
    tags: dict[str, list[str]] = {}
    with path.open("rb") as stream:
        for section in ELFFile(stream).iter_sections():
            if isinstance(section, DynamicSection):
                for tag in section.iter_tags():
                    value = getattr(tag, tag.entry.d_tag.removeprefix("DT_").lower(), "")
                    tags.setdefault(tag.entry.d_tag, []).append(str(value))
    return tags


def exported(path: Path) -> set[str]:
    """The symbols that an extension offers to others."""
    with path.open("rb") as stream:
        symbols = ELFFile(stream).get_section_by_name(".dynsym").iter_symbols()
        return {symbol.name for symbol in symbols if symbol["st_shndx"] != "SHN_UNDEF" and symbol.name}


def undefined_in_object(path: Path) -> set[str]:
    """The symbols that an object file leaves to the linker."""
    with path.open("rb") as stream:
        symbols = ELFFile(stream).get_section_by_name(".symtab").iter_symbols()
        return {symbol.name for symbol in symbols if symbol["st_shndx"] == "SHN_UNDEF"}
