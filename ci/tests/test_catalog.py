# SPDX-License-Identifier: Apache-2.0
"""Finding the repository, its kernels, and what their build.toml says."""

from __future__ import annotations

from pathlib import Path

import pytest
from repositories import edit

from kernelworks import catalog
from kernelworks.errors import ManifestError, RepositoryError

MANIFEST = "kernels/toy/build.toml"


def test_a_kernel_is_read_completely(repository: Path) -> None:
    edit(
        repository / MANIFEST,
        'backend = "cuda"\n',
        'backend = "cuda"\ncxx-flags = ["-Wall"]\ncuda-flags = ["-lineinfo"]\n'
        'cuda-capabilities = ["8.0", "9.0a"]\ncuda-minver = "12.8"\n',
    )
    edit(repository / MANIFEST, "[torch]\n", '[torch]\ninclude = ["kernel_src"]\npyext = ["py", "json"]\n')
    kernel = catalog.load(repository, "toy")
    assert (kernel.name, kernel.version, kernel.license) == ("toy", 1, "Apache-2.0")
    assert (kernel.repo_id, kernel.backends, kernel.stable_abi) == (
        "kernelworks/toy",
        ("cpu", "cuda"),
        (2, 11),
    )
    assert kernel.torch_src == ("torch-ext/torch_binding.cpp",)
    assert (kernel.torch_include, kernel.pyext) == (("kernel_src",), ("py", "json"))
    assert kernel.directory == repository / "kernels/toy"
    assert kernel.components_for("cuda") == (
        catalog.Component(
            name="toy_cuda",
            backend="cuda",
            src=("kernel_src/toy.h", "kernel_src/toy.cu", "kernel_src/vendor/factor.h"),
            include=("kernel_src/vendor",),
            cxx_flags=("-Wall",),
            cuda_flags=("-lineinfo",),
            cuda_capabilities=("8.0", "9.0a"),
            cuda_minver=(12, 8),
        ),
    )
    assert kernel.listed.count("kernel_src/toy.h") == 1


def test_dashes_become_underscores_in_python(repository: Path) -> None:
    (repository / "kernels/toy").rename(repository / "kernels/toy-2d")
    edit(repository / "kernels/toy-2d/build.toml", 'name = "toy"', 'name = "toy-2d"')
    kernel = catalog.load(repository, "toy-2d")
    assert kernel.python_name == "toy_2d"
    assert kernel.package == repository / "kernels/toy-2d/torch-ext/toy_2d"


def test_the_root_is_found_from_below(repository: Path) -> None:
    assert catalog.find_root(repository / "kernels/toy/kernel_src") == repository
    assert catalog.find_root(repository) == repository


def test_outside_a_repository(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match=r"is not in a repository .* --root"):
        catalog.find_root(tmp_path)
    with pytest.raises(RepositoryError, match="no directory kernels/"):
        catalog.root_of(tmp_path)


def test_kernels_are_named_as_a_shell_completes_them(repository: Path) -> None:
    for name in ("toy", "kernels/toy", "kernels/toy/"):
        assert catalog.load(repository, name).name == "toy"
    assert [kernel.name for kernel in catalog.load_all(repository, [])] == ["toy"]
    assert len(catalog.load_all(repository, ["toy", "toy"])) == 1


@pytest.mark.parametrize("name", ["nope", "", "../toy", "a/b/toy", "other/toy"])
def test_an_unknown_kernel_lists_the_known_ones(repository: Path, name: str) -> None:
    with pytest.raises(RepositoryError, match="there is toy"):
        catalog.load(repository, name)


REFUSED = [
    ('name = "toy"', 'name = "other"', r"\[general\] name: is 'other', but the directory is 'toy'"),
    ('["cpu", "cuda"]', '["cpu", "xpu"]', r"\[general\] backends: 'xpu' is not built here"),
    ('backend = "cpu"', 'backend = "cuda"', r"\[general\] backends: 'cpu' is listed but no \[kernel"),
    ('"2.11"', '{cpu = "2.11"}', r"\[torch\] stable-abi: must name one torch version"),
    ('"2.11"', '{cpu = "2.11", cuda = "2.12"}', r"\[torch\] stable-abi: must name one torch version"),
    (
        '"kernel_src/toy.cu"',
        '"../../common/toy.cu"',
        r"\[kernel.toy_cuda\] src: '../../common/toy.cu' must be",
    ),
    ('"torch-ext/torch_b', '"/torch-ext/torch_b', r"\[torch\] src: '/torch-ext/torch_binding.cpp' must be"),
    ('"kernel_src/toy.cu"', '"./kernel_src/toy.cu"', r"src: './kernel_src/toy.cu' must be a plain path"),
]


@pytest.mark.parametrize(("old", "new", "message"), REFUSED)
def test_what_the_schema_allows_but_cannot_be_built(
    repository: Path, old: str, new: str, message: str
) -> None:
    edit(repository / MANIFEST, old, new)
    with pytest.raises(ManifestError, match="^kernels/toy/build.toml: .*" + message):
        catalog.load(repository, "toy")


def test_a_stable_abi_for_each_backend_may_be_given(repository: Path) -> None:
    edit(repository / MANIFEST, '"2.11"', '{cpu = "2.12", cuda = "2.12"}')
    assert catalog.load(repository, "toy").stable_abi == (2, 12)
