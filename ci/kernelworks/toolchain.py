# SPDX-License-Identifier: Apache-2.0
"""Finds what a build needs on this machine: torch, the compilers, the GPU's capability."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.metadata
import importlib.util
import os
import re
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from kernelworks.errors import ToolchainError
from kernelworks.process import run
from kernelworks.toolchain_cuda import Cuda as Cuda
from kernelworks.toolchain_cuda import cuda_toolkit as cuda_toolkit

OLDEST = {"g++": 11, "clang++": 14}  # the first with all of C++20 that torch's headers use


@dataclass(frozen=True)
class Torch:
    """The torch of the Python that runs this."""

    version: str
    cuda: str | None  # the CUDA version torch was built for
    home: Path

    @property
    def release(self) -> tuple[int, int]:
        """(2, 13) of 2.13.0+cpu."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    @property
    def include(self) -> tuple[Path, ...]:
        """Where torch's headers are."""
        return self.home / "include", self.home / "include/torch/csrc/api/include"


@dataclass(frozen=True)
class Compiler:
    """The C++ compiler of the host."""

    path: Path
    kind: str
    version: str

    def __str__(self) -> str:
        return f"{self.kind} {self.version} ({self.path})"


def torch_here() -> Torch:
    """The running interpreter's torch, looked at without importing it: that would take seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise ToolchainError(f"{sys.executable} has no torch; install it there: pip install 'torch>=2.11'")
    home = Path(spec.submodule_search_locations[0])
    built_for = re.search(
        r"^cuda[^=\n]*= *['\"]([\d.]+)['\"]", (home / "version.py").read_text(), re.MULTILINE
    )
    return Torch(importlib.metadata.version("torch"), built_for and built_for.group(1), home)


def python_include() -> Path:
    """Where Python.h is."""
    include = Path(sysconfig.get_paths()["include"])
    if not (include / "Python.h").is_file():
        raise ToolchainError(
            f"{include} has no Python.h; install python3-dev (Debian, Ubuntu) or python3-devel (Fedora)"
        )
    return include


def ninja_program() -> Path:
    """The ninja of the pip package, or the one on PATH."""
    spec = importlib.util.find_spec("ninja")
    for home in (spec.submodule_search_locations or ()) if spec is not None else ():
        for candidate in (Path(home) / "data/bin/ninja", Path(sys.executable).parent / "ninja"):
            if candidate.is_file():
                return candidate
    found = shutil.which("ninja")
    if found is None:
        raise ToolchainError(f"no ninja for {sys.executable}; install it there: pip install ninja")
    return Path(found)


def host_compiler() -> Compiler:
    """CXX if it is set, otherwise g++ or c++ or clang++ from PATH; checked to be new enough."""
    wanted = os.environ.get("CXX")
    candidates = (wanted,) if wanted else ("g++", "c++", "clang++")
    path = next((found for name in candidates if (found := shutil.which(name))), None)
    if path is None:
        what = f"CXX is {wanted!r}, which is not a program" if wanted else "no C++ compiler on PATH"
        raise ToolchainError(
            f"{what}; install g++ (Debian, Ubuntu: apt install g++) or gcc-c++ (Fedora: dnf install gcc-c++)"
        )
    return _dated(path)


def compiler_of(triplet: str) -> Compiler:
    """The cross compiler of another machine, as Debian names it: aarch64-linux-gnu-g++."""
    found = shutil.which(f"{triplet}-g++")
    if found is None:
        package = f"g++-{triplet.replace('_', '-')}"
        raise ToolchainError(
            f"no {triplet}-g++ on PATH, which compiles for that machine; install it (apt install {package})"
        )
    return _dated(found)


def _dated(path: str) -> Compiler:
    """A compiler with its kind and version; one that is too old is refused."""
    kind = "clang++" if "clang" in run([path, "--version"]).stdout.lower() else "g++"
    # clang's -dumpversion is its own, g++'s needs "full" since version 7 for more than the major number.
    version = run([path, "-dumpfullversion", "-dumpversion"] if kind == "g++" else [path, "-dumpversion"])
    number = re.match(r"\d+", version.stdout)
    if number is None:
        raise ToolchainError(f"{path} does not say its version; name a C++ compiler in CXX")
    if int(number.group()) < OLDEST[kind]:
        raise ToolchainError(
            f"{path} is {kind} {version.stdout.strip()}, and C++20 needs {OLDEST[kind]}; name a newer "
            "one in CXX (Debian, Ubuntu: apt install g++-12; Fedora: dnf install gcc-c++)"
        )
    return Compiler(Path(path), kind, version.stdout.strip())


def gpu_capabilities() -> list[str]:
    """The capability of each visible GPU, asked of the driver: importing torch for it would take seconds."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    found = []
    for index in range(count.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        # 75 and 76 are the attributes COMPUTE_CAPABILITY_MAJOR and _MINOR of the driver's interface.
        if (
            driver.cuDeviceGet(ctypes.byref(device), index) == 0
            and driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device) == 0
            and driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, device) == 0
        ):
            found.append(f"{major.value}.{minor.value}")
    return found
