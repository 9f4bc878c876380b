# SPDX-License-Identifier: Apache-2.0
"""`kernelworks build` from end to end: what it makes is loaded as a user loads it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from binaries import MANYLINUX, dynamic_tags, exported, needed_versions, undefined_in_object
from repositories import CPU_VARIANT, commit, edit, git, new_repository, python, variant

from kernelworks import fatbin, official, toolchain
from kernelworks.cli import main

KERNEL = Path("kernels/toy")


def build(root: Path, *arguments: str) -> int:
    return main(["build", "toy", "--root", str(root), *arguments])


def identity(root: Path, backend: str = "cpu") -> str:
    return str(json.loads((variant(root, backend) / "metadata.json").read_text())["id"])


def extension(root: Path, backend: str = "cpu") -> Path:
    return variant(root, backend) / f"{identity(root, backend)}.abi3.so"


def test_it_loads_from_its_directory_and_by_its_name(built_once: Path, tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
import torch
from kernels import get_kernel, get_local_kernel
x = torch.arange(5.0)
for toy in (get_local_kernel(Path(sys.argv[1])), get_kernel("kernelworks/toy", version=1)):
    assert torch.equal(toy.twice(x), 2 * x)
"""
    directory = str(built_once / KERNEL)
    python(code, directory, cwd=tmp_path, LOCAL_KERNELS=f"kernelworks/toy={directory}")


def test_two_versions_live_in_one_process(built_once: Path, built: Path, tmp_path: Path) -> None:
    edit(built / "common/factor.h", "2.0f", "3.0f")
    edit(built / KERNEL / "build.toml", "version = 1", "version = 2")
    assert build(built, "--backend", "cpu") == 0
    code = """
import sys
from pathlib import Path
import torch
from kernels import get_local_kernel
one, two = (get_local_kernel(Path(path)) for path in sys.argv[1:])
get_local_kernel(Path(sys.argv[1]))
x = torch.ones(3)
print(one.twice(x).tolist(), two.twice(x).tolist(), one.twice(x).tolist())
"""
    output = python(code, str(built_once / KERNEL), str(built / KERNEL), cwd=tmp_path)
    assert output == "[2.0, 2.0, 2.0] [3.0, 3.0, 3.0] [2.0, 2.0, 2.0]\n"


