# SPDX-License-Identifier: Apache-2.0
"""The flake, evaluated and built offline against a stand-in of kernel-builder, and its lock."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kernelworks import catalog

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = Path(__file__).with_name("nix") / "kernel-builder"
SYSTEM = f"{platform.machine()}-linux"
OPTIONS = (
    *("--extra-experimental-features", "nix-command flakes", "--offline"),
    *("--option", "substituters", "", "--option", "build-users-group", "", "--option", "sandbox", "false"),
)
COMMIT = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.com", "commit", "--quiet", "-m", "all")

# Of kernel-builder's revision and of the lock that lies beside it there: what each input is, to the byte.
LOCKED = {
    "kernel-builder": (
        "huggingface/kernels/8ac69fc542a4306eade0759ef7c45b4f2ae57df0",
        "sha256-h7n5IcWCjzbAKh+cyvKCZYix4psCEFcAoyWyTABcexs=",
    ),
    "nixpkgs": (
        "NixOS/nixpkgs/ec1a11210589d294f0ac99d3290a27e6c73dfa1d",
        "sha256-tiQ8/qi8I45OOaBBYlVbXoAVkeQzvvTQOv5I45rMw5o=",
    ),
    "rust-overlay": (
        "oxalica/rust-overlay/20ee15370c9256669d66968b89ee20a4b0a4e673",
        "sha256-l7C/OsjcnWDOk2K3ssj+SBduwL67LashjBqis9+t468=",
    ),
    "flake-utils": (
        "numtide/flake-utils/11707dc2f618dd54ca8739b309ec4fc024de578b",
        "sha256-l0KFg5HjrsfsO/JpG+r7fRrqm12kzFHyUHqHCVpMMbI=",
    ),
    "flake-compat": (
        "edolstra/flake-compat/5edf11c44bc78a0d334f6334cdaf7d60d732daab",
        "sha256-vNpUSpF5Nuw8xvDLj2KCwwksIbjua2LZCqhV1LNRDns=",
    ),
    "systems": (
        "nix-systems/default/da67096a3b9bf56a91d16901293e51ba5b49a27e",
        "sha256-Vy1rq5AaRuLzOxct8nz4T6wlgyUR7zLU309k9mBC768=",
    ),
}


def lock() -> dict[str, Any]:
    return dict(json.loads((ROOT / "flake.lock").read_text()))


def test_the_lock_names_what_kernel_builder_was_locked_with() -> None:
    nodes = lock()["nodes"]
    assert nodes.pop("root") == {"inputs": {"kernel-builder": "kernel-builder"}}
    found = {
        name: ("{owner}/{repo}/{rev}".format(**node["locked"]), node["locked"]["narHash"])
        for name, node in nodes.items()
    }
    assert found == LOCKED
    for name, node in nodes.items():
        locked, original = node["locked"], node["original"]
        assert locked["type"] == "github", name
        assert {key: locked[key] for key in original} == original, name
        for wanted in node.get("inputs", {}).values():
            assert wanted == ["kernel-builder", "nixpkgs"] or wanted in nodes, name


def test_the_flake_names_no_kernel() -> None:
    """So adding one needs no edit; the comments take rmsnorm as their example."""
    lines = (ROOT / "flake.nix").read_text().splitlines()
    code = "\n".join(line for line in lines if not line.strip().startswith("#"))
    assert [name for name in catalog.names(ROOT) if name in code] == []


class Nix:
    """Nix with a store of its own, and a committed repository that holds our flake and manifests."""

    def __init__(self, folder: Path) -> None:
        self.repository = folder / "repository"
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("NIX_", "GIT_"))},
            **{
                f"NIX_{kind}_DIR": str(folder / kind.lower())
                for kind in ("STORE", "STATE", "LOG", "CONF", "LOCALSTATE")
            },
            "HOME": str(folder),
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        manifests = [f"kernels/{name}/build.toml" for name in catalog.names(ROOT)]
        for path in ("flake.nix", "flake.lock", *manifests):
            (self.repository / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, self.repository / path)
        self.git("init", "--quiet")
        self.commit()

    def git(self, *words: str) -> str:
        done = subprocess.run(
            ["git", *words],
            cwd=self.repository,
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout

    def revision(self) -> str:
        """The first seven digits of the commit, which become part of the name of the ops."""
        return self.git("rev-parse", "HEAD")[:7]

    def commit(self) -> None:
        self.git("add", "--all")
        self.git(*COMMIT)

    def run(self, *words: str) -> str:
        done = subprocess.run(
            ["nix", *words, *OPTIONS],
            cwd=self.repository,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def value(self, attribute: str, *words: str) -> Any:
        return json.loads(self.run("eval", "--json", f".#{attribute}", *words))


@pytest.fixture
def as_it_is(tmp_path: Path) -> Nix:
    """Our flake with our lock; tests that ask for it are skipped where there is no Nix."""
    if shutil.which("nix") is None:
        pytest.skip("no nix on PATH (Debian: nix-bin)")
    return Nix(tmp_path)


@pytest.fixture(scope="module")
def nix(tmp_path_factory: pytest.TempPathFactory) -> Nix:
    """Our flake, locked to the stand-in and committed so: to Nix a lock that differs makes a commit dirty."""
    if shutil.which("nix") is None:
        pytest.skip("no nix on PATH (Debian: nix-bin)")
    made = Nix(tmp_path_factory.mktemp("nix"))
    made.run("flake", "lock", "--override-input", "kernel-builder", f"path:{STAND_IN}")
    made.commit()
    return made


def test_nix_finds_the_lock_complete(as_it_is: Nix) -> None:
    """Otherwise it would ask the network for what is missing, and change the file."""
    metadata = json.loads(as_it_is.run("flake", "metadata", "--json", "--no-update-lock-file"))
    assert metadata["locks"] == lock()


def test_every_kernel_is_an_output_of_every_system(nix: Nix) -> None:
    for kind in ("packages", "devShells", "legacyPackages"):
        found = nix.value(kind, "--apply", "systems: builtins.mapAttrs (_: builtins.attrNames) systems")
        assert set(found) == {"x86_64-linux", "aarch64-linux", "aarch64-darwin"}, kind
        for system, names in found.items():
            assert names == catalog.names(ROOT), (kind, system)


def test_kernel_builder_is_given_the_flake_and_the_directory(nix: Nix) -> None:
    for name in catalog.names(ROOT):
        recorded = nix.value(f"{name}.recorded")
        assert recorded == {"directory": name, "inside": True, "revision": nix.revision()}


def test_the_commands_of_the_documents_resolve(nix: Nix, tmp_path: Path) -> None:
    variants = nix.value("rmsnorm.variants")
    assert variants == [f"torch-stable-abi211-{each}-{SYSTEM}" for each in ("cpu", "cu126", "cu130", "cu132")]
    for attribute, built in (
        ("rmsnorm", "bundle"),
        (f"rmsnorm.redistributable.{variants[2]}", variants[2]),
        (f"rmsnorm.testShells.{variants[0]}", "test-shell"),
    ):
        link = tmp_path / built
        nix.run("build", f".#{attribute}", "--out-link", str(link))
        assert link.read_text() == f"{built} of rmsnorm at {nix.revision()}\n", attribute
    shell = nix.value(f"devShells.{SYSTEM}.rmsnorm", "--apply", "shell: shell.name")
    assert shell == "default-shell"


def test_flake_check_finds_nothing(nix: Nix) -> None:
    nix.run("flake", "check")


def test_a_new_kernel_needs_no_edit(nix: Nix) -> None:
    folder = nix.repository / "kernels/newcomer"
    folder.mkdir()
    manifest = (ROOT / "kernels/geglu/build.toml").read_text().replace('"geglu"', '"newcomer"')
    (folder / "build.toml").write_text(manifest.replace('["cpu", "cuda"]', '["cpu"]'))
    (nix.repository / "kernels/no-kernel").mkdir()
    (nix.repository / "kernels/no-kernel/README.md").write_text("a folder without build.toml")
    nix.commit()
    assert nix.value("newcomer.variants") == [f"torch-stable-abi211-cpu-{SYSTEM}"]
    names = nix.value(f"packages.{SYSTEM}", "--apply", "builtins.attrNames")
    assert names == sorted([*catalog.names(ROOT), "newcomer"])
