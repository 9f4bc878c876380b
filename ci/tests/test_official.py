# SPDX-License-Identifier: Apache-2.0
"""The Hub's validator, through the one module that touches it."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from pathlib import Path

import pytest
from repositories import variant

from kernelworks import official

PACKAGE = Path(official.__file__).parent


def test_a_valid_manifest_is_not_complained_about(repository: Path) -> None:
    assert official.complaint_about_build(repository / "kernels/toy") is None


def test_complaints_are_one_line_and_without_the_path(repository: Path) -> None:
    (repository / "kernels/toy/build.toml").write_text("[general]\nedition = 5\n")
    complaint = official.complaint_about_build(repository / "kernels/toy")
    assert complaint is not None
    assert "\n" not in complaint
    assert str(repository) not in complaint


def test_names_are_refused_with_the_rule() -> None:
    assert official.complaint_about_name("rope3d") is None
    complaint = official.complaint_about_name("my_kernel")
    assert complaint is not None
    assert "only lowercase letters, digits, and dashes; End with" in complaint


def test_the_digest_is_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/b.py").write_bytes(b"b")
    (tmp_path / "a.py").write_bytes(b"a")
    (tmp_path / "metadata.json").write_bytes(b"{}")
    expected = {
        name: base64.b64encode(hashlib.sha256(content).digest()).decode()
        for name, content in (("a.py", b"a"), ("sub/b.py", b"b"))
    }
    assert official.digest(tmp_path) == {"algorithm": "sha256", "files": expected}


@pytest.mark.parametrize("pattern", ["*.so", "__init__.py"])
def test_one_flipped_byte_is_named(built_once: Path, tmp_path: Path, pattern: str) -> None:
    copy = Path(shutil.copytree(variant(built_once), tmp_path / "variant"))
    assert official.digest_violations(copy) == []
    (path,) = copy.glob(pattern)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    (violation,) = official.digest_violations(copy)
    assert path.name in violation


def test_strangers_and_missing_files_are_named(built_once: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(variant(built_once), tmp_path / "variant"))
    (copy / "_ops.py").unlink()
    (copy / "extra.py").touch()
    violations = official.digest_violations(copy)
    assert len(violations) == 2
    assert {"_ops.py", "extra.py"} == {
        name for name in ("_ops.py", "extra.py") if name in " ".join(violations)
    }


def test_metadata_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    assert official.metadata_of(tmp_path) is None
    (tmp_path / "metadata.json").write_text("{")
    assert official.metadata_of(tmp_path) is None
    assert official.complaint_about_metadata("{}") is not None


def test_only_this_module_touches_the_private_one() -> None:
    users = [path.name for path in PACKAGE.rglob("*.py") if re.search(r"kernels\._rust\b", path.read_text())]
    assert users == ["official.py"]
