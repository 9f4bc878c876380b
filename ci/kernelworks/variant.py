# SPDX-License-Identifier: Apache-2.0
"""Writes what is not compiled: generated sources, and the finished variant with its metadata and digest."""

from __future__ import annotations

import json
import platform
import shutil
from pathlib import Path
from typing import Any

from kernelworks import __version__, official
from kernelworks.errors import BuildError
from kernelworks.ninja_file import EXPORTS, EXTENSION, GENERATED, OLD_GLIBC, SINGLE_THREADED
from kernelworks.plan import Build, python_files
from kernelworks.provenance import Origin

REGISTRATION = """\
// Generated. The macros that a kernel's binding needs, under the names that kernel-builder gives them.
#pragma once

#include <Python.h>

#define CONCAT_AS_WRITTEN(A, B) A##B
#define CONCAT(A, B) CONCAT_AS_WRITTEN(A, B)
#define STRINGIFY_AS_WRITTEN(A) #A
#define STRINGIFY(A) STRINGIFY_AS_WRITTEN(A)

// Python's headers of one machine serve another of the same sizes, and no other.
static_assert(SIZEOF_INT == sizeof(int) && SIZEOF_LONG == sizeof(long) && SIZEOF_VOID_P == sizeof(void*) &&
                  SIZEOF_LONG_LONG == sizeof(long long) && SIZEOF_SIZE_T == sizeof(size_t) &&
                  SIZEOF_WCHAR_T == sizeof(wchar_t),
              "pyconfig.h is of a machine with other sizes");

// torch's own macros paste their argument as written; these expand it first, so that it may be a macro.
#define TORCH_LIBRARY_EXPAND(NAME, M) TORCH_LIBRARY(NAME, M)
#define TORCH_LIBRARY_IMPL_EXPAND(NAME, KEY, M) TORCH_LIBRARY_IMPL(NAME, KEY, M)
#define STABLE_TORCH_LIBRARY_EXPAND(NAME, M) STABLE_TORCH_LIBRARY(NAME, M)
#define STABLE_TORCH_LIBRARY_IMPL_EXPAND(NAME, KEY, M) STABLE_TORCH_LIBRARY_IMPL(NAME, KEY, M)

// Importing an empty module loads the library, and loading it registers the ops.
#define REGISTER_EXTENSION(NAME)                                                           \\
  PyMODINIT_FUNC CONCAT(PyInit_, NAME)(void) {                                             \\
    static PyModuleDef definition = {                                                      \\
        PyModuleDef_HEAD_INIT, STRINGIFY(NAME), nullptr, 0, nullptr, nullptr, nullptr, nullptr, nullptr}; \\
    return PyModule_Create(&definition);                                                   \\
  }
"""

# libstdc++'s shared_ptr reads this flag of glibc 2.32; "not single threaded" is the safe answer, and a hidden
# copy of it lets the extension load on the older glibc of manylinux_2_28.
SINGLE_THREADED_SOURCE = """\
// Generated. Keeps the extension from asking glibc 2.32 for this flag; zero means "threads may be running".
extern "C" {
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
}
"""

# glibc 2.29 gave these new versions, which no longer call a user's error handler; the old ones, which every
# glibc still has, compute the same numbers.
OLD_GLIBC_HEADER = """\
// Generated. Binds to functions of the mathematical library that glibc 2.28 has too.
#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
#ifdef __x86_64__
#define OLD_GLIBC "GLIBC_2.2.5"
#else
#define OLD_GLIBC "GLIBC_2.17"
#endif
__asm__(".symver exp,exp@" OLD_GLIBC);
__asm__(".symver exp2,exp2@" OLD_GLIBC);
__asm__(".symver log,log@" OLD_GLIBC);
__asm__(".symver log2,log2@" OLD_GLIBC);
__asm__(".symver pow,pow@" OLD_GLIBC);
#undef OLD_GLIBC
#endif
"""

# Templates of the standard library are visible whatever -fvisibility says, and the dynamic linker would let
# one kernel use another's.
EXPORTS_MAP = """\
/* Generated. All that Python needs to see. */
{ global: PyInit_*; local: *; };
"""

