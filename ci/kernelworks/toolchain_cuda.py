# SPDX-License-Identifier: Apache-2.0
"""Finds nvcc and the runtime beside it: the one of this machine, or one of a wanted version."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernelworks.errors import ToolchainError
from kernelworks.process import run

PIP_EXTRA = "pip install -e '.[cuda13]'"
# All that nvcc needs of pip, of one minor version.
PIP_PACKAGES = (
    "nvidia-cuda-nvcc",
    "nvidia-cuda-runtime",
    "nvidia-cuda-cccl",
    "nvidia-cuda-crt",
    "nvidia-nvvm",
)


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


def cuda_toolkit(wanted: tuple[int, int] | None = None) -> Cuda:
    """nvcc from CUDA_HOME, otherwise from PATH, otherwise from pip's packages; or one of the wanted version.

    For a version, the folder that its own variable names (KERNELWORKS_CUDA_13_2) comes before these, and the
    place of NVIDIA's installer after them.
    """
    if wanted is None:
        nvcc, found_in = next(_nvcc_candidates(), (None, ""))
        if nvcc is None:
            raise ToolchainError(
                f"no nvcc in CUDA_HOME, on PATH or among pip's packages; no GPU is needed for it: {PIP_EXTRA}"
            )
        return _toolkit(nvcc, found_in, _version_of(nvcc))
    others = []
    for nvcc, found_in in _candidates_of(wanted):
        version = _version_of(nvcc)
        if version == wanted:
            return _toolkit(nvcc, found_in, version)
        others.append(f"{version[0]}.{version[1]} from {found_in}")
    number, folder = "{}.{}".format(*wanted), "cuda-{}.{}".format(*wanted)
    packages = " ".join(f"'{package}=={number}.*'" for package in PIP_PACKAGES)
    raise ToolchainError(
        f"no nvcc of CUDA {number} here (there is {', '.join(others) or 'none'}); as minor versions must not "
        f"be mixed, give it a folder of its own, `pip install --no-deps --target {folder} {packages}`, "
        f"and set {_variable_of(wanted)} to that folder"
    )


def _toolkit(nvcc: Path, found_in: str, version: tuple[int, int]) -> Cuda:
    top = _toolkit_of(nvcc)
    if "nvidia" in top.parts[-2:-1]:  # where pip puts it, site-packages/nvidia/cu13
        _check_pip_toolkit(top, version)
    codes = run([str(nvcc), "--list-gpu-code"]).stdout
    architectures = frozenset(int(number) for number in re.findall(r"sm_(\d+)\b", codes))
    include = next(path for path in _parts(top, "include") if path.is_dir())
    return Cuda(nvcc, version, found_in, include, _runtime_library(top), architectures)


def _version_of(nvcc: Path) -> tuple[int, int]:
    release = re.search(r"release (\d+)\.(\d+)", run([str(nvcc), "--version"]).stdout)
    if release is None:
        raise ToolchainError(f"{nvcc} does not say its version; set CUDA_HOME to a CUDA toolkit")
    return int(release.group(1)), int(release.group(2))


def _variable_of(wanted: tuple[int, int]) -> str:
    return "KERNELWORKS_CUDA_{}_{}".format(*wanted)


def _candidates_of(wanted: tuple[int, int]) -> Iterator[tuple[Path, str]]:
    variable = _variable_of(wanted)
    if named := os.environ.get(variable):
        tops = (Path(named), *sorted(Path(named).glob("nvidia/cu*")))
        nvcc = next((top / "bin/nvcc" for top in tops if (top / "bin/nvcc").is_file()), None)
        if nvcc is None:
            raise ToolchainError(
                f"{variable} is {named}, but there is no bin/nvcc in it, nor in nvidia/cu{wanted[0]}; "
                "name a CUDA toolkit, or the folder of `pip install --target`"
            )
        yield nvcc, variable
    yield from _nvcc_candidates()
    installed = Path("/usr/local/cuda-{}.{}/bin/nvcc".format(*wanted))
    if installed.is_file():
        yield installed, "/usr/local"


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
