# SPDX-License-Identifier: Apache-2.0
"""Finding nvcc: the one of this machine, and the one of a version that is asked for."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
from test_toolchain import script

from kernelworks import toolchain_cuda
from kernelworks.errors import ToolchainError
from kernelworks.toolchain_cuda import Cuda


def without_pip_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "nvidia" else real(name))


def test_nvcc_of_cuda_home_comes_before_path(
    nvcc: Cuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "bin/nvcc", f'exec {nvcc.nvcc} "$@"')
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    found = toolchain_cuda.cuda_toolkit()
    assert (found.found_in, found.nvcc) == ("CUDA_HOME", tmp_path / "bin/nvcc")
    # A script leads to the same toolkit: its libraries are beside the real nvcc.
    assert (found.version, found.runtime, found.include) == (nvcc.version, nvcc.runtime, nvcc.include)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "empty"))
    with pytest.raises(ToolchainError, match=r"CUDA_HOME is .*empty, but there is no bin/nvcc"):
        toolchain_cuda.cuda_toolkit()


def test_what_the_toolkit_says_of_itself(nvcc: Cuda) -> None:
    assert nvcc.runtime.name.startswith("libcudart.so")
    assert (nvcc.include / "cuda_runtime.h").is_file()
    assert {80, 90} <= nvcc.architectures


def test_no_nvcc_anywhere_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    without_pip_cuda(monkeypatch)
    with pytest.raises(ToolchainError, match=r"no nvcc .*pip install -e '\.\[cuda13\]'"):
        toolchain_cuda.cuda_toolkit()


def test_nvcc_of_pip_is_found_where_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.find_spec("nvidia")
    if spec is None or not any(Path(p).glob("cu*/bin/nvcc") for p in spec.submodule_search_locations or ()):
        pytest.skip("the packages of the extra cuda13 are not installed")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    if shutil.which("nvcc") is not None:
        pytest.skip("the system's own directories hold an nvcc")
    found = toolchain_cuda.cuda_toolkit()
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
    toolchain_cuda._check_pip_toolkit(tmp_path, (13, 0))
    with pytest.raises(ToolchainError, match=r"pip's nvcc is 13\.2 but its runtime 13\.0.*cuda13"):
        toolchain_cuda._check_pip_toolkit(tmp_path, (13, 2))
    (tmp_path / "nvvm/bin/cicc").unlink()
    with pytest.raises(ToolchainError, match=r"lack nvvm/bin/cicc.*cuda13"):
        toolchain_cuda._check_pip_toolkit(tmp_path, (13, 0))


def fake_toolkit(top: Path, version: str) -> Path:
    """What is looked at of a toolkit, and an nvcc that says a version."""
    script(
        top / "bin/nvcc",
        f"""case "$1" in
--version) echo "Cuda compilation tools, release {version}, V{version}.86";;
--dryrun) echo "#\\$ TOP={top}" >&2;;
--list-gpu-code) printf 'sm_75\\nsm_90\\n';;
esac""",
    )
    for part in ("nvvm/bin/cicc", "include/cuda_runtime.h", "include/crt/host_config.h", "include/cccl/x.h"):
        (top / part).parent.mkdir(parents=True, exist_ok=True)
        (top / part).touch()
    major, minor = version.split(".")
    number = int(major) * 1000 + int(minor) * 10
    (top / "include/cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {number}\n")
    (top / "lib").mkdir()
    (top / f"lib/libcudart.so.{major}").touch()
    return top


def test_a_version_is_found_in_the_folder_of_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "cuda 13.2"  # as `pip install --target` fills it
    top = fake_toolkit(target / "nvidia/cu13", "13.2")
    monkeypatch.setenv("CUDA_HOME", str(fake_toolkit(tmp_path / "home", "13.0")))
    monkeypatch.setenv("KERNELWORKS_CUDA_13_2", str(target))
    found = toolchain_cuda.cuda_toolkit((13, 2))
    assert (found.version, found.found_in) == ((13, 2), "KERNELWORKS_CUDA_13_2")
    assert (found.nvcc, found.runtime) == (top / "bin/nvcc", top / "lib/libcudart.so.13")
    assert found.architectures == {75, 90}
    other = toolchain_cuda.cuda_toolkit((13, 0))
    assert (other.version, other.found_in) == ((13, 0), "CUDA_HOME")
    assert toolchain_cuda.cuda_toolkit().version == (13, 0)
    # The five packages of pip can drift apart in a folder of their own too.
    (top / "include/cuda_runtime_api.h").write_text("#define CUDART_VERSION  13000\n")
    with pytest.raises(ToolchainError, match=r"pip's nvcc is 13\.2 but its runtime 13\.0"):
        toolchain_cuda.cuda_toolkit((13, 2))


def test_a_version_that_is_not_here_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(fake_toolkit(tmp_path / "home", "13.0")))
    monkeypatch.setenv("PATH", str(tmp_path))
    without_pip_cuda(monkeypatch)
    with pytest.raises(ToolchainError) as error:
        toolchain_cuda.cuda_toolkit((13, 9))
    assert "no nvcc of CUDA 13.9 here (there is 13.0 from CUDA_HOME)" in str(error.value)
    assert "pip install --no-deps --target cuda-13.9 'nvidia-cuda-nvcc==13.9.*'" in str(error.value)
    assert str(error.value).endswith("set KERNELWORKS_CUDA_13_9 to that folder")
    # A variable that names another version does not pass for the wanted one, nor does an empty folder.
    monkeypatch.setenv("KERNELWORKS_CUDA_13_9", str(tmp_path / "home"))
    with pytest.raises(
        ToolchainError, match=r"there is 13\.0 from KERNELWORKS_CUDA_13_9, 13\.0 from CUDA_HOME"
    ):
        toolchain_cuda.cuda_toolkit((13, 9))
    monkeypatch.setenv("KERNELWORKS_CUDA_13_9", str(tmp_path / "empty"))
    with pytest.raises(
        ToolchainError, match=r"KERNELWORKS_CUDA_13_9 is .*empty, but there is no bin/nvcc in it"
    ):
        toolchain_cuda.cuda_toolkit((13, 9))
