# SPDX-License-Identifier: Apache-2.0
"""Finding torch, compilers and CUDA on this machine, and the sentences when they are missing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from repositories import python

from kernelworks import toolchain
from kernelworks.errors import ToolchainError


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_torch_is_what_importing_it_gives() -> None:
    found = toolchain.torch_here()
    assert (found.version, found.cuda) == (torch.__version__, torch.version.cuda)
    assert found.home == Path(torch.__file__).parent
    assert all((path / "torch").is_dir() for path in found.include)
    assert found.release == tuple(map(int, torch.__version__.split(".")[:2]))


def test_looking_at_torch_does_not_import_it(tmp_path: Path) -> None:
    code = (
        "import sys; from kernelworks import toolchain; toolchain.torch_here(); print('torch' in sys.modules)"
    )
    assert python(code, cwd=tmp_path) == "False\n"


def test_another_python_on_path_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("python", "python3"):
        script(tmp_path / name, "echo 9.9.9")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    code = "from kernelworks import toolchain as t; print(t.torch_here().version, t.python_include())"
    version, include = python(code, cwd=tmp_path).split(maxsplit=1)
    assert version == torch.__version__
    assert f"python{sys.version_info.major}.{sys.version_info.minor}" in include


def test_the_host_compiler_is_found_and_dated() -> None:
    found = toolchain.host_compiler()
    assert int(found.version.split(".")[0]) >= toolchain.OLDEST[found.kind]


def test_cxx_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.which("g++") or shutil.which("c++")
    mine = script(tmp_path / "my-cxx", f'exec {real} "$@"')
    monkeypatch.setenv("CXX", str(mine))
    assert toolchain.host_compiler().path == mine
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(
        ToolchainError, match=r"CXX is 'no-such-compiler'.*apt install g\+\+.*dnf install gcc-c\+\+"
    ):
        toolchain.host_compiler()


def test_no_compiler_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match=r"no C\+\+ compiler on PATH; install .*apt install g\+\+"):
        toolchain.host_compiler()


@pytest.mark.parametrize(
    ("says", "kind"), [("g++ (GCC) 9.4.0", r"g\+\+ 9.4.0"), ("clang version 13.0.1", r"clang\+\+ 13.0.1")]
)
def test_an_old_compiler_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, kind: str
) -> None:
    old = script(
        tmp_path / "old", f'case "$1" in --version) echo "{says}";; *) echo "{says.split()[-1]}";; esac'
    )
    monkeypatch.setenv("CXX", str(old))
    with pytest.raises(
        ToolchainError, match=f"is {kind}, and C\\+\\+20 needs 1[14]; name a newer one in CXX"
    ):
        toolchain.host_compiler()


def test_ninja_runs() -> None:
    assert subprocess.run([toolchain.ninja_program(), "--version"], check=False).returncode == 0


def test_hidden_gpus_are_not_seen(tmp_path: Path) -> None:
    code = "from kernelworks import toolchain; print(toolchain.gpu_capabilities())"
    assert python(code, cwd=tmp_path, CUDA_VISIBLE_DEVICES="") == "[]\n"


@pytest.mark.cuda
def test_visible_gpus_have_the_capability_that_torch_says() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    major, minor = torch.cuda.get_device_capability(0)
    assert toolchain.gpu_capabilities()[0] == f"{major}.{minor}"
