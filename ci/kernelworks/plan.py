# SPDX-License-Identifier: Apache-2.0
"""Decides what one build compiles, with which flags and under which name; touches nothing."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kernelworks.archs import Arch, narrow, nvcc_flags, released, split_by_support
from kernelworks.catalog import Component, Kernel
from kernelworks.errors import BuildError
from kernelworks.toolchain import Compiler, Cuda, Torch

HEADERS = frozenset({".h", ".hh", ".hpp", ".hxx", ".cuh", ".inc", ".inl", ".ipp"})
HOST_SOURCES = frozenset({".cpp", ".cc", ".cxx"})
ID_DIGITS = 8

OPTIMISE = ("-O3", "-DNDEBUG")
# -fno-gnu-unique: a symbol that is unique in the whole process would be shared by two versions of a kernel.
HOST = ("-std=gnu++20", *OPTIMISE, "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden")
NVCC = ("-std=c++20", *OPTIMISE, "--expt-relaxed-constexpr", "-DENABLE_FP8")
# The number is the oldest Python that the extension loads in, 3.9.
PYTHON = ("-DPy_LIMITED_API=0x03090000",)


@dataclass(frozen=True)
class Target:
    """A machine of another kind, which a build is for."""

    machine: str  # aarch64
    triplet: str  # aarch64-linux-gnu
    python_config: Path  # the pyconfig.h that stands for the one of that machine


@dataclass(frozen=True)
class Tools:
    """The programs and libraries that compile a build."""

    torch: Torch
    python_include: Path
    compiler: Compiler
    ninja: Path
    cuda: Cuda | None = None
    target: Target | None = None  # None: this machine


@dataclass(frozen=True)
class Unit:
    """One source to compile; its path is relative to the kernel's directory."""

    source: str
    flags: tuple[str, ...]  # the same on every machine: they are part of the id
    include: tuple[str, ...]
    by_nvcc: bool
    knows_id: bool


@dataclass(frozen=True)
class Build:
    """One variant of one kernel, decided down to each command."""

    kernel: Kernel
    backend: str
    profile: str
    archs: tuple[Arch, ...]
    units: tuple[Unit, ...]
    id: str
    variant: str
    tools: Tools

    @property
    def directory(self) -> Path:
        """Where objects and the ninja file live, between builds too."""
        return self.kernel.directory / ".build" / self.variant

    @property
    def destination(self) -> Path:
        """The finished variant."""
        return self.kernel.directory / "build" / self.variant


def plan(kernel: Kernel, backend: str, profile: str, targets: Sequence[Arch], tools: Tools) -> Build:
    """Everything about one build; `targets` are GPU architectures, none of them for the CPU."""
    _check_torch(kernel, tools.torch)
    components = [
        component
        for component in kernel.components_for(backend)
        if component.cuda_minver is None or tools.cuda is None or tools.cuda.version >= component.cuda_minver
    ]
    defines = (*_backend_defines(backend), *PYTHON, _torch_define(kernel.stable_abi))
    by_component = {component.name: _archs_of(kernel, component, targets) for component in components}
    archs = tuple(sorted({arch for each in by_component.values() for arch in each}))
    torch = Component("torch", backend, kernel.torch_src, kernel.torch_include)
    units = [
        unit
        for component, own in [(torch, archs), *((each, by_component[each.name]) for each in components)]
        for unit in _units(kernel, component, own, defines, tools)
    ]
    listed = dict.fromkeys([*kernel.torch_src, *(path for each in components for path in each.src)])
    unique = unique_id(kernel, listed, units, archs)
    return Build(
        kernel=kernel,
        backend=backend,
        profile=profile,
        archs=archs,
        units=tuple(units),
        id=f"_{kernel.python_name}_{backend}_{unique}",
        variant=variant_name(kernel.stable_abi, tools.cuda if backend == "cuda" else None, tools.target),
        tools=tools,
    )


def variant_name(stable_abi: tuple[int, int], cuda: Cuda | None, target: Target | None = None) -> str:
    """`torch-stable-abi211-cu130-x86_64-linux`, as the Hub names variants."""
    backend = "cpu" if cuda is None else "cu{}{}".format(*cuda.version)
    machine, system = target.machine if target else platform.machine(), platform.system().lower()
    return f"torch-stable-abi{stable_abi[0]}{stable_abi[1]}-{backend}-{machine}-{system}"


