# SPDX-License-Identifier: Apache-2.0
"""Finds what a build needs on this machine: torch, the host compiler, nvcc, and the GPU's capability."""

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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernelworks.errors import ToolchainError
from kernelworks.process import run

OLDEST = {"g++": 11, "clang++": 14}  # the first with all of C++20 that torch's headers use
PIP_EXTRA = "pip install -e '.[cuda13]'"


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


@dataclass(frozen=True)
class Cuda:
    """An nvcc and the runtime library beside it."""

    nvcc: Path
    version: tuple[int, int]
    found_in: str
    include: Path
    runtime: Path  # libcudart.so or libcudart.so.13
    architectures: frozenset[int]  # 75 ... 121

    def __str__(self) -> str:
        return f"nvcc {self.version[0]}.{self.version[1]} from {self.found_in} ({self.nvcc})"


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


def cuda_toolkit() -> Cuda:
    """nvcc from CUDA_HOME, otherwise from PATH, otherwise from the pip packages."""
    nvcc, found_in = next(_nvcc_candidates(), (None, ""))
    if nvcc is None:
        raise ToolchainError(
            f"no nvcc in CUDA_HOME, on PATH or among pip's packages; no GPU is needed for it: {PIP_EXTRA}"
        )
    said = run([str(nvcc), "--version"]).stdout
    release = re.search(r"release (\d+)\.(\d+)", said)
    if release is None:
        raise ToolchainError(f"{nvcc} does not say its version; set CUDA_HOME to a CUDA toolkit")
    version = int(release.group(1)), int(release.group(2))
    top = _toolkit_of(nvcc)
    if found_in == "pip":
        _check_pip_toolkit(top, version)
    codes = run([str(nvcc), "--list-gpu-code"]).stdout
    architectures = frozenset(int(number) for number in re.findall(r"sm_(\d+)\b", codes))
    include = next(path for path in _parts(top, "include") if path.is_dir())
    return Cuda(nvcc, version, found_in, include, _runtime_library(top), architectures)


def _nvcc_candidates() -> Iterator[tuple[Path, str]]:
    if home := os.environ.get("CUDA_HOME"):
        nvcc = Path(home) / "bin/nvcc"
        if not nvcc.is_file():
            raise ToolchainError(f"CUDA_HOME is {home}, but there is no bin/nvcc in it; correct or unset it")
        yield nvcc, "CUDA_HOME"
    if found := shutil.which("nvcc"):
        yield Path(found), "PATH"
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for nvcc in sorted(Path(folder).glob("cu*/bin/nvcc")):
            yield nvcc, "pip"


def _toolkit_of(nvcc: Path) -> Path:
    """The toolkit's directory, as nvcc itself sees it: nvcc on PATH may be a link or a script."""
    plan = run([str(nvcc), "--dryrun", "-x", "cu", "-c", os.devnull])
    top = re.search(r"^#\$ TOP=(.*)$", plan.stderr, re.MULTILINE)
    if top is None:
        complaint = (plan.stderr.strip().splitlines() or ["it says nothing"])[0]
        raise ToolchainError(f"{nvcc} does not work: {complaint}")
    return Path(top.group(1)).resolve()


def _parts(top: Path, *names: str) -> Iterator[Path]:
    machine = {"aarch64": "sbsa"}.get(os.uname().machine, os.uname().machine)
    for name in names:
        yield top / name
        yield top / f"targets/{machine}-linux" / name


def _runtime_library(top: Path) -> Path:
    """libcudart.so, or the libcudart.so.13 that pip's package has without a link of the plain name."""
    for folder in _parts(top, "lib64", "lib"):
        found = sorted(folder.glob("libcudart.so*"), key=lambda path: len(path.name))
        if found:
            return found[0]
    raise ToolchainError(
        f"{top} has nvcc but no libcudart.so; install the CUDA runtime there, or {PIP_EXTRA}"
    )


def _check_pip_toolkit(top: Path, version: tuple[int, int]) -> None:
    """pip lets the five packages drift apart, and nvcc then fails far from the reason."""
    for part in ("nvvm/bin/cicc", "include/cuda_runtime.h", "include/crt/host_config.h", "include/cccl"):
        if not (top / part).exists():
            raise ToolchainError(
                f"pip's CUDA packages lack {part}; install all of one minor version: {PIP_EXTRA}"
            )
    header = (top / "include/cuda_runtime_api.h").read_text(errors="replace")
    number = re.search(r"#define CUDART_VERSION\s+(\d+)", header)
    if number is not None and divmod(int(number.group(1)) // 10, 100) != version:
        major, minor = divmod(int(number.group(1)) // 10, 100)
        raise ToolchainError(
            f"pip's nvcc is {version[0]}.{version[1]} but its runtime {major}.{minor}, which do not fit; "
            f"install all of one minor version: {PIP_EXTRA}"
        )


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
