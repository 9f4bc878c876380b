# SPDX-License-Identifier: Apache-2.0
"""Checks of a kernel's C++ and CUDA sources, by reading them line by line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from kernelworks.catalog import Kernel
from kernelworks.checks_layout import sources
from kernelworks.finding import Finding

# A line knows its room: each of these may include from itself and from those before it.
ROOMS = ("vendor", "policy", "kernel", "launcher", "op", "binding")
GENERATED = frozenset({"registration.h"})  # the builder writes it beside the sources
LINES_TO_THE_CHECK = 5
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.MULTILINE)
DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
TORCH_HEADER = re.compile(r"(torch|ATen|c10|caffe2)/|Python\.h$")
# Literals are matched so that a `//` inside one does not open a comment.
COMMENT_OR_LITERAL = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'""",
    re.DOTALL,
)


def code_of(path: Path) -> str:
    """The text without comments, every line still in its place."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n") if match[0].startswith("/") else match[0]

    return COMMENT_OR_LITERAL.sub(blank, path.read_text(encoding="utf-8", errors="replace"))


def room_of(kernel: Kernel, path: Path) -> int:
    """The place of a file in `ROOMS`."""
    top, *rest = path.relative_to(kernel.directory).parts
    if rest[0] == "vendor":
        return ROOMS.index("vendor")
    if top == "torch-ext":
        # torch_binding.h declares the ops, so it belongs with them.
        return ROOMS.index("binding" if path.name == "torch_binding.cpp" else "op")
    if path.suffix in (".cu", ".c", ".cc", ".cpp", ".cxx"):
        return ROOMS.index("launcher")
    is_kernel = path.suffix == ".cuh" or path.stem.endswith("_kernel")
    return ROOMS.index("kernel" if is_kernel else "policy")


def includes_go_one_way(kernel: Kernel) -> Iterator[Finding]:
    """No upward edge, no torch below torch-ext/, no source inside a header, no header from elsewhere."""
    for path in sources(kernel):
        for match in INCLUDE.finditer(code_of(path)):
            yield from _edge(kernel, path, header=match[2], is_local=match[1] == '"')


def _edge(kernel: Kernel, path: Path, *, header: str, is_local: bool) -> Iterator[Finding]:
    below_torch = path.is_relative_to(kernel.directory / "kernel_src")
    if below_torch and TORCH_HEADER.match(header):
        yield Finding(
            path, f"includes {header}", "keep torch in torch-ext/; hand over plain pointers in Params"
        )
    if path.suffix in (".h", ".hpp", ".cuh") and Path(header).suffix in (".cu", ".cc", ".cpp", ".c"):
        yield Finding(
            path, f"is a header and includes the source {header}", "move what both need to a header"
        )
        return
    target = _resolve(kernel, path, header)
    if target is None:
        if is_local and Path(header).name not in GENERATED and not TORCH_HEADER.match(header):
            yield Finding(
                path,
                f'includes "{header}", which is not in this kernel',
                "vendor it, or write <...> for a header of the compiler or a toolkit",
            )
        return
    here, there = room_of(kernel, path), room_of(kernel, target)
    if there > here:
        yield Finding(
            path,
            f"is {ROOMS[here]} and includes {header}, which is {ROOMS[there]}",
            f"includes run {' <- '.join(ROOMS)}; move what is needed to a lower file",
        )


def _resolve(kernel: Kernel, path: Path, header: str) -> Path | None:
    includes = (kernel.torch_include, *(component.include for component in kernel.components))
    folders = dict.fromkeys(folder for include in includes for folder in include)
    for place in (path.parent, *(kernel.directory / folder for folder in folders)):
        target = (place / header).resolve()
        if target.is_file() and any(
            target.is_relative_to(kernel.directory.resolve() / top) for top in ("kernel_src", "torch-ext")
        ):
            return kernel.directory / target.relative_to(kernel.directory.resolve())
    return None


def no_macros(kernel: Kernel) -> Iterator[Finding]:
    """No `#define` in kernel_src/; vendored copies are judged in common/."""
    folder = kernel.directory / "kernel_src"
    own = [path for path in sources(kernel) if path.is_relative_to(folder) and "vendor" not in path.parts]
    yield from macros_in(own)


def macros_in(paths: list[Path]) -> Iterator[Finding]:
    """Every macro that these files define."""
    for path in paths:
        for match in DEFINE.finditer(code_of(path)):
            yield Finding(
                path, f"defines the macro {match[1]}", "use constexpr, a template, or #pragma once instead"
            )


def launches_are_checked(kernel: Kernel) -> Iterator[Finding]:
    """A launch that failed says so only to who asks."""
    for path in sources(kernel):
        if path.suffix in (".cu", ".cuh"):
            code = code_of(path)
            yield from _chevron_launches(path, code)
            yield from _extended_launches(path, code)


def _chevron_launches(path: Path, code: str) -> Iterator[Finding]:
    for match in re.finditer("<<<", code):
        end = code.find(";", match.end())
        following = code[end:].split("\n")[: LINES_TO_THE_CHECK + 1]
        if not re.search(r"cuda(GetLast|PeekAtLast)Error\s*\(", "\n".join(following)):
            yield Finding(
                path,
                f"launches at line {_line(code, match.start())} and does not look whether it failed",
                f"call cudaGetLastError within {LINES_TO_THE_CHECK} lines, and hand its result back",
            )


def _extended_launches(path: Path, code: str) -> Iterator[Finding]:
    for match in re.finditer(r"(?<!\w)(?:::)?cudaLaunchKernelEx(C)?\s*\(", code):
        before = re.split(r"[;{}]", code[: match.start()])[-1].strip()
        if before in ("", "(void)"):
            yield Finding(
                path,
                f"drops the result of cudaLaunchKernelEx at line {_line(code, match.start())}",
                "hand its result back",
            )


def _line(code: str, position: int) -> int:
    return code.count("\n", 0, position) + 1