def test_a_user_s_module_of_the_same_name_is_not_hidden(built_once: Path, tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text("mine = True\n")
    code = """
import sys
from pathlib import Path
import torch
from kernels import get_local_kernel
kernel = get_local_kernel(Path(sys.argv[1]))
import toy
assert toy.mine and not hasattr(toy, "twice")
assert kernel.twice(torch.ones(1)).item() == 2
"""
    python(code, str(built_once / KERNEL), cwd=tmp_path)


def test_stripping_a_finished_extension_is_noticed(built: Path) -> None:
    subprocess.run(["strip", str(extension(built))], check=True)
    (violation,) = official.digest_violations(variant(built))
    assert extension(built).name in violation


def test_the_source_needs_what_the_builder_works_around(built_once: Path) -> None:
    # Otherwise the tests of manylinux below would pass for nothing.
    path = built_once / KERNEL / ".build" / CPU_VARIANT / "objects/kernel_src/toy_cpu.cpp.o"
    undefined = undefined_in_object(path)
    assert "__libc_single_threaded" in undefined
    assert any(name.startswith("exp@GLIBC_2.") for name in undefined)


def test_a_dev_build_runs_on_old_systems(built_once: Path) -> None:
    found = needed_versions(extension(built_once))
    assert found
    assert all(value <= MANYLINUX[library] for library, value in found.items()), found


def test_nothing_but_the_module_is_exported(built_once: Path) -> None:
    assert exported(extension(built_once)) == {f"PyInit_{identity(built_once)}"}


def test_libraries_are_asked_for_by_name_alone(built_once: Path) -> None:
    tags = dynamic_tags(extension(built_once))
    assert {"libtorch.so", "libtorch_cpu.so", "libc10.so"} <= set(tags["DT_NEEDED"])
    assert not {"DT_RPATH", "DT_RUNPATH", "DT_TEXTREL"} & set(tags)


def test_the_cuda_variant_needs_only_cuda_s_runtime(built_cuda: Path, nvcc: toolchain.Cuda) -> None:
    major = nvcc.version[0]
    path = extension(built_cuda, f"cu{major}{nvcc.version[1]}")
    tags = dynamic_tags(path)
    assert [name for name in tags["DT_NEEDED"] if "cu" in name.removesuffix("_cpu.so")] == [
        f"libcudart.so.{major}"
    ]
    assert not {"DT_RPATH", "DT_RUNPATH"} & set(tags)
    assert all(value <= MANYLINUX[library] for library, value in needed_versions(path).items())
    assert len(exported(path)) == 1


def test_the_binary_holds_the_architectures_of_the_metadata(built_cuda: Path) -> None:
    metadata = json.loads((variant(built_cuda, "cu") / "metadata.json").read_text())
    assert sorted(fatbin.archs(extension(built_cuda, "cu"))) == metadata["backend"]["archs"]


def test_builds_are_the_same_at_one_commit_and_differ_at_two(built_once: Path, tmp_path: Path) -> None:
    again = new_repository(tmp_path / "again")
    assert build(again, "--backend", "cpu") == 0
    assert identity(again) == identity(built_once)
    assert extension(again).read_bytes() == extension(built_once).read_bytes()
    edit(again / "common/factor.h", "2.0f", "4.0f")
    assert main(["vendor", "--root", str(again)]) == 0
    commit(again, "another factor")
    assert build(again, "--backend", "cpu") == 0
    assert identity(again) != identity(built_once)


def test_a_gpu_is_not_needed_with_a_list_of_architectures(repository: Path, nvcc: toolchain.Cuda) -> None:
    code = "import sys; from kernelworks.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ("build", "toy", "--backend", "cuda", "--arch", "9.0")
    python(code, *arguments, cwd=repository / "kernels", CUDA_VISIBLE_DEVICES="")
    assert variant(repository, "cu").is_dir()


def test_without_gpu_and_list_there_is_advice(
    repository: Path,
    nvcc: toolchain.Cuda,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(toolchain, "gpu_capabilities", list)
    assert build(repository, "--backend", "cuda") == 7
    assert "error: no GPU here to build for; name an architecture" in capsys.readouterr().err


def test_a_release_wants_a_commit(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    binding = repository / KERNEL / "torch-ext/torch_binding.cpp"
    edit(binding, "x must", "x has to")
    assert build(repository, "--profile", "release", "--backend", "cpu") == 7
    assert "tracked files are changed; commit them" in capsys.readouterr().err
    git(repository, "checkout", "--", str(binding))
    (repository / KERNEL / "torch-ext/toy/extra.py").touch()
    assert build(repository, "--profile", "release", "--backend", "cpu") == 7
    assert "git does not track kernels/toy/torch-ext/toy/extra.py" in capsys.readouterr().err
    shutil.rmtree(repository / ".git")
    assert build(repository, "--profile", "release", "--backend", "cpu") == 7
    assert "the commit unknown (not a git repository)" in capsys.readouterr().err
    assert not (repository / KERNEL / "build").exists()


def test_a_release_does_not_write_vendored_files(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(repository / "common/factor.h", "2.0f", "3.0f")
    commit(repository, "common only")
    assert build(repository, "--profile", "release", "--backend", "cpu") == 5
    assert (
        "kernel_src/vendor/factor.h: not as in common/; run `kernelworks vendor`" in capsys.readouterr().err
    )
    assert git(repository, "status", "--porcelain") == ""


def test_a_clean_release_is_built_and_says_so(built: Path) -> None:
    assert build(built, "--profile", "release", "--backend", "cpu") == 0
    metadata = json.loads((variant(built) / "metadata.json").read_text())
    assert metadata["kernelworks"] == {"profile": "release", "manylinux": True}
    assert all(value <= MANYLINUX[name] for name, value in needed_versions(extension(built)).items())


# glibc has it since 2.36.
TOO_NEW = 'extern "C" unsigned arc4random();\nunsigned random_number() { return arc4random(); }\n'


def test_what_only_new_systems_have_stops_a_release_and_marks_a_dev_build(
    built: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (built / KERNEL / "kernel_src/toy_cpu.cpp").open("a") as source:
        source.write(TOO_NEW)
    commit(built, "too new")
    assert build(built, "--backend", "cpu") == 0
    assert "warning: needs GLIBC_2.36" in capsys.readouterr().err
    assert json.loads((variant(built) / "metadata.json").read_text())["kernelworks"]["manylinux"] is False
    before = (variant(built) / "metadata.json").read_bytes()
    assert build(built, "--backend", "cpu", "--profile", "release") == 7
    assert "GLIBC_2.36" in capsys.readouterr().err
    assert (variant(built) / "metadata.json").read_bytes() == before


MISTAKES = [
    (["--backend", "cuda", "--arch", "sm_90"], "'sm_90' is not a GPU architecture"),
    (["--backend", "cpu", "--jobs", "0"], "--jobs 0: at least one is needed"),
]


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES)
def test_mistakes_on_the_command_line(
    repository: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert build(repository, *arguments) == 7
    assert sentence in capsys.readouterr().err


def test_a_backend_that_the_kernel_does_not_have(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(repository / KERNEL / "build.toml", '["cpu", "cuda"]', '["cpu"]')
    assert build(repository, "--backend", "cuda") == 7
    assert "kernels/toy has no cuda backend; it has cpu" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        (
            "kernel_src/toy_cpu.cpp",
            "kernels/toy/build.toml lists kernel_src/toy_cpu.cpp, which is not a file",
        ),
        ("torch-ext/toy/__init__.py", "kernels/toy has no torch-ext/toy/__init__.py"),
    ],
)
def test_a_missing_file_is_named(
    repository: Path, capsys: pytest.CaptureFixture[str], missing: str, sentence: str
) -> None:
    (repository / KERNEL / missing).unlink()
    assert build(repository, "--backend", "cpu") == 7
    assert sentence in capsys.readouterr().err


def test_an_edited_shared_header_is_vendored_by_the_build(repository: Path) -> None:
    (repository / KERNEL / "kernel_src/vendor/factor.h").unlink()
    with pytest.raises(SystemExit):
        build(repository, "--backend", "tpu")  # argparse refuses it before anything happens
    assert not (repository / KERNEL / "kernel_src/vendor/factor.h").exists()
    edit(repository / KERNEL / "kernel_src/toy_cpu.cpp", "return nullptr;", "return 1;")
    assert build(repository, "--backend", "cpu") == 7
    assert (repository / KERNEL / "kernel_src/vendor/factor.h").is_file()


def test_an_interrupted_build_is_quiet_and_leaves_the_old_variant(built: Path) -> None:
    before = (variant(built) / "metadata.json").read_bytes()
    # A compiler that would be busy for a minute.
    slow = built / "slow-g++"
    slow.write_text(f'#!/bin/sh\ncase "$*" in *" -c "*) sleep 60;; esac\nexec {shutil.which("g++")} "$@"\n')
    slow.chmod(0o755)
    child = subprocess.Popen(
        [sys.executable, "-m", "kernelworks", "build", "toy", "--backend", "cpu"],
        cwd=built,
        env={**os.environ, "CXX": str(slow)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    assert "slow-g++" in child.stdout.readline()  # the line about the tools comes before ninja
    time.sleep(2)
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does it
    output, _ = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "Traceback" not in output
    assert (variant(built) / "metadata.json").read_bytes() == before
    assert official.digest_violations(variant(built)) == []
