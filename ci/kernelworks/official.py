# SPDX-License-Identifier: Apache-2.0
"""The Hub's own validator, names, metadata and digest, which `kernels` keeps in a private module.

Every use of that module is here, so that a change in it breaks one file.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from kernels._rust import (  # type: ignore[import-untyped]
    Build,
    Digest,
    DigestAlgorithm,
    DigestValidationError,
    KernelName,
    Metadata,
)


def complaint_about_build(directory: Path) -> str | None:
    """What the validator says against `directory`/build.toml on one line, or None."""
    try:
        Build.open(directory)
    except ValueError as error:
        message = str(error).removeprefix(f"Cannot parse build configuration in `{directory}`: ")
        return _one_line(message.removeprefix(f"Cannot parse TOML in {directory / 'build.toml'}: "))
    return None


def complaint_about_name(name: str) -> str | None:
    """What is wrong with a kernel's name, with the rule, or None."""
    try:
        KernelName(name)
    except ValueError as error:
        return _one_line(str(error))
    return None


def digest(variant: Path) -> dict[str, Any]:
    """The digest of a variant's files, as metadata.json holds it."""
    hashed = Digest.hash_variant(DigestAlgorithm.SHA256, variant)
    return {"algorithm": "sha256", "files": dict(sorted(hashed.files.items()))}


def digest_violations(variant: Path) -> list[str]:
    """One sentence for each file of a variant that is not as its metadata.json says."""
    metadata = Metadata.read_from_file(variant / "metadata.json")
    if metadata.digest is None:
        return ["metadata.json has no digest"]
    try:
        metadata.digest.validate(Digest.hash_variant(metadata.digest.algorithm, variant))
    except DigestValidationError as error:
        return [str(violation) for violation in error.violations]
    return []


def complaint_about_metadata(text: str) -> str | None:
    """What the Hub's reader says against the text of a metadata.json, or None."""
    try:
        Metadata.from_bytes(text.encode())
    except ValueError as error:
        return _one_line(str(error))
    return None


def metadata_of(variant: Path) -> dict[str, Any] | None:
    """A variant's metadata.json as it stands, or None where there is none to read."""
    try:
        found = json.loads((variant / "metadata.json").read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _one_line(message: str) -> str:
    listed = re.sub(r"\s*\n\s*-\s*", "; ", message.strip()).replace(":; ", ": ")
    return re.sub(r"\s*\n\s*", " ", listed)
