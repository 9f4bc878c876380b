# SPDX-License-Identifier: Apache-2.0
"""A kernel compiles from the files that kernel-builder takes of it, laid into an empty folder."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from source_set import copy, source_set, tracked

from kernelworks import building, catalog, ninja_file
from kernelworks.archs import parse
from kernelworks.catalog import Kernel
from kernelworks.plan import Build
from kernelworks.provenance import Origin
from kernelworks.variant import write_generated_sources

ROOT = Path(__file__).resolve().parents[2]
NAMES = catalog.names(ROOT)
LOAD = """
import sys
from pathlib import Path

import torch
from kernels import get_local_kernel

geglu = get_local_kernel(Path(sys.argv[1]))
x = torch.randn(3, 8)
value, gate = x.chunk(2, -1)
torch.testing.assert_close(geglu.geglu(x), value * torch.nn.functional.gelu(gate))
"""


def laid_out(name: str, folder: Path) -> Kernel:
    """The kernel as it is to the official builder: alone, and without what no `src` lists."""
    (folder / "common").mkdir()
    copy(ROOT / "kernels" / name, folder / "kernels" / name)
    return catalog.load(folder, name)


def build_of(kernel: Kernel, backend: str) -> Build:
    archs = (parse("9.0"),) if backend == "cuda" else ()
    request = building.Request((backend,), archs, "dev", jobs=2, verbose=False)
    return building.plan_backend(kernel, backend, request)[0]


def quickly(build: Build) -> Build:
    """The same files by the same commands, but for the optimiser, which takes most of the time."""
    faster = {"-O3": "-O0"}
    units = [
        replace(
            unit,
            flags=(
                *(faster.get(flag, flag) for flag in unit.flags),
                *(("-Xptxas", "-O0") if unit.by_nvcc else ()),
            ),
        )
        for unit in build.units
    ]
    return replace(build, units=tuple(units))


def scans(build: Build) -> Iterator[list[str]]:
    """For each source the compiler's command that lists what it includes, with the flags of the real one."""
    tools, generated = build.tools, build.directory / ninja_file.GENERATED
    system = [*tools.torch.include, tools.python_include, *([tools.cuda.include] if tools.cuda else [])]
    for unit in build.units:
        program = [str(tools.compiler.path)]
        if unit.by_nvcc:
            assert tools.cuda is not None
            program = [str(tools.cuda.nvcc), "-ccbin", *program]
        include = [f"-I{path}" for path in (*unit.include, generated)]
        isystem = [word for path in system for word in ("-isystem", str(path))]
        name = f"-DTORCH_EXTENSION_NAME={build.id}"
        yield [*program, "-M", *unit.flags, *include, *isystem, name, unit.source]


def included(build: Build) -> set[str]:
    """The files of the kernel's directory that its compile reads; one that is missing fails the test."""
    write_generated_sources(build)
    directory = build.kernel.directory
    found = set()
    for command in scans(build):
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        paths = shlex.split(done.stdout.replace("\\\n", " ").split(": ", 1)[1])
        found |= {
            path.relative_to(directory).as_posix()
            for path in (directory.joinpath(each).resolve() for each in paths)
            if path.is_relative_to(directory) and not path.is_relative_to(build.directory)
        }
    return found


@pytest.mark.parametrize("name", NAMES)
def test_all_that_is_listed_is_tracked(name: str) -> None:
    """Nix stops at a listed file that git does not know, and a clone lacks it."""
    directory = ROOT / "kernels" / name
    assert set(source_set(directory)) - tracked(directory) == set()


@pytest.mark.parametrize("backend", catalog.BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_what_a_compile_reads_is_there(
    name: str, backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if backend == "cuda":
        request.getfixturevalue("nvcc")
    kernel = laid_out(name, tmp_path.resolve())
    found = included(build_of(kernel, backend))
    listed = {path for each in kernel.components_for(backend) for path in each.src} | set(kernel.torch_src)
    assert found == listed, "listed for this backend, and read by none of its sources, or the other way round"


def test_a_header_that_is_not_listed_is_missed(tmp_path: Path) -> None:
    """The folder holds no more than it should: otherwise nothing here could fail."""
    manifest = ROOT / "kernels/geglu/build.toml"
    copied = copy(manifest.parent, tmp_path / "whole")
    text = (copied / "build.toml").read_text()
    (copied / "build.toml").write_text(text.replace('  "torch-ext/vendor/backend.h",\n', ""))
    partial = copy(copied, tmp_path / "kernels/geglu")
    assert not (partial / "torch-ext/vendor/backend.h").exists()
    kernel = catalog.load(tmp_path, "geglu")
    with pytest.raises(AssertionError, match=r"backend\.h: No such file"):
        included(build_of(kernel, "cpu"))


@pytest.mark.parametrize("backend", catalog.BACKENDS)
def test_geglu_is_built_and_loads(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if backend == "cuda":
        request.getfixturevalue("nvcc")
    kernel = laid_out("geglu", tmp_path.resolve())
    building.check_sources(kernel)
    build = quickly(build_of(kernel, backend))
    asked = building.Request((backend,), build.archs, "dev", jobs=2, verbose=False)
    building.finish(build, Origin(None, False, "in no repository"), asked)
    assert (build.destination / "metadata.json").is_file()
    if backend == "cpu":
        subprocess.run([sys.executable, "-c", LOAD, str(kernel.directory)], check=True, timeout=120)
