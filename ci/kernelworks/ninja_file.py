# SPDX-License-Identifier: Apache-2.0
"""Writes the ninja file of a build; its commands run in the kernel's directory, so that paths stay short."""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterable
from typing import Any

from ninja.ninja_syntax import Writer, escape, escape_path

from kernelworks.plan import Build, Unit

GENERATED = "generated"  # the folder of generated sources, inside the build's directory
EXTENSION = "extension.abi3.so"
SINGLE_THREADED = "libc_single_threaded.cpp"
OLD_GLIBC = "old_glibc.h"
EXPORTS = "exports.map"


def ninja_text(build: Build) -> str:
    """The whole file."""
    text: Any = io.StringIO()  # the stub of Writer says str, its code wants a stream
    ninja = Writer(text, width=110)
    folder = build.directory.relative_to(build.kernel.directory).as_posix()
    ninja.comment(
        f"{build.kernel.name}, {build.variant}; written by kernelworks, and again at the next build."
    )
    ninja.variable("ninja_required_version", "1.5")
    ninja.variable("builddir", folder)
    ninja.variable("system_include", _quoted(_system_include(build)))
    _rules(ninja, build, folder)
    objects = [_compile(ninja, build, unit, folder) for unit in build.units]
    own = f"{folder}/{GENERATED}/{SINGLE_THREADED}"
    ninja.build(
        [f"{own}.o"],
        "cxx",
        [own],
        variables={"flags": "-O3 -fPIC", "description": f"compile {SINGLE_THREADED}"},
    )
    ninja.newline()
    ninja.build([f"{folder}/{EXTENSION}"], "link", [*objects, f"{own}.o"])
    ninja.default([f"{folder}/{EXTENSION}"])
    return str(text.getvalue())


def _rules(ninja: Writer, build: Build, folder: str) -> None:
    tools = build.tools
    compiler = escape(shlex.quote(str(tools.compiler.path)))
    ninja.rule(
        "cxx",
        f"{compiler} -MMD -MF $out.d -include {folder}/{GENERATED}/{OLD_GLIBC} $flags $system_include"
        " -c $in -o $out",
        description="compile $in",
        depfile="$out.d",
        deps="gcc",
    )
    if tools.cuda is not None:
        nvcc = escape(shlex.quote(str(tools.cuda.nvcc)))
        ninja.rule(
            "nvcc",
            f"{nvcc} -ccbin {compiler} -MMD -MF $out.d $flags $system_include -c $in -o $out",
            description="compile $in",
            depfile="$out.d",
            deps="gcc",
        )
    exports = f"-Wl,--version-script={folder}/{GENERATED}/{EXPORTS}"
    ninja.rule(
        "link", f"{compiler} -shared {exports} -o $out $in {_quoted(_libraries(build))}", description="link"
    )
    ninja.newline()


def _compile(ninja: Writer, build: Build, unit: Unit, folder: str) -> str:
    output = f"{folder}/objects/{unit.source}.o"
    flags = [*unit.flags, *(f"-I{path}" for path in unit.include)]
    if unit.knows_id:
        # Only these: the id changes with every source, and must not recompile them all.
        flags += [f"-DTORCH_EXTENSION_NAME={build.id}", f"-I{folder}/{GENERATED}"]
    ninja.build(
        [escape_path(output)],
        "nvcc" if unit.by_nvcc else "cxx",
        [escape_path(unit.source)],
        variables={"flags": _quoted(flags)},
    )
    ninja.newline()
    return escape_path(output)


def _system_include(build: Build) -> list[str]:
    tools = build.tools
    directories = [*tools.torch.include, tools.python_include]
    if build.backend == "cuda" and tools.cuda is not None:
        directories.append(tools.cuda.include)
    return [part for directory in directories for part in ("-isystem", str(directory))]


def _libraries(build: Build) -> list[str]:
    """torch's libraries stay needed although Python loaded them before: it did so in a scope of its own."""
    lib = build.tools.torch.home / "lib"
    flags = [f"-L{lib}", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-Wl,--as-needed"]
    cuda = build.tools.cuda
    if build.backend == "cuda" and cuda is not None:
        # Where the source lies gets into local names that nvcc makes, and a random number too: without the
        # names, the same sources give the same bytes everywhere.
        flags += ["-Wl,--strip-all", f"-L{cuda.runtime.parent}", f"-l:{cuda.runtime.name}"]
    return flags


def _quoted(words: Iterable[str]) -> str:
    return escape(" ".join(shlex.quote(word) for word in words))
