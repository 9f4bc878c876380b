# SPDX-License-Identifier: Apache-2.0
"""`kernelworks build --twice`: the same bytes in any folder, and a difference is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from repositories import edit, variant
from test_toolchain import script

from kernelworks import reproducing, toolchain
from kernelworks.cli import main

KERNEL = Path("kernels/toy")


def build(root: Path, *arguments: str) -> int:
    return main(["build", "toy", "--root", str(root), "--twice", *arguments])


def test_the_cpu_variant_is_the_same_twice(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (variant(built) / "metadata.json").read_bytes()
    assert build(built, "--backend", "cpu") == 0
    assert "toy torch-stable-abi211-cpu-x86_64-linux: the same, bit for bit" in capsys.readouterr().out
    assert (variant(built) / "metadata.json").read_bytes() == before


def test_the_cuda_variant_is_the_same_twice(
    repository: Path, nvcc: toolchain.Cuda, capsys: pytest.CaptureFixture[str]
) -> None:
    version = "{}.{}".format(*nvcc.version)
    # The names of what is local say where the source lies; a kernel must not be one of them.
    source = repository / KERNEL / "kernel_src/toy.cu"
    edit(source, "namespace {\n", "")
    edit(source, "}  // namespace\n", "namespace { int here; }\nint* where() { return &here; }\n")
    assert build(repository, "--backend", "cuda", "--cuda", version, "--arch", "9.0+PTX") == 0
    assert ": the same, bit for bit" in capsys.readouterr().out


def test_a_build_that_holds_the_time_is_refused(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(repository / KERNEL / "kernel_src/toy_cpu.cpp", "return nullptr;", 'return NOW[0] ? nullptr : "";')
    with (repository / KERNEL / "kernel_src/toy.h").open("a") as header:
        header.write("inline const char* volatile NOW = NANOSECONDS;\n")
    define = '-DNANOSECONDS="\\"$(date +%s%N)\\""'
    monkeypatch.setenv("CXX", str(script(tmp_path / "g++", f'exec {shutil.which("g++")} "{define}" "$@"')))
    assert build(repository, "--backend", "cpu") == 7
    sentence = (
        "error: kernels/toy torch-stable-abi211-cpu-x86_64-linux is not the same when it is built again: "
    )
    assert sentence + "sections " in capsys.readouterr().err
    assert not (repository / KERNEL / "build").exists()


def test_what_differs_is_named(built_once: Path, tmp_path: Path) -> None:
    (library,) = variant(built_once).glob("*.so")
    copy = Path(shutil.copy(library, tmp_path))
    assert reproducing.difference(library, copy) is None
    content = bytearray(copy.read_bytes())
    place = content.index(b"PyInit_", 0)
    content[place] ^= 1
    copy.write_bytes(content)
    assert reproducing.difference(library, copy) == "sections .dynstr differ"
    copy.write_bytes(library.read_bytes() + b"\0")
    assert reproducing.difference(library, copy) == "bytes outside of all sections differ"
