# SPDX-License-Identifier: Apache-2.0
"""Each check of versions, card and changelog, proven by breaking a small kernel in just one way."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_kernel
from small_kernel import KERNEL, replaced

from kernelworks import checks_docs

CHANGES = [
    pytest.param(
        replaced("README.md", "version=2", "version=1"),
        "README.md: says version=1 at line 1, but build.toml has version 2; write version=2, or change "
        "build.toml",
        id="version-readme",
    ),
    pytest.param(
        replaced(f"{KERNEL}/CARD.md", "version=2", "version=3"),
        "kernels/scale-it/CARD.md: says version=3 at line 7, but build.toml has version 2; "
        "write version=2, or change build.toml",
        id="version-card",
    ),
    pytest.param(
        {f"{KERNEL}/tests/test_scale.py": "scale = get_kernel(REPO_ID, backend=None, version=1)\n"},
        "kernels/scale-it/tests/test_scale.py: says version=1 at line 1, but build.toml has version 2; "
        "write version=2, or change build.toml",
        id="version-tests",
    ),
    pytest.param(
        replaced(f"{KERNEL}/CHANGELOG.md", "## 2.1", "## 1.9"),
        "kernels/scale-it/CHANGELOG.md: has '## 1.9' as its newest heading, but build.toml version 2; "
        "begin with '## 2.N'",
        id="version-changelog",
    ),
    pytest.param(
        replaced(f"{KERNEL}/CARD.md", "apache-2.0", "mit"),
        "kernels/scale-it/CARD.md: has license mit, but build.toml Apache-2.0; write license: apache-2.0",
        id="card-license",
    ),
    pytest.param(
        replaced(f"{KERNEL}/CARD.md", "- kernels", "- cuda"),
        "kernels/scale-it/CARD.md: has no tag 'kernels'; add tags: [kernels] to the front matter",
        id="card-tags",
    ),
    pytest.param(
        {f"{KERNEL}/CARD.md": "# scale-it\n"},
        "kernels/scale-it/CARD.md: has no front matter; begin with --- lines that hold tags and license",
        id="card-front-matter",
    ),
]


@pytest.mark.parametrize(("changes", "line"), CHANGES)
def test_each_broken_rule_is_one_line(tmp_path: Path, changes: dict[str, str], line: str) -> None:
    root = small_kernel.write(small_kernel.make(tmp_path), changes)
    (found,) = small_kernel.findings(root)
    assert found.startswith(line)


def test_front_matter_is_read_in_both_forms_of_a_list() -> None:
    text = "---\ntags: [kernels, 'cuda']\nbase:\n- x\n- \"y\"\nlicense: mit\n---\nbody: 1\n"
    assert checks_docs.front_matter(text) == {
        "tags": ["kernels", "cuda"],
        "base": ["x", "y"],
        "license": ["mit"],
    }
