# SPDX-License-Identifier: Apache-2.0
"""A broken build.toml gives one line with the file, the table and the key."""

from __future__ import annotations

from pathlib import Path

import pytest
from repositories import TOY

from kernelworks import manifest
from kernelworks.errors import ManifestError

GOOD = (TOY / "build.toml").read_text()
TORCH_SRC = 'src = [\n  "torch-ext/torch_binding.cpp",\n]\n'
CPU_SRC = 'src = [\n  "kernel_src/toy.h",\n  "kernel_src/toy_cpu.cpp",\n  "kernel_src/vendor/factor.h",\n]\n'

MISSING = {
    'name = "toy"\n': "[general] name",
    "version = 1\n": "[general] version",
    "edition = 5\n": "[general] edition",
    'license = "Apache-2.0"\n': "[general] license",
    'backends = ["cpu", "cuda"]\n': "[general] backends",
    '[general.hub]\nrepo-id = "kernelworks/toy"\n': "[general.hub]",
    'repo-id = "kernelworks/toy"\n': "[general.hub] repo-id",
    'stable-abi = "2.11"\n': "[torch] stable-abi",
    TORCH_SRC: "[torch] src",
    'backend = "cpu"\ndepends = []\n': "[kernel.toy_cpu] backend",
    'backend = "cuda"\n': "[kernel.toy_cuda] backend",
    CPU_SRC: "[kernel.toy_cpu] src",
}
CHANGED = [
    ('license = "', 'licence = "', "[general] license"),
    ("version = 1", 'version = "1"', "[general] version"),
    ("version = 1", "version = -1", "[general] version"),
    ("version = 1", "version = true", "[general] version"),
    ("edition = 5", "edition = 4", "[general] edition"),
    ("edition = 5", "edition = 6", "[general] edition"),
    ('["cpu", "cuda"]', '"cpu"', "[general] backends"),
    ('["cpu", "cuda"]', '["cpu", "gpu"]', "[general] backends"),
    ('"2.11"', "2.11", "[torch] stable-abi"),
    ('"2.11"', '"newest"', "[torch] stable-abi"),
    ('backend = "cpu"', 'backend = "cpu"\ncuda-capabilities = ["9.0"]', "[kernel.toy_cpu] cuda-capabilities"),
    ('backend = "cuda"', 'backend = "cuda"\ncuda-capabilities = ["hopper"]', "[kernel.toy_cuda] cuda-capab"),
    ('backend = "cuda"', 'backend = "cuda"\nextra = 1', "[kernel.toy_cuda] extra"),
    ('backend = "cuda"', 'backend = "quantum"', "[kernel.toy_cuda] backend"),
    ("depends = []", 'depends = ["cutlas_9"]', "[kernel.toy_cpu] depends"),
    ('license = "Apache-2.0"', 'license = "Apache-2.0"\ncolour = "red"', "[general] colour"),
    ("[general.hub]", "[paint]\nred = 1\n[general.hub]", "[paint]"),
    ("[torch]", "[touch]", "[torch]"),
    ("version = 1", "version = ", "line 3"),
]


def complaint(tmp_path: Path, text: str) -> str:
    directory = tmp_path / "kernels/toy"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "build.toml").write_text(text)
    with pytest.raises(ManifestError) as caught:
        manifest.read(directory)
    message = str(caught.value)
    assert message.startswith("kernels/toy/build.toml: ")
    assert "\n" not in message
    assert str(tmp_path) not in message
    return message


def test_a_good_one_is_read() -> None:
    assert manifest.read(TOY)["kernel"]["toy_cpu"]["include"] == ["kernel_src/vendor"]


@pytest.mark.parametrize("line", MISSING)
def test_each_required_key_is_missed(tmp_path: Path, line: str) -> None:
    assert line in GOOD
    assert f" {MISSING[line]}: " in complaint(tmp_path, GOOD.replace(line, "", 1))


@pytest.mark.parametrize(("old", "new", "where"), CHANGED)
def test_each_wrong_entry_is_named(tmp_path: Path, old: str, new: str, where: str) -> None:
    assert old in GOOD
    assert where in complaint(tmp_path, GOOD.replace(old, new, 1))


@pytest.mark.parametrize("name", ["my_kernel", "RMSNorm", "3drope", "a", "x-"])
def test_bad_names_are_refused_with_the_rule(tmp_path: Path, name: str) -> None:
    message = complaint(tmp_path, GOOD.replace('"toy"', f'"{name}"'))
    assert f"[general] name: Invalid kernel name `{name}`" in message
    assert "Contain only lowercase letters, digits, and dashes" in message


@pytest.mark.parametrize("name", ["rmsnorm", "rope3d", "geglu", "adaln"])
def test_good_names_are_accepted(tmp_path: Path, name: str) -> None:
    (tmp_path / "build.toml").write_text(GOOD.replace('"toy"', f'"{name}"'))
    assert manifest.read(tmp_path)["general"]["name"] == name


def test_an_older_edition_is_told_which_one_is_wanted(tmp_path: Path) -> None:
    assert "must be 5, not 3" in complaint(tmp_path, GOOD.replace("edition = 5", "edition = 3"))


def test_no_manifest_at_all(tmp_path: Path) -> None:
    (tmp_path / "kernels/toy").mkdir(parents=True)
    with pytest.raises(ManifestError, match=r"kernels/toy/build.toml: No such file"):
        manifest.read(tmp_path / "kernels/toy")
