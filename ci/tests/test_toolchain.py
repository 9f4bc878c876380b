# SPDX-License-Identifier: Apache-2.0
"""Finding torch, compilers and CUDA on this machine, and the sentences when they are missing."""

from __future__ import annotations

import importlib.util
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


def without_pip_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "nvidia" else real(name))


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


def test_nvcc_of_cuda_home_comes_before_path(
    nvcc: toolchain.Cuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "bin/nvcc", f'exec {nvcc.nvcc} "$@"')
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    found = toolchain.cuda_toolkit()
    assert (found.found_in, found.nvcc) == ("CUDA_HOME", tmp_path / "bin/nvcc")
    # A script leads to the same toolkit: its libraries are beside the real nvcc.
    assert (found.version, found.runtime, found.include) == (nvcc.version, nvcc.runtime, nvcc.include)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "empty"))
    with pytest.raises(ToolchainError, match=r"CUDA_HOME is .*empty, but there is no bin/nvcc"):
        toolchain.cuda_toolkit()


def test_what_the_toolkit_says_of_itself(nvcc: toolchain.Cuda) -> None:
    assert nvcc.runtime.name.startswith("libcudart.so")
    assert (nvcc.include / "cuda_runtime.h").is_file()
    assert {80, 90} <= nvcc.architectures


def test_no_nvcc_anywhere_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    without_pip_cuda(monkeypatch)
    with pytest.raises(ToolchainError, match=r"no nvcc .*pip install -e '\.\[cuda13\]'"):
        toolchain.cuda_toolkit()


def test_nvcc_of_pip_is_found_where_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.find_spec("nvidia")
    if spec is None or not any(Path(p).glob("cu*/bin/nvcc") for p in spec.submodule_search_locations or ()):
        pytest.skip("the packages of the extra cuda13 are not installed")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    if shutil.which("nvcc") is not None:
        pytest.skip("the system's own directories hold an nvcc")
    found = toolchain.cuda_toolkit()
    assert found.found_in == "pip"
    assert found.runtime.is_file()


def test_pip_packages_of_two_minors_are_refused(tmp_path: Path) -> None:
    for part in (
        "nvvm/bin/cicc",
        "include/cuda_runtime.h",
        "include/crt/host_config.h",
        "include/cccl/cub.h",
    ):
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / part).touch()
    header = tmp_path / "include/cuda_runtime_api.h"
    header.write_text("#define CUDART_VERSION  13000\n")
    toolchain._check_pip_toolkit(tmp_path, (13, 0))
    with pytest.raises(ToolchainError, match=r"pip's nvcc is 13\.2 but its runtime 13\.0.*cuda13"):
        toolchain._check_pip_toolkit(tmp_path, (13, 2))
    (tmp_path / "nvvm/bin/cicc").unlink()
    with pytest.raises(ToolchainError, match=r"lack nvvm/bin/cicc.*cuda13"):
        toolchain._check_pip_toolkit(tmp_path, (13, 0))


def test_hidden_gpus_are_not_seen(tmp_path: Path) -> None:
    code = "from kernelworks import toolchain; print(toolchain.gpu_capabilities())"
    assert python(code, cwd=tmp_path, CUDA_VISIBLE_DEVICES="") == "[]\n"


@pytest.mark.cuda
def test_visible_gpus_have_the_capability_that_torch_says() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    major, minor = torch.cuda.get_device_capability(0)
    assert toolchain.gpu_capabilities()[0] == f"{major}.{minor}"