OPS = '''\
import torch

from . import {id}

ops = torch.ops.{id}


def add_op_namespace_prefix(op_name: str) -> str:
    """Prefix an op's name with the namespace of this build."""
    return f"{id}::{{op_name}}"
'''


def write_generated_sources(build: Build) -> None:
    """What the ninja file compiles or includes besides the kernel's own files."""
    folder = build.directory / GENERATED
    folder.mkdir(parents=True, exist_ok=True)
    write_if_different(folder / "registration.h", REGISTRATION)
    write_if_different(folder / EXPORTS, EXPORTS_MAP)
    write_if_different(folder / OLD_GLIBC, OLD_GLIBC_HEADER)
    write_if_different(folder / SINGLE_THREADED, SINGLE_THREADED_SOURCE)
    if (target := build.tools.target) is not None:
        # Debian's pyconfig.h sends each machine to a file of its own, which is there for one machine only.
        inner = folder / target.triplet / build.tools.python_include.name
        inner.mkdir(parents=True, exist_ok=True)
        write_if_different(inner / "pyconfig.h", f'#include "{target.python_config}"\n')


def write_if_different(path: Path, text: str) -> None:
    """Keep the date of a file whose content stays, so that nothing is compiled again for it."""
    if not path.is_file() or path.read_text() != text:
        path.write_text(text)


def assemble(build: Build, origin: Origin, manylinux: bool) -> bool:
    """Put the variant together beside its place and swap it in; False if the very same was there."""
    stage = build.directory / "stage"
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir()
    for path in python_files(build.kernel):
        target = stage / path.relative_to(build.kernel.package)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    (stage / "_ops.py").write_text(OPS.format(id=build.id))
    shutil.copyfile(build.directory / EXTENSION, stage / f"{build.id}.abi3.so")
    metadata = metadata_of(build, origin, manylinux, official.digest(stage))
    text = json.dumps(metadata, indent=2)
    if (complaint := official.complaint_about_metadata(text)) is not None:
        raise BuildError(f"the metadata of kernels/{build.kernel.name} is not valid: {complaint}")
    (stage / "metadata.json").write_text(text)
    if official.metadata_of(build.destination) == metadata and not official.digest_violations(
        build.destination
    ):
        shutil.rmtree(stage)
        return False
    swap_in(stage, build.destination)
    return True


def metadata_of(build: Build, origin: Origin, manylinux: bool, digest: dict[str, Any]) -> dict[str, Any]:
    """The content of metadata.json, in the order of kernel-builder; our own key comes last."""
    kernel = build.kernel
    backend: dict[str, Any] = {"type": build.backend}
    if build.archs:
        backend["archs"] = sorted({str(arch) for arch in build.archs})
    provenance: dict[str, Any] = {"kernel-builder": {"version": f"kernelworks-{__version__}"}}
    if origin.commit is not None:
        provenance["kernel"] = {"commit": origin.commit, "dirty": origin.dirty}
    optional = {"upstream": kernel.upstream, "source": kernel.source}
    return {
        "name": kernel.name,
        "id": build.id,
        "version": kernel.version,
        "license": kernel.license,
        **{key: value for key, value in optional.items() if value is not None},
        "python-depends": list(kernel.python_depends),
        "kernel-depends": [],
        "backend": backend,
        "digest": digest,
        "provenance": provenance,
        "kernelworks": {
            "profile": build.profile,
            "manylinux": manylinux,
            **({"cross": f"built on {platform.machine()}, not run"} if build.tools.target else {}),
            **({} if origin.commit else {"note": f"commit unknown: {origin.note}"}),
        },
    }


def swap_in(stage: Path, destination: Path) -> None:
    """Two renames: a reader sees the old variant, for an instant none, or the new one; never half."""
    destination.parent.mkdir(exist_ok=True)
    retired = stage.with_name("retired")
    shutil.rmtree(retired, ignore_errors=True)
    if destination.is_dir():
        destination.rename(retired)
    stage.rename(destination)
    shutil.rmtree(retired, ignore_errors=True)
