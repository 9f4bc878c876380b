# SPDX-License-Identifier: Apache-2.0
"""The finished directory: its files, its metadata, and how it takes its place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from kernels_data import Digest, DigestAlgorithm, Metadata
from repositories import CPU_VARIANT, edit, git, variant

from kernelworks import __version__, official
from kernelworks import variant as variants
from kernelworks.cli import main

KERNEL = Path("kernels/toy")
MACROS = [
    "CONCAT",
    "STRINGIFY",
    "TORCH_LIBRARY_EXPAND",
    "TORCH_LIBRARY_IMPL_EXPAND",
    "STABLE_TORCH_LIBRARY_EXPAND",
    "STABLE_TORCH_LIBRARY_IMPL_EXPAND",
    "REGISTER_EXTENSION",
]


def metadata(root: Path, backend: str = "cpu") -> dict[str, object]:
    content = json.loads((variant(root, backend) / "metadata.json").read_text())
    assert isinstance(content, dict)
    return content


def build(root: Path) -> int:
    return main(["build", "toy", "--backend", "cpu", "--root", str(root)])


def test_the_directory_holds_what_kernel_builder_puts_there(built_once: Path) -> None:
    found = variant(built_once)
    assert found.name == CPU_VARIANT
    name = metadata(built_once)["id"]
    assert sorted(path.name for path in found.iterdir()) == sorted(
        ["__init__.py", "_ops.py", f"{name}.abi3.so", "metadata.json"]
    )


def test_metadata_is_complete_and_in_order(built_once: Path) -> None:
    content = metadata(built_once)
    commit = git(built_once, "rev-parse", "HEAD")
    assert list(content) == [
        *("name", "id", "version", "license", "python-depends", "kernel-depends", "backend", "digest"),
        *("provenance", "kernelworks"),
    ]
    assert (content["name"], content["version"], content["license"]) == ("toy", 1, "Apache-2.0")
    assert content["python-depends"] == content["kernel-depends"] == []
    assert content["backend"] == {"type": "cpu"}
    assert content["provenance"] == {
        "kernel-builder": {"version": f"kernelworks-{__version__}"},
        "kernel": {"commit": commit, "dirty": False},
    }
    assert content["kernelworks"] == {"profile": "dev", "manylinux": True}
    text = (variant(built_once) / "metadata.json").read_text()
    assert text == json.dumps(content, indent=2)


def test_other_readers_of_metadata_accept_it(built_once: Path) -> None:
    path = variant(built_once)
    read = Metadata.read_from_file(path / "metadata.json")
    assert read.id == metadata(built_once)["id"]
    assert read.digest.files == Digest.hash_variant(DigestAlgorithm.SHA256, path).files


def test_architectures_are_in_the_order_of_text(built_cuda: Path) -> None:
    assert metadata(built_cuda, "cu130")["backend"] == {"type": "cuda", "archs": ["12.0+PTX", "8.0", "9.0a"]}


def test_optional_keys_have_their_places(repository: Path) -> None:
    edit(
        repository / KERNEL / "build.toml",
        'license = "Apache-2.0"\n',
        'license = "Apache-2.0"\nupstream = "https://github.com/some/kernel"\npython-depends = ["einops"]\n',
    )
    assert build(repository) == 0
    content = metadata(repository)
    assert list(content)[3:7] == ["license", "upstream", "python-depends", "kernel-depends"]
    assert content["python-depends"] == ["einops"]


def test_stale_files_vanish_and_subpackages_come_along(built: Path) -> None:
    package = built / KERNEL / "torch-ext/toy"
    (package / "layers").mkdir()
    (package / "layers/__init__.py").touch()
    (package / "layers/__init__.pyi").touch()
    (package / "__pycache__").mkdir()
    (package / "__pycache__/x.pyc").touch()
    old = metadata(built)["id"]
    (variant(built) / "stale.py").touch()
    assert build(built) == 0
    new = metadata(built)["id"]
    assert new != old
    names = {
        path.relative_to(variant(built)).as_posix() for path in variant(built).rglob("*") if path.is_file()
    }
    assert names == {"__init__.py", "layers/__init__.py", "_ops.py", f"{new}.abi3.so", "metadata.json"}


def test_a_damaged_variant_is_made_anew(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(variant(built) / "__init__.py", "2 * x", "3 * x")
    assert official.digest_violations(variant(built))
    assert build(built) == 0
    assert official.digest_violations(variant(built)) == []
    assert "built in" in capsys.readouterr().out


def test_a_new_commit_is_recorded_without_compiling(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = metadata(built)
    git(built, "commit", "--quiet", "--allow-empty", "--message", "again")
    assert build(built) == 0
    after = metadata(built)
    assert after["provenance"] != before["provenance"]
    assert (after["id"], after["digest"]) == (before["id"], before["digest"])
    assert "compile" not in capsys.readouterr().out


def test_an_unknown_commit_is_said_to_be_unknown(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(built / ".git")
    assert build(built) == 0
    assert metadata(built)["provenance"] == {"kernel-builder": {"version": f"kernelworks-{__version__}"}}
    assert metadata(built)["kernelworks"] == {
        "profile": "dev",
        "manylinux": True,
        "note": "commit unknown: not a git repository",
    }
    assert "warning: commit unknown (not a git repository)" in capsys.readouterr().err


def test_what_an_interrupted_build_left_is_swept_up(built: Path) -> None:
    work = built / KERNEL / ".build" / CPU_VARIANT
    for left in ("stage", "retired"):
        (work / left / "half").mkdir(parents=True)
    shutil.rmtree(variant(built))
    assert build(built) == 0
    assert official.digest_violations(variant(built)) == []
    assert not (work / "stage").exists()
    assert not (work / "retired").exists()


def test_the_registration_header_has_kernel_builder_s_macros() -> None:
    defined = [
        line.split()[1].split("(")[0] for line in variants.REGISTRATION.splitlines() if "#define" in line
    ]
    assert set(MACROS) <= set(defined)
