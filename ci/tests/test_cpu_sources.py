# SPDX-License-Identifier: Apache-2.0
"""The CPU sources without torch: on another processor, and sealed where they use a wider instruction set."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "kernels/rmsnorm/kernel_src"
FLAGS = ("-std=gnu++20", "-O2", "-Wno-psabi", f"-I{SOURCES}")


def compile_with(compiler: str, *arguments: str | Path) -> None:
    done = subprocess.run(
        [compiler, *FLAGS, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("compiler", "runner"), [("g++", ()), ("aarch64-linux-gnu-g++", ("qemu-aarch64",))])
def test_rows_are_right(tmp_path: Path, compiler: str, runner: tuple[str, ...]) -> None:
    """Every element type with weights of each, widths with and without a tail, every instruction set here."""
    for tool in (compiler, *runner):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} on PATH")
    program = tmp_path / "rows"
    compile_with(
        compiler,
        *sorted(SOURCES.glob("rmsnorm_*.cpp")),
        Path(__file__).with_name("rmsnorm_rows.cpp"),
        *("-static", "-o", program),
    )
    for isa in ("portable", "avx2", "avx512"):  # one that the machine lacks falls back to what it has
        run = subprocess.run(
            [*runner, str(program)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "KERNELWORKS_CPU_ISA": isa},
        )
        assert (run.stdout.strip(), run.returncode) == ("right", 0), isa


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_wide_code_stays_in_its_file(tmp_path: Path, isa: str) -> None:
    """An inline function that the linker shares, compiled wide, is an illegal instruction elsewhere (D12).

    So a sealed file defines its entry point and nothing else that another file could call.
    """
    target = tmp_path / "sealed.o"
    compile_with("g++", "-c", "-fPIC", SOURCES / f"rmsnorm_{isa}.cpp", "-o", target)
    with target.open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".symtab").iter_symbols()
        shared = [
            symbol.name
            for symbol in symbols
            if symbol["st_info"]["bind"] != "STB_LOCAL" and symbol["st_shndx"] != "SHN_UNDEF"
        ]
    assert [f"{isa}_routines" in name for name in shared] == [True]
