# SPDX-License-Identifier: Apache-2.0
"""The rule that a variant's files are what its metadata.json says: clients do not look, so the Hub does."""

from __future__ import annotations

from pathlib import Path

from kernelworks import official

METADATA = "metadata.json"
METADATA_BYTES = 1024 * 1024


def variant_of(path: str) -> str | None:
    """The folder of the variant that a path is in: `build/<variant>`."""
    parts = path.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 and parts[0] == "build" else None


def complaint(folder: Path, variant: str) -> str | None:
    """What is wrong with a variant whose files lie in `folder`, in one sentence, or None."""
    if (folder / METADATA).stat().st_size > METADATA_BYTES:
        return f"{variant}/{METADATA}: larger than {METADATA_BYTES} bytes; build the variant again"
    try:
        text = (folder / METADATA).read_text()
    except ValueError as error:
        return f"{variant}/{METADATA}: is not text ({error})"
    wrong = official.complaint_about_metadata(text)
    if wrong:
        return f"{variant}/{METADATA}: {wrong}; build the variant again"
    violations = official.digest_violations(folder)
    if violations:
        return (
            f"{variant}: its files are not what its {METADATA} says: {'; '.join(violations)}; "
            "build the variant again, and publish all of its files in one commit"
        )
    return None
