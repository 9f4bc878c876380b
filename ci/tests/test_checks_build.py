# SPDX-License-Identifier: Apache-2.0
"""Each check of a built variant, proven by breaking a small one in just one way."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import small_kernel
from small_kernel import IDENTITY, VARIANT

from kernelworks import catalog, checking, checks_build


def test_a_sound_build_is_counted(tmp_path: Path) -> None:
    root = small_kernel.build(small_kernel.make(tmp_path / "repository"))
    assert small_kernel.findings(root) == []
    (line,) = checking.report(root).clean
    assert "1 built variant;" in line


def test_a_flipped_byte_is_found(tmp_path: Path) -> None:
    root = small_kernel.build(small_kernel.make(tmp_path / "repository"))
    path = root / VARIANT / "_ops.py"
    path.write_text(path.read_text() + "\n")
    (line,) = small_kernel.findings(root)
    assert line.startswith(f"{VARIANT}: is not as its digest says: ")
    assert "_ops.py" in line


def test_metadata_that_does_not_parse_is_found(tmp_path: Path) -> None:
    root = small_kernel.build(small_kernel.make(tmp_path / "repository"))
    (root / VARIANT / "metadata.json").write_text('{"name": "scale-it"}')
    (line,) = small_kernel.findings(root)
    assert line.startswith(f"{VARIANT}/metadata.json: is not what the loader reads: ")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"name": "other"}, "metadata.json: has name 'other', but build.toml 'scale-it'"),
        ({"version": 1}, "metadata.json: has version 1, but build.toml 2"),
        ({"license": "MIT"}, "metadata.json: has license 'MIT', but build.toml 'Apache-2.0'"),
        (
            {"backend": {"type": "cpu", "archs": ["9.0", "10.0+PTX"]}},
            f"{IDENTITY}.abi3.so: holds code for no GPU, but metadata.json lists 9.0, 10.0+PTX",
        ),
    ],
)
def test_metadata_that_disagrees_is_found(tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    root = small_kernel.build(small_kernel.make(tmp_path / "repository"))
    small_kernel.write_metadata(root, **changes)
    (found,) = small_kernel.findings(root)
    assert found == f"{VARIANT}/{line}; build it again with `kernelworks build`"


def test_an_id_of_another_build_is_found(tmp_path: Path) -> None:
    root = small_kernel.build(small_kernel.make(tmp_path / "repository"))
    path = root / VARIANT / "_ops.py"
    path.write_text(path.read_text().replace("abc1234", "0000000"))
    small_kernel.write_metadata(root)
    (line,) = small_kernel.findings(root)
    assert line.startswith(
        f"{VARIANT}/_ops.py: uses torch.ops._scale_it_cpu_0000000, but metadata.json has id {IDENTITY}; "
    )


def test_a_binary_that_breaks_an_abi_rule_is_found(tmp_path: Path) -> None:
    root = small_kernel.build(small_kernel.make(tmp_path / "repository"), "-Wl,-rpath,/opt")
    (line,) = small_kernel.findings(root)
    assert line == (
        f"{VARIANT}/{IDENTITY}.abi3.so: has the library search path '/opt' of the machine that built it; "
        "link without -rpath"
    )


@pytest.mark.parametrize(("profile", "found"), [("dev", 0), ("release", 1)])
def test_a_build_for_this_machine_alone_may_need_a_newer_system(
    tmp_path: Path, profile: str, found: int
) -> None:
    """Compilers of newer systems bind to newer symbols; a dev build that says so is fine (B09)."""
    newer = tmp_path / "newer.cpp"
    newer.write_text(
        'extern "C" char __libc_single_threaded;\n'
        "static char here() { return __libc_single_threaded; }\n"
        "static char (*volatile kept)() = here;\n"
    )
    root = small_kernel.build(small_kernel.make(tmp_path / "repository"), str(newer))
    small_kernel.write_metadata(root, kernelworks={"profile": profile, "manylinux": False})
    assert ["GLIBC_2.32" in line for line in small_kernel.findings(root)] == [True] * found


def test_a_binary_that_is_gone_is_found(tmp_path: Path) -> None:
    root = small_kernel.build(small_kernel.make(tmp_path / "repository"))
    (root / VARIANT / f"{IDENTITY}.abi3.so").unlink()
    small_kernel.write_metadata(root)
    (line,) = small_kernel.findings(root)
    assert line.startswith(f"{VARIANT}/{IDENTITY}.abi3.so: is missing, though metadata.json names it; ")


def test_what_the_builder_made_is_sound(built_once: Path) -> None:
    kernel = catalog.load(built_once, "toy")
    assert checks_build.variants(kernel)
    assert list(checks_build.variants_are_sound(kernel)) == []


def test_the_archs_of_a_real_cuda_build_are_compared(built_cuda: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(built_cuda, tmp_path / "repository"))
    kernel = catalog.load(root, "toy")
    assert list(checks_build.variants_are_sound(kernel)) == []
    (variant,) = checks_build.variants(kernel)
    metadata = json.loads((variant / "metadata.json").read_text())
    metadata["backend"]["archs"].remove("8.0")
    (variant / "metadata.json").write_text(json.dumps(metadata))
    (finding,) = checks_build.variants_are_sound(kernel)
    assert finding.what == "holds code for 8.0, 9.0a, 12.0+PTX, but metadata.json lists 9.0a, 12.0+PTX"


def test_a_truncated_binary_is_found(tmp_path: Path) -> None:
    root = small_kernel.build(small_kernel.make(tmp_path / "repository"))
    path = root / VARIANT / f"{IDENTITY}.abi3.so"
    path.write_bytes(path.read_bytes()[:9000])
    small_kernel.write_metadata(root)
    (line,) = small_kernel.findings(root)
    assert line.startswith(f"{VARIANT}/{IDENTITY}.abi3.so: is not a whole shared library of Linux; ")
