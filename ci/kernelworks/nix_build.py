# SPDX-License-Identifier: Apache-2.0
"""Has kernel-builder build every variant of a release under Nix, and puts them where our own builds lie."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from kernelworks import checks_build, matrix, official, preflight, process
from kernelworks.catalog import Kernel
from kernelworks.errors import BuildError, ToolchainError
from kernelworks.variant import swap_in

FEATURES = ("--extra-experimental-features", "nix-command flakes")  # off in a plain installation
RECORD = {"profile": "release", "manylinux": True, "builder": "nix"}


def build(root: Path, kernel: Kernel) -> list[Path]:
    """Build `.#NAME`, check each variant as a release is checked, and return where they are."""
    nix = shutil.which("nix")
    if nix is None:
        raise ToolchainError(
            f"no nix on PATH; install it, or build what needs none: kernelworks build {kernel.name} "
            "--profile release --backend cpu --cuda 13.0"
        )
    if not (root / "flake.nix").is_file():
        raise BuildError(
            f"{root} has no flake.nix, which says what Nix builds; use --root, or leave out --nix"
        )
    result = kernel.directory / ".build" / "nix"
    result.parent.mkdir(exist_ok=True)
    argv = [nix, *FEATURES, "build", f".#{kernel.name}", "--print-build-logs", "--out-link", str(result)]
    print(f"{kernel.name}: nix build .#{kernel.name}")
    if code := process.stream(argv, on_line=print, cwd=root, env=os.environ):
        raise BuildError(
            f"kernels/{kernel.name}: nix build failed with exit code {code}; its output is above"
        )
    return collect(root, kernel, result)


def collect(root: Path, kernel: Kernel, result: Path) -> list[Path]:
    """Copy the variants in `result` to the kernel's build/; none where one of them is not sound."""
    found = preflight.built(preflight.variants_folder(kernel, result), strict=False)
    if not found:
        raise BuildError(f"kernels/{kernel.name}: nix built nothing that is a variant in {result}")
    findings = [
        finding.line(root) for path in found for finding in checks_build.variant_is_sound(kernel, path)
    ]
    if findings:
        raise BuildError(f"kernels/{kernel.name}: what nix built is no release: {'; '.join(findings)}")
    placed = [_place(kernel, path) for path in found]
    for path in placed:
        print(f"{path.relative_to(root)}: built by nix ({official.metadata_of(path)['id']})")  # type: ignore[index]
    for name in missing(kernel, placed):
        print(f"warning: {kernel.name}: a release has {name} too, and nix built none", file=sys.stderr)
    return placed


def missing(kernel: Kernel, placed: list[Path]) -> Iterator[str]:
    """Variants for this kind of machine that a complete release has; the others are for other machines."""
    built = {path.name for path in placed}
    for name in matrix.complete(kernel):
        if name.endswith(f"-{platform.machine()}-linux") and name not in built:
            yield name


def _place(kernel: Kernel, path: Path) -> Path:
    """A copy, because Nix keeps its own read-only; with the record that our own builds have."""
    stage = kernel.directory / ".build" / path.name / "stage"
    shutil.rmtree(stage, ignore_errors=True)
    shutil.copytree(path, stage)
    for each in (stage, *stage.rglob("*")):
        each.chmod(each.stat().st_mode | 0o200)
    metadata = (official.metadata_of(stage) or {}) | {"kernelworks": RECORD}
    (stage / "metadata.json").write_text(json.dumps(metadata, indent=2))
    destination = kernel.directory / "build" / path.name
    swap_in(stage, destination)
    return destination
