# SPDX-License-Identifier: Apache-2.0
"""What a build is decided to be: its name, its id, and the flags of each source."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from repositories import edit, new_repository

from kernelworks import catalog, plan, toolchain
from kernelworks.archs import Arch, parse
from kernelworks.errors import BuildError

TOOLS = plan.Tools(
    torch=toolchain.Torch("2.13.0+cpu", None, Path("/torch")),
    python_include=Path("/python"),
    compiler=toolchain.Compiler(Path("/usr/bin/g++"), "g++", "12.2.0"),
    ninja=Path("/ninja"),
)
CUDA = toolchain.Cuda(
    Path("/cuda/bin/nvcc"),
    (13, 0),
    "PATH",
    Path("/cuda/include"),
    Path("/cuda/libcudart.so"),
    frozenset({80, 90}),
)


def planned(root: Path, backend: str = "cpu", archs: str = "9.0") -> plan.Build:
    kernel = catalog.load(root, "toy")
    if backend == "cpu":
        return plan.plan(kernel, "cpu", "dev", (), TOOLS)
    return plan.plan(
        kernel, "cuda", "dev", [parse(arch) for arch in archs.split()], replace(TOOLS, cuda=CUDA)
    )


def flags(build: plan.Build, source: str) -> tuple[str, ...]:
    (unit,) = (unit for unit in build.units if unit.source == source)
    return unit.flags


def test_names_are_those_of_the_hub(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for machine in ("x86_64", "aarch64"):
        monkeypatch.setattr("platform.machine", lambda machine=machine: machine)
        assert planned(repository).variant == f"torch-stable-abi211-cpu-{machine}-linux"
        assert planned(repository, "cuda").variant == f"torch-stable-abi211-cu130-{machine}-linux"


def test_the_id_is_a_python_name_with_the_backend(repository: Path) -> None:
    build = planned(repository, "cuda")
    assert build.id.startswith("_toy_cuda_")
    assert build.id.isidentifier()
    assert 7 <= len(build.id.removeprefix("_toy_cuda_")) <= 10


def test_the_same_sources_elsewhere_give_the_same_id(repository: Path, tmp_path: Path) -> None:
    assert planned(new_repository(tmp_path / "elsewhere")).id == planned(repository).id


KERNEL = Path("kernels/toy")
CHANGES: dict[str, Callable[[Path], None]] = {
    "a source": lambda root: edit(root / KERNEL / "kernel_src/toy_cpu.cpp", "other", "another"),
    "a header": lambda root: edit(root / KERNEL / "kernel_src/toy.h", "unused", "not used"),
    "the binding": lambda root: edit(root / KERNEL / "torch-ext/torch_binding.cpp", "x must", "x has to"),
    "a python file": lambda root: edit(root / KERNEL / "torch-ext/toy/__init__.py", "Return 2", "Return two"),
    "a new python file": lambda root: (root / KERNEL / "torch-ext/toy/more.py").touch(),
    "the manifest": lambda root: edit(root / KERNEL / "build.toml", "version = 1", "version = 2"),
    "a flag": lambda root: edit(
        root / KERNEL / "build.toml", 'backend = "cpu"', 'backend = "cpu"\ncxx-flags = ["-g"]'
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_gives_another_id(repository: Path, change: str) -> None:
    before = planned(repository).id
    CHANGES[change](repository)
    assert planned(repository).id != before


def test_architectures_are_part_of_the_id(repository: Path) -> None:
    ids = {planned(repository, "cuda", archs).id for archs in ("8.0", "9.0", "8.0 9.0", "9.0+PTX")}
    assert len(ids) == 4


def test_what_is_not_a_source_leaves_the_id_alone(repository: Path) -> None:
    before = planned(repository).id
    for stranger in ("README.md", "torch-ext/toy/_ops.py", "torch-ext/toy/__init__.pyi", "tests/test_toy.py"):
        path = repository / KERNEL / stranger
        path.parent.mkdir(exist_ok=True)
        path.touch()
    # The CPU variant holds nothing of the CUDA sources.
    edit(repository / KERNEL / "kernel_src/toy.cu", "256", "128")
    assert planned(repository).id == before


def test_headers_are_not_compiled(repository: Path) -> None:
    assert [unit.source for unit in planned(repository).units] == [
        "torch-ext/torch_binding.cpp",
        "kernel_src/toy_cpu.cpp",
    ]


def test_only_the_torch_sources_know_the_id(repository: Path) -> None:
    assert [unit.knows_id for unit in planned(repository, "cuda").units] == [True, False]


def test_flags_of_the_cpu(repository: Path) -> None:
    found = flags(planned(repository), "kernel_src/toy_cpu.cpp")
    wanted = {
        "-std=gnu++20",
        "-O3",
        "-DNDEBUG",
        "-fPIC",
        "-fvisibility=hidden",
        "-fno-gnu-unique",
        "-DCPU_KERNEL",
    }
    assert wanted <= set(found)
    assert "-DTORCH_TARGET_VERSION=0x20b000000000000" in found
    assert "-DPy_LIMITED_API=0x03090000" in found
    assert "-DUSE_CUDA=1" not in found


def test_flags_of_cuda(repository: Path) -> None:
    edit(
        repository / KERNEL / "build.toml",
        'backend = "cuda"\n',
        'backend = "cuda"\ncxx-flags = ["-Wall"]\ncuda-flags = ["-lineinfo"]\n',
    )
    found = flags(planned(repository, "cuda", "8.0 9.0a"), "kernel_src/toy.cu")
    wanted = {"-std=c++20", "-O3", "--expt-relaxed-constexpr", "-DCUDA_KERNEL", "-DUSE_CUDA=1", "-lineinfo"}
    assert wanted <= set(found)
    assert "-Wall" not in found
    assert [flag for flag in found if "gencode" in flag] == [
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90a,code=sm_90a",
    ]
    assert not any("__CUDA_NO_" in flag for flag in found)
    assert {"-DCUDA_KERNEL", "-DUSE_CUDA=1"} <= set(
        flags(planned(repository, "cuda"), "torch-ext/torch_binding.cpp")
    )


def test_clang_is_not_given_gcc_s_flag(repository: Path) -> None:
    kernel = catalog.load(repository, "toy")
    clang = replace(TOOLS, compiler=toolchain.Compiler(Path("/usr/bin/clang++"), "clang++", "16.0.0"))
    assert "-fno-gnu-unique" not in flags(
        plan.plan(kernel, "cpu", "dev", (), clang), "kernel_src/toy_cpu.cpp"
    )


def test_capabilities_of_a_component_narrow_it(repository: Path) -> None:
    manifest = repository / KERNEL / "build.toml"
    edit(manifest, 'backend = "cuda"\n', 'backend = "cuda"\ncuda-capabilities = ["9.0a"]\n')
    assert planned(repository, "cuda", "8.0 9.0").archs == (Arch(9, 0, "a"),)
    with pytest.raises(BuildError, match=r"\[kernel.toy_cuda\] cuda-capabilities 9.0a has nothing for 8.0"):
        planned(repository, "cuda", "8.0")


def test_a_component_for_a_newer_cuda_is_left_out(repository: Path) -> None:
    edit(repository / KERNEL / "build.toml", 'backend = "cuda"\n', 'backend = "cuda"\ncuda-minver = "13.1"\n')
    assert [unit.source for unit in planned(repository, "cuda").units] == ["torch-ext/torch_binding.cpp"]


def test_a_torch_that_is_too_old(repository: Path) -> None:
    edit(repository / KERNEL / "build.toml", '"2.11"', '"2.14"')
    with pytest.raises(
        BuildError, match=r"kernels/toy needs torch 2.14 or later, and torch here is 2.13.0\+cpu"
    ):
        planned(repository)


def test_a_source_of_an_unknown_kind(repository: Path) -> None:
    shutil.move(
        repository / KERNEL / "kernel_src/toy_cpu.cpp", repository / KERNEL / "kernel_src/toy_cpu.f90"
    )
    edit(repository / KERNEL / "build.toml", "toy_cpu.cpp", "toy_cpu.f90")
    with pytest.raises(
        BuildError, match=r"\[kernel.toy_cpu\] src: do not know how to compile kernel_src/toy_cpu.f90"
    ):
        planned(repository)


def test_targets_of_a_release_and_of_a_dev_build() -> None:
    assert plan.targets_of("release", [], [Arch(8, 0)], CUDA)[0] == [Arch(8, 0), Arch(9, 0)]
    assert plan.targets_of("dev", [], [Arch(8, 0)], CUDA) == ([Arch(8, 0)], [])
    known, warnings = plan.targets_of("dev", [Arch(9, 0), Arch(12, 0)], [], CUDA)
    assert (known, warnings) == ([Arch(9, 0)], ["CUDA 13.0 cannot compile for 12.0: skipped"])


@pytest.mark.parametrize(
    ("profile", "wanted", "message"),
    [
        ("dev", [], "no GPU here to build for; name an architecture"),
        ("dev", [Arch(12, 0)], "CUDA 13.0 cannot compile for 12.0; use a newer CUDA"),
        ("release", [Arch(9, 0)], "a release holds every architecture"),
    ],
)
def test_targets_that_cannot_be(profile: str, wanted: list[Arch], message: str) -> None:
    with pytest.raises(BuildError, match=message):
        plan.targets_of(profile, wanted, [], CUDA)
