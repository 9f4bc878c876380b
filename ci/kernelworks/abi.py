# SPDX-License-Identifier: Apache-2.0
"""Reads a built extension's symbols and says what would keep it from loading on another machine."""

from __future__ import annotations

import functools
import importlib.util
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from abi3info import DATAS, FUNCTIONS  # type: ignore[import-untyped]

from kernelworks.elf import Binary, read

# The newest symbol versions of a manylinux_2_28 system (AlmaLinux 8), as PEP 600's reference policy has them.
MANYLINUX = "manylinux_2_28"
NEWEST: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}
)
OLDEST_PYTHON = (3, 9)  # the floor of kernel-builder's abi3 modules
EXPECTED_LIBRARY = re.compile(
    r"(libc|libm|libpthread|libdl)\.so\.\d+|lib(stdc\+\+|gcc_s)\.so\.\d+|ld-linux[-\w]*\.so\.\d+"
    r"|libtorch\w*\.so|libc10\w*\.so|libcudart\.so\.\d+"
)
# A nested mangled name up to its first component: `_ZN2at`, `_ZNK3c106Device`, `_ZTIN5torch`.
NESTED_NAME = re.compile(r"_Z(?:T[A-Za-z]|G[VR])?N[rVK]*[RO]?(\d.*)")
TORCH_NAMESPACES = frozenset({"c10", "at", "torch", "caffe2"})
ADDED_BY_THE_LINKER = frozenset({"_init", "_fini", "_edata", "_end", "__bss_start"})


@dataclass(frozen=True)
class Violation:
    """What is wrong with a binary, and what to do about it."""

    what: str
    fix: str
    elsewhere: bool = False  # loads where it was built, only not on older systems

    def __str__(self) -> str:
        return f"{self.what}; {self.fix}"


def audit(extension: Path, *, torch_abi: tuple[int, int]) -> list[str]:
    """One sentence for each thing that would keep `extension` from loading elsewhere; empty when clean."""
    return [str(violation) for violation in violations(extension, torch_abi=torch_abi)]


def violations(extension: Path, *, torch_abi: tuple[int, int]) -> list[Violation]:
    """The same as `audit`, with what and fix apart."""
    binary = read(extension)
    return [
        *too_new_for_manylinux(binary),
        *unexpected_libraries(binary),
        *outside_python_abi(binary),
        *torch_internals(binary),
        *outside_torch_abi(binary, torch_abi),
        *unique_symbols(binary),
        *search_paths(binary),
        *exported_symbols(binary),
        *executable_stack(binary),
    ]


def too_new_for_manylinux(binary: Binary) -> Iterator[Violation]:
    users: defaultdict[str, list[str]] = defaultdict(list)
    for symbol in binary.symbols:
        if not symbol.defined and symbol.version:
            users[symbol.version].append(symbol.name)
    for version in binary.versions:
        library, _, number = version.partition("_")
        if library not in NEWEST or _is_old_enough(library, number):
            continue
        newest = ".".join(map(str, NEWEST[library]))
        needs = f"needs {version}" + (f" for {_some(users[version])}" if users[version] else "")
        yield Violation(
            f"{needs}, newer than {library}_{newest} of {MANYLINUX}",
            "avoid the function, or define it hidden in the kernel, so that older systems load the binary",
            elsewhere=True,
        )


def unexpected_libraries(binary: Binary) -> Iterator[Violation]:
    for library in binary.libraries:
        if not EXPECTED_LIBRARY.fullmatch(library):
            yield Violation(
                f"needs {library}, which a user's machine may lack",
                "link with the C and C++ runtimes, libtorch, libc10 and libcudart only",
            )


def outside_python_abi(binary: Binary) -> Iterator[Violation]:
    floor = ".".join(map(str, OLDEST_PYTHON))
    outside = [
        name
        for name in binary.undefined
        if re.match(r"_?Py", name) and name not in _python_abi(OLDEST_PYTHON)
    ]
    if outside:
        yield Violation(
            f"uses {_some(outside)}, outside Python's limited API of {floor}",
            "compile with -DPy_LIMITED_API=0x03090000 and use what Python.h then still offers",
        )


def torch_internals(binary: Binary) -> Iterator[Violation]:
    internals = [name for name in binary.undefined if _is_torch_internal(name)]
    if internals:
        yield Violation(
            f"uses {_some(internals)}, C++ of torch that changes with every release",
            "include only torch/csrc/stable and torch/headeronly",
        )


