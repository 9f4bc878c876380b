# SPDX-License-Identifier: Apache-2.0
"""Each rule of the ABI audit, proven by a tiny library that breaks just that one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kernelworks import abi

CLEAN = """
#include <math.h>
#include <stdlib.h>
#define API extern "C" __attribute__((visibility("default")))
int pointed; int* volatile pointers[] = {&pointed, &pointed};
extern "C" int PyModule_Create2(void*, int);
extern "C" int aoti_torch_get_dim(void*, long*);
extern "C" int torch_get_num_threads(unsigned*);
namespace torch::stable { int registered(); }
namespace torchlike { int kept(); }
API int PyInit_clean() {
  return PyModule_Create2(0, 3) + aoti_torch_get_dim(0, 0) + torch_get_num_threads(0)
      + torch::stable::registered() + torchlike::kept() + int(cos(1.0)) + atoi(getenv("HOME"));
}
"""
FLAGS = ("-shared", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique", "-O1")


def compiled(folder: Path, source: str, *flags: str) -> Path:
    (folder / "tiny.cpp").write_text(source)
    library = folder / "tiny.so"
    # -no-undefined is not given: an extension finds the symbols of Python and torch at load time.
    subprocess.run(
        ["g++", *FLAGS, str(folder / "tiny.cpp"), "-o", str(library), *flags], check=True, timeout=60
    )
    return library


def test_a_clean_library_has_no_findings(tmp_path: Path) -> None:
    assert abi.audit(compiled(tmp_path, CLEAN), torch_abi=(2, 11)) == []


@pytest.mark.parametrize(
    ("source", "flags", "sentence"),
    [
        pytest.param(
            "extern char __libc_single_threaded; char f() { return __libc_single_threaded; }"
            'extern "C" __attribute__((visibility("default"))) char PyInit_x() { return f(); }',
            (),
            "needs GLIBC_2.32 for __libc_single_threaded, newer than GLIBC_2.28 of manylinux_2_28",
            id="glibc",
        ),
        pytest.param(
            "#include <charconv>\nchar b[99];"
            'extern "C" __attribute__((visibility("default"))) void PyInit_x(double d)'
            "{ std::to_chars(b, b + 99, d); }",
            (),
            "needs GLIBCXX_3.4.29 for _ZSt8to_charsPcS_d, newer than GLIBCXX_3.4.24 of manylinux_2_28",
            id="libstdc++",
        ),
        pytest.param(
            CLEAN,
            ("-Wl,-z,pack-relative-relocs",),
            "needs GLIBC_ABI_DT_RELR, newer than GLIBC_2.28 of manylinux_2_28",
            id="packed-relocations",
        ),
        pytest.param(
            CLEAN,
            ("-Wl,--no-as-needed", "-lresolv"),
            "needs libresolv.so.2, which a user's machine may lack",
            id="library",
        ),
        pytest.param(
            CLEAN.replace("PyModule_Create2", "_PyObject_GetDictPtr"),
            (),
            "uses _PyObject_GetDictPtr, outside Python's limited API of 3.9",
            id="python-private",
        ),
        pytest.param(
            CLEAN.replace("PyModule_Create2", "PyObject_Vectorcall"),
            (),
            "uses PyObject_Vectorcall, outside Python's limited API of 3.9",
            id="python-too-new",
        ),
        pytest.param(
            CLEAN.replace("torch::stable", "torch::jit"),
            (),
            "uses _ZN5torch3jit10registeredEv, C++ of torch that changes with every release",
            id="torch-internal",
        ),
        pytest.param(
            CLEAN.replace("torchlike::kept()", "c10::Dev().i()").replace(
                "namespace torchlike { int kept(); }", "namespace c10 { struct Dev { int i() const; }; }"
            ),
            (),
            "uses _ZNK3c103Dev1iEv, C++ of torch that changes with every release",
            id="c10-const-method",
        ),
        pytest.param(
            CLEAN.replace("torch_get_num_threads", "torch_tag_core"),
            (),
            "calls torch_tag_core, added in torch 2.12, but the kernel promises to run on 2.11",
            id="torch-too-new",
        ),
        pytest.param(
            CLEAN.replace("aoti_torch_get_dim", "aoti_torch_no_such_thing"),
            (),
            "calls aoti_torch_no_such_thing, which no C header of the installed torch declares",
            id="torch-unknown",
        ),
        pytest.param(
            CLEAN + '__attribute__((visibility("default"))) inline int& count() { static int n; return n; }\n'
            "int use() { return ++count(); }",
            ("-fgnu-unique",),
            "defines _ZZ5countvE1n as unique in the whole process, so two versions would share one copy",
            id="unique",
        ),
        pytest.param(
            CLEAN,
            ("-Wl,-rpath,/opt/torch/lib",),
            "has the library search path '/opt/torch/lib' of the machine that built it",
            id="runpath",
        ),
        pytest.param(
            CLEAN,
            ("-Wl,--disable-new-dtags,-rpath,$ORIGIN",),
            "has the library search path '$ORIGIN' of the machine that built it",
            id="rpath",
        ),
        pytest.param(
            CLEAN + "void a() {} void b() {} void c() {}",
            ("-fvisibility=default",),
            "exports _Z1av, _Z1bv and 3 more, which may clash with another library's symbol",
            id="exported",
        ),
        pytest.param(
            CLEAN,
            ("-Wl,-z,execstack",),
            "asks for an executable stack, which hardened systems refuse to load",
            id="executable-stack",
        ),
    ],
)
def test_each_broken_rule_is_one_sentence(
    tmp_path: Path, source: str, flags: tuple[str, ...], sentence: str
) -> None:
    (found,) = abi.audit(compiled(tmp_path, source, *flags), torch_abi=(2, 11))
    assert found.startswith(sentence + "; ")


def test_a_newer_promise_allows_newer_functions(tmp_path: Path) -> None:
    library = compiled(tmp_path, CLEAN.replace("torch_get_num_threads", "torch_tag_core"))
    assert abi.audit(library, torch_abi=(2, 12)) == []


def test_the_headers_are_read_with_their_guards() -> None:
    header = """
    AOTI_TORCH_EXPORT int aoti_torch_old(void* x);
    #if TORCH_FEATURE_VERSION >= TORCH_VERSION_2_12_0
    // torch_commented(x)
    #ifdef USE_CUDA
    AOTI_TORCH_EXPORT int torch_new(
        int x);
    #endif
    #else
    AOTI_TORCH_EXPORT int torch_before(int x);
    #endif
    AOTI_TORCH_EXPORT int aoti_torch_last();
    """
    assert dict(abi.declared_functions(header)) == {
        "aoti_torch_old": (0, 0),
        "torch_new": (2, 12),
        "torch_before": (0, 0),
        "aoti_torch_last": (0, 0),
    }
