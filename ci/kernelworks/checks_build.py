# SPDX-License-Identifier: Apache-2.0
"""Checks of the variants in a kernel's build/ directory."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError

from kernelworks import abi, fatbin, official
from kernelworks.archs import parse
from kernelworks.catalog import Kernel
from kernelworks.finding import Finding

REBUILD = "build it again with `kernelworks build`"


def variants(kernel: Kernel) -> list[Path]:
    """The directories of what was built, in the order of their names."""
    return sorted(path for path in (kernel.directory / "build").glob("*") if path.is_dir())


def variants_are_sound(kernel: Kernel) -> Iterator[Finding]:
    """Metadata, digest, names and binary of every variant."""
    for variant in variants(kernel):
        yield from variant_is_sound(kernel, variant)


def variant_is_sound(kernel: Kernel, variant: Path, *, binary: bool = True) -> Iterator[Finding]:
    """Metadata, digest, names and binary of one variant, wherever it lies.

    Not `binary` leaves out the reading of its symbols, which takes ten times as long as all else.
    """
    metadata = official.metadata_of(variant)
    complaint = _complaint(variant)
    if metadata is None or complaint is not None:
        yield Finding(variant / "metadata.json", complaint or "is not a JSON object", REBUILD)
        return
    yield from _digest_is_right(variant)
    yield from _names_agree(kernel, variant, metadata)
    extension = extension_of(variant, metadata)
    if not extension.is_file():
        yield Finding(extension, "is missing, though metadata.json names it", REBUILD)
    elif binary:
        yield from binary_is_sound(kernel, extension, metadata)


def extension_of(variant: Path, metadata: Mapping[str, Any]) -> Path:
    """The one shared library of a variant."""
    return variant / f"{metadata['id']}.abi3.so"


def binary_is_sound(kernel: Kernel, extension: Path, metadata: Mapping[str, Any]) -> Iterator[Finding]:
    """What would keep a shared library from loading elsewhere, and the GPUs that it holds code for."""
    try:
        held = fatbin.archs(extension)
    except (ELFError, struct.error):
        yield Finding(extension, "is not a whole shared library of Linux", REBUILD)
        return
    for violation in abi.violations(extension, torch_abi=kernel.stable_abi):
        if not (violation.elsewhere and _is_for_here_alone(metadata)):
            yield Finding(extension, violation.what, violation.fix)
    listed = frozenset(metadata["backend"].get("archs") or ())
    if listed != held:
        yield Finding(
            extension, f"holds code for {_shown(held)}, but metadata.json lists {_shown(listed)}", REBUILD
        )


def _complaint(variant: Path) -> str | None:
    try:
        text = (variant / "metadata.json").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"
    complaint = official.complaint_about_metadata(text)
    return None if complaint is None else f"is not what the loader reads: {complaint}"


def _digest_is_right(variant: Path) -> Iterator[Finding]:
    for violation in official.digest_violations(variant):
        yield Finding(variant, f"is not as its digest says: {violation}", REBUILD)


def _names_agree(kernel: Kernel, variant: Path, metadata: dict[str, Any]) -> Iterator[Finding]:
    path = variant / "metadata.json"
    backend, identity = metadata["backend"]["type"], metadata["id"]
    for key, wanted in (("name", kernel.name), ("version", kernel.version), ("license", kernel.license)):
        if metadata.get(key) != wanted:
            yield Finding(path, f"has {key} {metadata.get(key)!r}, but build.toml {wanted!r}", REBUILD)
    if not identity.startswith(f"_{kernel.python_name}_{backend}_"):
        yield Finding(path, f"has id {identity!r}, not _{kernel.python_name}_{backend}_*", REBUILD)
    if not re.search(r"-cpu-" if backend == "cpu" else r"-cu\d+-", variant.name):
        yield Finding(path, f"is of backend {backend}, but the variant is {variant.name}", REBUILD)
    ops = variant / "_ops.py"
    named = re.search(r"torch\.ops\.(\w+)", ops.read_text(encoding="utf-8")) if ops.is_file() else None
    if named is None or named[1] != identity:
        found = f"uses torch.ops.{named[1]}" if named else "names no torch.ops namespace"
        yield Finding(ops, f"{found}, but metadata.json has id {identity}", REBUILD)


def _is_for_here_alone(metadata: Mapping[str, Any]) -> bool:
    """A dev build of a newer system's compiler, which says so itself: nobody publishes it by accident."""
    made = metadata.get("kernelworks") or {}
    return made.get("profile") == "dev" and made.get("manylinux") is False


def _shown(archs: frozenset[str]) -> str:
    return ", ".join(sorted(archs, key=parse)) or "no GPU"
