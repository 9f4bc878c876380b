# SPDX-License-Identifier: Apache-2.0
"""A variant's files must be what its metadata.json says."""

from __future__ import annotations

import json
from pathlib import Path

import hub_kernel
import pytest

from kernelworks.hubserver import digests


@pytest.mark.parametrize(
    ("path", "variant"),
    [
        ("build/torch-cpu/__init__.py", "build/torch-cpu"),
        ("build/torch-cpu/layers/a.py", "build/torch-cpu"),
        ("build/readme", None),
        ("README.md", None),
        ("other/build/x/y", None),
    ],
)
def test_which_variant_a_path_is_in(path: str, variant: str | None) -> None:
    assert digests.variant_of(path) == variant


def test_a_good_variant_is_left_alone(tmp_path: Path) -> None:
    assert digests.complaint(hub_kernel.write_variant(tmp_path), "build/torch-cpu") is None


def test_each_way_to_be_wrong_is_named(tmp_path: Path) -> None:
    """L17: a byte that changed after the digest was taken."""
    variant = hub_kernel.write_variant(tmp_path)
    metadata = variant / "metadata.json"
    good = metadata.read_text()

    def complaint() -> str:
        found = digests.complaint(variant, "build/torch-cpu")
        assert found
        assert found.startswith("build/torch-cpu")
        return found

    (variant / "__init__.py").write_text("changed")
    assert "__init__.py" in complaint()
    (variant / "__init__.py").unlink()
    assert "__init__.py" in complaint()
    hub_kernel.write_variant(tmp_path / "fresh")
    (variant / "__init__.py").write_text((tmp_path / "fresh/build/torch-cpu/__init__.py").read_text())
    (variant / "more.py").write_text("")
    assert "more.py" in complaint()
    (variant / "more.py").unlink()
    metadata.write_text(json.dumps({**json.loads(good), "digest": None}))
    assert "digest" in complaint()
    metadata.write_text("{")
    assert "metadata.json" in complaint()
    metadata.write_bytes(b"\xff")
    assert "not text" in complaint()
    metadata.write_text(" " * (digests.METADATA_BYTES + 1))
    assert "larger" in complaint()
