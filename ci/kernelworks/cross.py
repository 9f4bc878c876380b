# SPDX-License-Identifier: Apache-2.0
"""Finds what a CPU variant for another kind of machine needs: its compiler, its torch, Python's headers."""

from __future__ import annotations

import os
import platform
import re
import sysconfig
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from kernelworks import toolchain
from kernelworks.errors import ToolchainError
from kernelworks.plan import Target, Tools
from kernelworks.toolchain import Torch

MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}  # and what their ELF files say


def tools_for(machine: str) -> Tools:
    """The tools of a build for `machine`; this machine's own where it is of that kind."""
    if machine == platform.machine():
        return tools_here()
    triplet = f"{machine}-linux-gnu"
    include = toolchain.python_include()
    return Tools(
        torch=torch_of(machine),
        python_include=include,
        compiler=toolchain.compiler_of(triplet),
        ninja=toolchain.ninja_program(),
        target=Target(machine, triplet, Path(sysconfig.get_config_h_filename())),
    )


def tools_here() -> Tools:
    """The tools of a build for this machine."""
    return Tools(
        torch=toolchain.torch_here(),
        python_include=toolchain.python_include(),
        compiler=toolchain.host_compiler(),
        ninja=toolchain.ninja_program(),
    )


def torch_of(machine: str) -> Torch:
    """The torch of another machine, from the folder that a variable names: its headers and libraries only."""
    variable = f"KERNELWORKS_TORCH_{machine.upper()}"
    named = os.environ.get(variable)
    if not named:
        version = toolchain.torch_here().version.partition("+")[0]
        raise ToolchainError(
            f"no torch for {machine}: `pip install --no-deps --only-binary=:all: --target torch-{machine} "
            f"--platform manylinux_2_28_{machine} torch=={version}`, and set {variable} to that folder"
        )
    home = Path(named) / "torch"
    library, said = home / "lib/libtorch_cpu.so", home / "version.py"
    if not library.is_file() or not said.is_file():
        raise ToolchainError(
            f"{variable} is {named}, but there is no torch in it; name a folder that holds torch/"
        )
    if (found := _machine_of(library)) != MACHINES[machine]:
        raise ToolchainError(
            f"{variable} is {named}, whose torch is for another machine ({found}); "
            f"install one for {machine} there"
        )
    written = re.search(r"^__version__ *= *['\"]([^'\"]+)", said.read_text(), re.MULTILINE)
    if written is None:
        raise ToolchainError(f"{said} does not say its version; install torch there anew")
    return Torch(written[1], None, home)


def _machine_of(library: Path) -> str:
    try:
        with library.open("rb") as stream:
            return str(ELFFile(stream)["e_machine"])
    except ELFError:
        return "no ELF file"
