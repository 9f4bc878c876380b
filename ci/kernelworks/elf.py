# SPDX-License-Identifier: Apache-2.0
"""What the dynamic linker reads of a shared library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection
from elftools.elf.sections import SymbolTableSection


@dataclass(frozen=True)
class Symbol:
    """One line of the dynamic symbol table."""

    name: str
    defined: bool
    binding: str  # GLOBAL, WEAK, LOCAL or UNIQUE
    hidden: bool
    version: str | None  # of the library that has to provide it, such as GLIBC_2.14


@dataclass(frozen=True)
class Binary:
    """What the dynamic linker reads of an extension."""

    symbols: tuple[Symbol, ...]
    versions: tuple[str, ...]  # every version that it needs of any library
    libraries: tuple[str, ...]
    search_paths: tuple[str, ...]
    executable_stack: bool

    @property
    def undefined(self) -> tuple[str, ...]:
        return tuple(symbol.name for symbol in self.symbols if not symbol.defined)


def read(extension: Path) -> Binary:
    """Read from `extension` all that the checks above ask for."""
    with extension.open("rb") as stream:
        elf = ELFFile(stream)
        tags = {
            kind: tuple(str(getattr(tag, attribute)) for tag in _dynamic_tags(elf, kind))
            for kind, attribute in (("NEEDED", "needed"), ("RPATH", "rpath"), ("RUNPATH", "runpath"))
        }
        return Binary(
            symbols=tuple(_symbols(elf)),
            versions=tuple(sorted(set(_needed_versions(elf).values()))),
            libraries=tags["NEEDED"],
            search_paths=tags["RPATH"] + tags["RUNPATH"],
            executable_stack=_has_executable_stack(elf),
        )


def _symbols(elf: ELFFile) -> Iterator[Symbol]:
    table = elf.get_section_by_name(".dynsym")
    if not isinstance(table, SymbolTableSection):
        return
    versions = _needed_versions(elf)
    indices = elf.get_section_by_name(".gnu.version")
    for position, symbol in enumerate(table.iter_symbols()):
        if not symbol.name:
            continue
        index = (
            indices.get_symbol(position)["ndx"] if isinstance(indices, GNUVerSymSection) else "VER_NDX_GLOBAL"
        )
        binding = str(symbol["st_info"]["bind"]).removeprefix("STB_")
        yield Symbol(
            name=symbol.name,
            defined=symbol["st_shndx"] != "SHN_UNDEF",
            binding="UNIQUE" if binding in ("LOOS", "GNU_UNIQUE") else binding,
            hidden=symbol["st_other"]["visibility"] in ("STV_HIDDEN", "STV_INTERNAL"),
            version=versions.get(index) if isinstance(index, int) else None,
        )


def _needed_versions(elf: ELFFile) -> dict[int, str]:
    section = elf.get_section_by_name(".gnu.version_r")
    if not isinstance(section, GNUVerNeedSection):
        return {}
    return {
        int(aux["vna_other"]): str(aux.name)
        for _, auxiliaries in section.iter_versions()
        for aux in auxiliaries
    }


def _dynamic_tags(elf: ELFFile, kind: str) -> Iterator[object]:
    section = elf.get_section_by_name(".dynamic")
    if isinstance(section, DynamicSection):
        yield from section.iter_tags(f"DT_{kind}")


def _has_executable_stack(elf: ELFFile) -> bool:
    """True also where the header is missing: the kernel then assumes the worst."""
    stack = [segment for segment in elf.iter_segments() if segment["p_type"] == "PT_GNU_STACK"]
    return not stack or bool(stack[0]["p_flags"] & 1)