def targets_of(
    profile: str, wanted: Sequence[Arch], local: Sequence[Arch], cuda: Cuda
) -> tuple[list[Arch], list[str]]:
    """The GPU architectures that a build is for, and warnings about those this nvcc does not know."""
    if profile == "release" and wanted:
        raise BuildError("a release holds every architecture; leave out --arch, or build with --profile dev")
    asked = released(cuda.version) if profile == "release" else list(wanted or local)
    if not asked:
        raise BuildError(
            "no GPU here to build for; name an architecture, for instance --arch 9.0 (H100) or 8.9 (L4)"
        )
    known, unknown = split_by_support(asked, cuda.architectures)
    version = ".".join(map(str, cuda.version))
    warnings = [f"CUDA {version} cannot compile for {arch}: skipped" for arch in unknown]
    if not known:
        raise BuildError(
            f"CUDA {version} cannot compile for {', '.join(map(str, unknown))}; use a newer CUDA"
        )
    return known, warnings


def unique_id(kernel: Kernel, listed: Iterable[str], units: Sequence[Unit], archs: Iterable[Arch]) -> str:
    """A few hex digits that change with the sources, the flags and the architectures, and only with them."""
    content = hashlib.sha256()
    files = [kernel.directory / path for path in ("build.toml", *listed)]
    for path in [*files, *python_files(kernel)]:
        data = path.read_bytes()
        content.update(f"{path.relative_to(kernel.directory).as_posix()} {len(data)}\n".encode() + data)
    for unit in units:
        content.update("\0".join((unit.source, *unit.flags)).encode())
    content.update(" ".join(map(str, archs)).encode())
    return content.hexdigest()[:ID_DIGITS]


def python_files(kernel: Kernel) -> list[Path]:
    """The files of the kernel's Python package that a variant holds."""
    suffixes = {f".{extension}" for extension in (*kernel.pyext, "py")} - {".pyi"}
    generated = kernel.package / "_ops.py"
    return sorted(
        path
        for path in kernel.package.rglob("*")
        if path.suffix in suffixes and path.is_file() and path != generated
    )


def _check_torch(kernel: Kernel, torch: Torch) -> None:
    if torch.release < kernel.stable_abi:
        wanted = ".".join(map(str, kernel.stable_abi))
        raise BuildError(
            f"kernels/{kernel.name} needs torch {wanted} or later, and torch here is {torch.version}; "
            f"install a newer one: pip install 'torch>={wanted}'"
        )


def _backend_defines(backend: str) -> tuple[str, ...]:
    return ("-DCUDA_KERNEL", "-DUSE_CUDA=1") if backend == "cuda" else ("-DCPU_KERNEL",)


def _torch_define(stable_abi: tuple[int, int]) -> str:
    return f"-DTORCH_TARGET_VERSION={stable_abi[0] << 56 | stable_abi[1] << 48:#x}"


def _archs_of(kernel: Kernel, component: Component, targets: Sequence[Arch]) -> tuple[Arch, ...]:
    archs = tuple(narrow(targets, component.cuda_capabilities))
    if targets and not archs:
        raise BuildError(
            f"kernels/{kernel.name}/build.toml: [kernel.{component.name}] cuda-capabilities "
            f"{', '.join(component.cuda_capabilities)} has nothing for {', '.join(map(str, targets))}"
        )
    return archs


def _units(
    kernel: Kernel, component: Component, archs: tuple[Arch, ...], defines: tuple[str, ...], tools: Tools
) -> Iterable[Unit]:
    in_torch = component.name == "torch" and component.src == kernel.torch_src
    for source in component.src:
        suffix = PurePosixPath(source).suffix
        if suffix in HEADERS:
            continue
        if suffix == ".cu" and component.backend == "cuda":
            flags = (*NVCC, *nvcc_flags(archs), *_for_host(tools.compiler), *defines, *component.cuda_flags)
        elif suffix in HOST_SOURCES:
            flags = (*HOST, *_host_extra(tools.compiler), *defines, *component.cxx_flags)
        else:
            table = "torch" if in_torch else f"kernel.{component.name}"
            raise BuildError(
                f"kernels/{kernel.name}/build.toml: [{table}] src: do not know how to compile {source} "
                f"for the {component.backend} backend"
            )
        yield Unit(source, flags, component.include, suffix == ".cu", in_torch)


def _host_extra(compiler: Compiler) -> tuple[str, ...]:
    return ("-fno-gnu-unique",) if compiler.kind == "g++" else ()


def _for_host(compiler: Compiler) -> tuple[str, ...]:
    """nvcc hands these on to the host compiler."""
    return ("-Xcompiler", ",".join(("-fPIC", "-fvisibility=hidden", *_host_extra(compiler))))