def outside_torch_abi(binary: Binary, torch_abi: tuple[int, int]) -> Iterator[Violation]:
    wanted = [name for name in binary.undefined if re.match(r"(aoti_)?torch_", name)]
    if not wanted:
        return
    known = shim_versions()
    promised = ".".join(map(str, torch_abi))
    for name in wanted:
        added = known.get(name)
        if added is None:
            yield Violation(
                f"calls {name}, which no C header of the installed torch declares",
                f"call only functions of torch's C shim that torch {promised} has",
            )
        elif added > torch_abi:
            release = ".".join(map(str, added))
            yield Violation(
                f"calls {name}, added in torch {release}, but the kernel promises to run on {promised}",
                "avoid the function, or raise stable-abi in build.toml",
            )


def unique_symbols(binary: Binary) -> Iterator[Violation]:
    unique = [symbol.name for symbol in binary.symbols if symbol.defined and symbol.binding == "UNIQUE"]
    if unique:
        yield Violation(
            f"defines {_some(unique)} as unique in the whole process, so two versions would share one copy",
            "compile every source with -fno-gnu-unique",
        )


def search_paths(binary: Binary) -> Iterator[Violation]:
    for path in binary.search_paths:
        yield Violation(
            f"has the library search path {path!r} of the machine that built it", "link without -rpath"
        )


def exported_symbols(binary: Binary) -> Iterator[Violation]:
    exported = [
        symbol.name
        for symbol in binary.symbols
        if symbol.defined and symbol.binding == "GLOBAL" and not symbol.hidden
    ]
    extra = [name for name in exported if not name.startswith("PyInit_") and name not in ADDED_BY_THE_LINKER]
    if extra:
        yield Violation(
            f"exports {_some(extra)}, which may clash with another library's symbol",
            "compile with -fvisibility=hidden; only PyInit_* is for others",
        )


def executable_stack(binary: Binary) -> Iterator[Violation]:
    if binary.executable_stack:
        yield Violation(
            "asks for an executable stack, which hardened systems refuse to load",
            "mark assembly sources with .note.GNU-stack, and link with -z noexecstack",
        )


@functools.cache
def shim_versions() -> Mapping[str, tuple[int, int]]:
    """The torch release in which each function of torch's C shim appeared, as the installed headers say."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("torch is not installed; its headers say which functions a kernel may call")
    headers = Path(spec.origin).parent / "include" / "torch" / "csrc"
    versions: dict[str, tuple[int, int]] = {}
    for folder in ("stable/c", "inductor/aoti_torch/c", "inductor/aoti_torch/generated"):
        for header in sorted((headers / folder).glob("*.h")):
            for name, added in declared_functions(header.read_text(encoding="utf-8")):
                versions[name] = min(added, versions.get(name, added))
    return MappingProxyType(versions)


def declared_functions(header: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Each shim function that a header declares, with the torch release that its `#if` guard names."""
    guards: list[tuple[int, int]] = []  # one for each open #if; (0, 0) where it names no release
    for line in header.splitlines():
        if re.match(r"\s*#\s*if", line):
            guard = re.search(r"TORCH_FEATURE_VERSION >= TORCH_VERSION_(\d+)_(\d+)", line)
            guards.append((int(guard[1]), int(guard[2])) if guard else (0, 0))
        elif re.match(r"\s*#\s*el", line) and guards:
            guards[-1] = (0, 0)
        elif re.match(r"\s*#\s*endif", line) and guards:
            guards.pop()
        elif not re.match(r"\s*(//|\*)", line):
            for name in re.findall(r"\b((?:aoti_)?torch_\w+)\s*\(", line):
                yield name, max(guards, default=(0, 0))


@functools.cache
def _python_abi(version: tuple[int, int]) -> frozenset[str]:
    members = [*FUNCTIONS.values(), *DATAS.values()]
    return frozenset(
        member.symbol.linux for member in members if (member.added.major, member.added.minor) <= version
    )


def _is_old_enough(library: str, number: str) -> bool:
    """GLIBC_PRIVATE and GLIBC_ABI_DT_RELR bind to one glibc or a new one; CXXABI's named ones are old."""
    if not re.fullmatch(r"[\d.]+", number):
        return library != "GLIBC"
    return tuple(map(int, number.split("."))) <= NEWEST[library]


def _is_torch_internal(name: str) -> bool:
    nested = NESTED_NAME.fullmatch(name)
    if nested is None:
        return False
    first, rest = _component(nested[1])
    return first in TORCH_NAMESPACES and not (first == "torch" and _component(rest)[0] == "stable")


def _component(mangled: str) -> tuple[str, str]:
    """Split the first length-prefixed name off: `5torch6stable1f` is `torch` and `6stable1f`."""
    length = re.match(r"\d+", mangled)
    if length is None:
        return "", mangled
    end = length.end() + int(length[0])
    return mangled[length.end() : end], mangled[end:]


def _some(names: Iterable[str]) -> str:
    first, second, *more = [*sorted(names), "", ""]
    shown = ", ".join(filter(None, (first, second)))
    count = sum(map(bool, more))
    return shown + (f" and {count} more" if count else "")
