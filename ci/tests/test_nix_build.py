# SPDX-License-Identifier: Apache-2.0
"""`kernelworks build --nix`, with a program in the place of nix that lays out what kernel-builder would."""

from __future__ import annotations

import json
import os
import platform
import stat
import sys
from pathlib import Path

import pytest
from repositories import CPU_VARIANT, commit, edit, git, variant

from kernelworks import official
from kernelworks.cli import main

# Copies a built variant into a "store" as Nix leaves things there: without our own record, and read-only.
NIX = f"""#!{sys.executable}
import json, os, shutil, sys
from pathlib import Path
place = Path(__file__).parent.parent
(place / "arguments.json").write_text(json.dumps([os.getcwd(), *sys.argv[1:]]))
print("building '/nix/store/abc-toy.drv'...", flush=True)
store = place / "store"
if store.is_dir():
    link = Path(sys.argv[sys.argv.index("--out-link") + 1])
    link.unlink(missing_ok=True)
    link.symlink_to(store)
sys.exit(0 if store.is_dir() else 1)
"""


@pytest.fixture
def place(tmp_path: Path, built: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A nix on PATH; beside it the store, with one variant, and the arguments that it was given."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/nix"
    program.write_text(NIX)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    store = tmp_path / "store"
    store.mkdir()
    variant(built).rename(store / CPU_VARIANT)
    metadata = json.loads((store / CPU_VARIANT / "metadata.json").read_text())
    del metadata["kernelworks"]
    (store / CPU_VARIANT / "metadata.json").write_text(json.dumps(metadata))
    for path in (store / CPU_VARIANT).rglob("*"):
        path.chmod(path.stat().st_mode & ~0o222)
    (built / "flake.nix").write_text("{ }\n")
    commit(built, "a flake")
    return tmp_path


def build(root: Path, *words: str) -> int:
    return main(["build", "toy", "--nix", "--root", str(root), *words])


def test_what_nix_built_lies_where_our_builds_do(
    place: Path, built: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(built) == 0
    captured = capsys.readouterr()
    assert "building '/nix/store/abc-toy.drv'..." in captured.out
    where, *arguments = json.loads((place / "arguments.json").read_text())
    assert Path(where) == built
    assert arguments[2:4] == ["build", ".#toy"]
    path = variant(built)
    assert path.name == CPU_VARIANT
    assert not path.is_symlink()
    metadata = json.loads((path / "metadata.json").read_text())
    assert metadata["kernelworks"] == {"profile": "release", "manylinux": True, "builder": "nix"}
    assert official.digest_violations(path) == []
    assert all(each.stat().st_mode & stat.S_IWUSR for each in path.rglob("*"))
    # The others of a release for this machine are missed, and those for another machine are not.
    machine = platform.machine()
    assert f"a release has torch-stable-abi211-cu130-{machine}-linux too, and nix built none" in captured.err
    assert captured.err.count("too, and nix built none") == 3
    assert build(built) == 0  # again, over what is there


def test_the_variants_may_lie_one_folder_deeper(place: Path, built: Path) -> None:
    (place / "store/build").mkdir()
    (place / "store" / CPU_VARIANT).rename(place / "store/build" / CPU_VARIANT)
    assert build(built) == 0
    assert variant(built).is_dir()


def test_what_is_not_sound_is_not_taken(place: Path, built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ops = place / "store" / CPU_VARIANT / "_ops.py"
    ops.chmod(0o644)
    edit(ops, "import torch", "import  torch")
    assert build(built) == 7
    assert "what nix built is no release: " in (error := capsys.readouterr().err)
    assert "is not as its digest says" in error
    assert not (built / "kernels/toy/build" / CPU_VARIANT).exists()


def test_a_failing_nix_ends_it(place: Path, built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "store").rename(place / "elsewhere")
    assert build(built) == 7
    assert "error: kernels/toy: nix build failed with exit code 1" in capsys.readouterr().err
    (place / "store").mkdir()
    assert build(built) == 7
    assert "nix built nothing that is a variant" in capsys.readouterr().err


def test_a_release_is_of_a_commit(place: Path, built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(built / "kernels/toy/torch-ext/toy/__init__.py", "Return 2", "Return two")
    assert build(built) == 7
    assert "tracked files are changed; commit them" in capsys.readouterr().err
    assert not (place / "arguments.json").exists()
    git(built, "checkout", "--", "kernels")
    git(built, "rm", "--quiet", "flake.nix")
    commit(built, "no flake")
    assert build(built) == 7
    assert "has no flake.nix" in capsys.readouterr().err


def test_without_nix_there_is_one_sentence(
    built: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "only").mkdir()
    (tmp_path / "only/git").symlink_to("/usr/bin/git")
    monkeypatch.setenv("PATH", str(tmp_path / "only"))
    assert build(built) == 6
    assert "error: no nix on PATH; install it, or build what needs none: " in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--backend", "cpu"), ("--arch", "9.0"), ("--cuda", "13.0"), ("--twice",)])
def test_kernel_builder_decides_what_there_is(
    words: tuple[str, ...], built: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(built, *words) == 7
    assert "leave out --backend, --arch, --cuda, --platform and --twice" in capsys.readouterr().err
