# SPDX-License-Identifier: Apache-2.0
"""`kernelworks build --platform`: the CPU variant for another kind of machine, by a real cross compiler."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from kernelworks import abi, catalog, cross, plan, toolchain
from kernelworks.cli import main
from kernelworks.errors import ToolchainError
from kernelworks.variant import REGISTRATION, write_generated_sources

TRIPLET = "aarch64-linux-gnu"
VARIANT = "torch-stable-abi211-cpu-aarch64-linux"


@pytest.fixture(scope="session")
def compiler() -> str:
    """The cross compiler; tests that ask for it are skipped where there is none."""
    if platform.machine() == "aarch64":
        pytest.skip("this machine is an aarch64: nothing to cross to")
    found = shutil.which(f"{TRIPLET}-g++")
    if found is None:
        pytest.skip(f"no {TRIPLET}-g++ (apt install g++-{TRIPLET})")
    return found


def torch_for(folder: Path, compiler: str) -> Path:
    """This machine's headers of torch, which are the same everywhere, and libraries with nothing in them.

    An extension is linked to names, and these are found when it is loaded. A few of the standard library's
    are among those of torch, which keeps an extension from asking for them at a newer libstdc++.
    """
    home, here = folder / "torch", toolchain.torch_here().home
    (home / "lib").mkdir(parents=True)
    (home / "include").symlink_to(here / "include")
    (home / "version.py").write_text("__version__ = '2.13.0+other'\n")
    there = [str(here / "lib" / name) for name in ("libc10.so", "libtorch_cpu.so")]
    listed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--format=posix", *there],
        check=True,
        capture_output=True,
        text=True,
    )
    streams = re.compile(r"(_ZN\w*St7__cxx11\d+basic_(?:o?stringstream|stringbuf)\w+) [WV] ")
    names = sorted(set(streams.findall(listed.stdout)))
    source = folder / "names.s"
    source.write_text("".join(f".weak {name}\n{name}:\n" for name in names))
    for name in ("torch", "torch_cpu", "c10"):
        library = home / f"lib/lib{name}.so"
        flags = ("-shared", "-nostdlib", f"-Wl,-soname,{library.name}", str(source))
        subprocess.run([compiler, *flags, "-o", str(library)], check=True)
    return folder


def test_the_variant_is_of_the_other_machine_and_says_that_it_did_not_run(
    repository: Path, compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELWORKS_TORCH_AARCH64", str(torch_for(tmp_path / "torch-aarch64", compiler)))
    words = ("build", "toy", "--root", str(repository), "--platform", "aarch64", "--profile", "release")
    assert main([*words, "--twice"]) == 0
    (built,) = (repository / "kernels/toy/build").iterdir()
    assert built.name == VARIANT
    metadata = json.loads((built / "metadata.json").read_text())
    assert metadata["kernelworks"] == {
        "profile": "release",
        "manylinux": True,
        "cross": f"built on {platform.machine()}, not run",
    }
    extension = built / f"{metadata['id']}.abi3.so"
    with extension.open("rb") as stream:
        assert ELFFile(stream).get_machine_arch() == "AArch64"
    assert abi.audit(extension, torch_abi=(2, 11)) == []
    assert main(["check", "toy", "--root", str(repository)]) in (0, 8)  # 8: the toy has no card


def test_it_is_the_cpu_variant_alone(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = "x86_64" if platform.machine() == "aarch64" else "aarch64"
    words = ("build", "toy", "--root", str(repository), "--platform", other, "--cuda", "13.0")
    assert main(list(words)) == 7
    assert f"--platform {other}: only the cpu backend is compiled for another kind" in capsys.readouterr().err


def test_the_kind_of_this_machine_needs_nothing_else() -> None:
    assert cross.tools_for(platform.machine()) == cross.tools_here()
    assert cross.tools_here().target is None


def test_a_missing_torch_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELWORKS_TORCH_AARCH64", raising=False)
    wanted = r"no torch for aarch64: .*--target torch-aarch64 --platform manylinux_2_28_aarch64 torch==\d"
    with pytest.raises(ToolchainError, match=wanted):
        cross.torch_of("aarch64")
    monkeypatch.setenv("KERNELWORKS_TORCH_AARCH64", str(tmp_path))
    with pytest.raises(ToolchainError, match="but there is no torch in it; name a folder that holds torch/"):
        cross.torch_of("aarch64")


def test_the_torch_of_another_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = {"x86_64": "aarch64", "aarch64": "x86_64"}[platform.machine()]
    (tmp_path / "torch").symlink_to(toolchain.torch_here().home)
    monkeypatch.setenv(f"KERNELWORKS_TORCH_{other.upper()}", str(tmp_path))
    with pytest.raises(
        ToolchainError, match=rf"is for another machine \(EM_\w+\); install one for {other} there"
    ):
        cross.torch_of(other)


def test_a_missing_compiler_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ToolchainError, match=r"no x86_64-linux-gnu-g\+\+ .*apt install g\+\+-x86-64-linux-gnu"
    ):
        toolchain.compiler_of("x86_64-linux-gnu")


def test_headers_of_debian_s_python_serve_the_other_machine_too(
    repository: Path, compiler: str, tmp_path: Path
) -> None:
    """There pyconfig.h only includes one of the machine's own, which is not here."""
    include = tmp_path / "python3.11"
    shutil.copytree(toolchain.python_include(), include)
    real = (include / "pyconfig.h").rename(tmp_path / "pyconfig-x86_64.h")
    (include / "pyconfig.h").write_text(
        f"#ifdef __aarch64__\n#include <{TRIPLET}/python3.11/pyconfig.h>\n#else\n#error not here\n#endif\n"
    )
    tools = plan.Tools(
        torch=toolchain.torch_here(),
        python_include=include,
        compiler=toolchain.compiler_of(TRIPLET),
        ninja=toolchain.ninja_program(),
        target=plan.Target("aarch64", TRIPLET, real),
    )
    build = plan.plan(catalog.load(repository, "toy"), "cpu", "dev", (), tools)
    write_generated_sources(build)
    flags = (f"-I{build.directory / 'generated'}", "-isystem", str(include), "-DPy_LIMITED_API=0x03090000")
    check = [
        compiler,
        "-std=c++20",
        *flags,
        "-fsyntax-only",
        "-x",
        "c++",
        "-include",
        "registration.h",
        "/dev/null",
    ]
    assert subprocess.run(check, check=False).returncode == 0


def test_headers_of_a_machine_of_other_sizes_do_not_compile(tmp_path: Path) -> None:
    (tmp_path / "registration.h").write_text(
        REGISTRATION.replace("#include <Python.h>", '#include "sizes.h"')
    )
    source = Path(sysconfig.get_config_h_filename()).read_text()
    sizes = [line for line in source.splitlines() if line.startswith("#define SIZEOF_")]
    check = ["g++", "-std=c++20", "-fsyntax-only", "-x", "c++", "-include", "registration.h", "/dev/null"]
    for pointer in (8, 4):
        text = "\n".join(sizes).replace("SIZEOF_VOID_P 8", f"SIZEOF_VOID_P {pointer}")
        (tmp_path / "sizes.h").write_text(f"#include <cstddef>\n{text}\n")
        done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == (pointer == 8), done.stderr
    assert "pyconfig.h is of a machine with other sizes" in done.stderr
