# SPDX-License-Identifier: Apache-2.0
"""The ninja file: who gets the id, what is linked, and no paths of this machine where they do not belong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from test_plan import CUDA, TOOLS, planned

from kernelworks import catalog, plan
from kernelworks.ninja_file import ninja_text


def lines(text: str) -> list[str]:
    """The statements of a ninja file, with its continued lines joined."""
    return [line.strip() for line in text.replace("$\n", "").split("\n")]


def statement(text: str, word: str) -> str:
    (found,) = (line for line in lines(text) if word in " ".join(line.split()))
    return " ".join(found.split())


def test_the_id_reaches_the_binding_only(repository: Path) -> None:
    build = planned(repository)
    assert ninja_text(build).count(build.id) == 1
    assert f"-DTORCH_EXTENSION_NAME={build.id}" in statement(ninja_text(build), build.id)


def test_paths_of_the_kernel_are_relative(repository: Path) -> None:
    assert str(repository) not in ninja_text(planned(repository, "cuda"))


def test_the_cpu_variant_is_linked_to_torch_without_a_run_path(repository: Path) -> None:
    link = statement(ninja_text(planned(repository)), "-shared")
    assert "-L/torch/lib -Wl,--no-as-needed -ltorch -ltorch_cpu -lc10" in link
    assert "cudart" not in link
    assert "rpath" not in link
    assert "static" not in link


def test_the_cuda_variant_is_linked_to_the_shared_runtime(repository: Path) -> None:
    text = ninja_text(planned(repository, "cuda"))
    assert "-L/cuda -l:libcudart.so" in statement(text, "-shared")
    assert "-isystem /cuda/include" in text
    assert "-ccbin /usr/bin/g++" in statement(text, "/cuda/bin/nvcc")


def test_awkward_directories_are_quoted(repository: Path) -> None:
    torch = replace(TOOLS.torch, home=Path("/my $torch/lib: 'x'"))
    build = plan.plan(catalog.load(repository, "toy"), "cpu", "dev", (), replace(TOOLS, torch=torch))
    include = statement(ninja_text(build), "system_include =")
    assert """'/my $$torch/lib: '"'"'x'"'"'/include'""" in include


def test_compilers_are_named_by_their_whole_path(repository: Path) -> None:
    assert str(CUDA.nvcc) in ninja_text(planned(repository, "cuda"))
