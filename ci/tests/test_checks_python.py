# SPDX-License-Identifier: Apache-2.0
"""Each check of a kernel's Python files, proven by breaking a small kernel in just one way."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_kernel
from small_kernel import KERNEL, PACKAGE, replaced

CHANGES = [
    pytest.param(
        replaced(f"{PACKAGE}/__init__.py", '"scale"]', '"scale", "ghost"]'),
        "kernels/scale-it/torch-ext/scale_it/__init__.py: lists 'ghost' in `__all__` but does not define it; "
        "define or unlist it",
        id="all-untrue",
    ),
    pytest.param(
        replaced(f"{PACKAGE}/__init__.py", '"scale"]', '"scale", "scale"]'),
        "kernels/scale-it/torch-ext/scale_it/__init__.py: lists 'scale' twice in `__all__`; list it once",
        id="all-twice",
    ),
    pytest.param(
        replaced(f"{PACKAGE}/__init__.py", '["layers", "scale"]', 'sorted(["layers", "scale"])'),
        "kernels/scale-it/torch-ext/scale_it/__init__.py: has an `__all__` that is not a literal list of "
        "names; "
        'write __all__ = ["name", ...]',
        id="all-computed",
    ),
    pytest.param(
        replaced(f"{PACKAGE}/__init__.py", "__all__", "__some__"),
        'kernels/scale-it/torch-ext/scale_it/__init__.py: has no `__all__`; write one: __all__ = ["name", '
        "...]",
        id="all-missing",
    ),
    pytest.param(
        replaced(f"{PACKAGE}/_fake.py", 'add_op_namespace_prefix("scale")', '"scale_it::scale"'),
        "kernels/scale-it/torch-ext/scale_it/_fake.py: registers '_scale' (line 6) under a fixed name; "
        'write add_op_namespace_prefix("...") as the first argument, from ._ops',
        id="namespace",
    ),
    pytest.param(
        replaced(f"{PACKAGE}/_fake.py", "import torch\n", "import torch\nfrom scale_it import _ops\n"),
        "kernels/scale-it/torch-ext/scale_it/_fake.py: imports scale_it; "
        "use relative imports, torch and the standard library only",
        id="absolute-import",
    ),
    pytest.param(
        {f"{PACKAGE}/layers/__init__.py": "from ... import _fake\n"},
        "kernels/scale-it/torch-ext/scale_it/layers/__init__.py: imports from outside its package; "
        "import from inside the package only",
        id="import-above",
    ),
    pytest.param(
        {f"{KERNEL}/tests/test_scale.py": "def f(:\n"},
        "kernels/scale-it/tests/test_scale.py: does not parse: invalid syntax",
        id="syntax",
    ),
]


@pytest.mark.parametrize(("changes", "line"), CHANGES)
def test_each_broken_rule_is_one_line(tmp_path: Path, changes: dict[str, str], line: str) -> None:
    root = small_kernel.write(small_kernel.make(tmp_path), changes)
    (found,) = small_kernel.findings(root)
    assert found.startswith(line)
