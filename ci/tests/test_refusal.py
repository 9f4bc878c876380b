# SPDX-License-Identifier: Apache-2.0
"""common/package/refusal.py: who is to blame for a refused call, in a sentence."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from kernelworks import catalog

SOURCE = catalog.find_root(Path(__file__)) / "common/package/refusal.py"
X = torch.ones(3)
FROM_DISPATCHER = RuntimeError("norm() Expected a value of type ...")


@pytest.fixture(scope="module")
def module() -> ModuleType:
    """Loaded from its file, as it belongs to no package here."""
    spec = spec_from_file_location("refusal", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    loaded = module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def refused(module: ModuleType, error: Exception, **arguments: Any) -> Exception:
    given = {"tensors": {"x": X}, "numbers": {}, "choices": {}} | arguments
    found = module.refusal("norm", error, **given)
    assert isinstance(found, Exception)
    return found


def test_the_ops_own_sentence_is_kept(module: ModuleType) -> None:
    found = refused(module, RuntimeError("ValueError: norm: x has no dimension"))
    assert (type(found), str(found)) == (ValueError, "norm: x has no dimension")


def test_nobody_is_to_blame(module: ModuleType) -> None:
    assert refused(module, FROM_DISPATCHER) is FROM_DISPATCHER


WRONG = [
    pytest.param({"tensors": {"x": None}}, "x is a NoneType, wanted a torch.Tensor", id="none"),
    pytest.param(
        {"tensors": {"x": X.to_sparse()}}, "x is a torch.sparse_coo tensor, wanted a dense", id="sparse"
    ),
    pytest.param(
        {"tensors": {"scale": [X, X]}, "pairs": ("scale",)},
        "scale is a list, wanted a torch.Tensor or a tuple of two",
        id="list",
    ),
    pytest.param(
        {"tensors": {"scale": (X, X, X)}, "pairs": ("scale",)},
        "scale is a tuple, wanted a torch.Tensor or a tuple of two",
        id="three",
    ),
    pytest.param(
        {"tensors": {"scale": (X, 1.0)}, "pairs": ("scale",)},
        "scale[1] is a float, wanted a torch.Tensor",
        id="in-a-pair",
    ),
    pytest.param(
        {"tensors": {"x": (X, X)}, "pairs": ("scale",)}, "x is a tuple, wanted a torch.Tensor", id="no-pair"
    ),
    pytest.param({"numbers": {"eps": "1"}}, "eps is a str, wanted a number", id="number"),
    pytest.param(
        {"choices": {"rounding": ("up", ("once", "twice"))}},
        "rounding is 'up', wanted 'once' or",
        id="choice",
    ),
]


@pytest.mark.parametrize(("arguments", "sentence"), WRONG)
def test_the_argument_is_named(module: ModuleType, arguments: dict[str, Any], sentence: str) -> None:
    found = refused(module, FROM_DISPATCHER, **arguments)
    assert str(found).startswith(f"norm: {sentence}")
    assert type(found) is (ValueError if "choices" in arguments else TypeError)


def test_what_may_be_none_may_be_a_pair_too(module: ModuleType) -> None:
    for scale in (None, X, (X, X)):
        found = refused(
            module, FROM_DISPATCHER, tensors={"x": X, "scale": scale}, optional=("scale",), pairs=("scale",)
        )
        assert found is FROM_DISPATCHER


def test_no_code_for_that_device(module: ModuleType) -> None:
    found = refused(
        module, NotImplementedError(), tensors={"x": X, "scale": (X, X.to("meta"))}, pairs=("scale",)
    )
    assert str(found).startswith("norm: x is on cpu, scale[0] is on cpu, scale[1] is on meta, and this build")
