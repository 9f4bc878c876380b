# SPDX-License-Identifier: Apache-2.0
"""LTX-Video's GELU, which on a GPU ends the product in front of it."""

from __future__ import annotations

from types import MethodType
from typing import Any

import example_models  # noqa: F401  makes the examples importable
import pytest
import torch
from diffusers.models.activations import GELU
from examples.ltx_video import forwards


def gelu(device: str) -> tuple[Any, torch.Tensor]:
    """One with our forward, and an input for it."""
    torch.manual_seed(0)
    module: Any = GELU(32, 64, approximate="tanh").to(device, torch.bfloat16)
    module.forward = MethodType(forwards.of_gelu(), module)
    return module, torch.randn(2, 5, 32, device=device, dtype=torch.bfloat16)


def test_on_a_cpu_it_is_diffusers_own() -> None:
    """There the function of torch has another GELU."""
    module, x = gelu("cpu")
    with torch.no_grad():
        assert torch.equal(module(x), GELU.forward(module, x))


def test_the_op_is_what_torch_compile_is_told() -> None:
    weight, bias = torch.randn(64, 32), torch.randn(64)
    torch.library.opcheck(forwards._linear_gelu, (torch.randn(2, 5, 32), weight, bias))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("compiled", [False, True])
def test_numbers_on_a_gpu(compiled: bool) -> None:
    module, x = gelu("cuda")
    run = torch.compile(module, fullgraph=True) if compiled else module
    truth = torch.nn.functional.gelu(
        torch.nn.functional.linear(x.double(), module.proj.weight.double(), module.proj.bias.double()),
        approximate="tanh",
    )
    with torch.no_grad():
        y = run(x)
    assert y.shape == truth.shape
    assert float((y - truth).norm() / truth.norm()) < 2**-8


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_what_trains_and_what_is_cast_is_diffusers_own_on_a_gpu() -> None:
    module, x = gelu("cuda")
    (grad,) = torch.autograd.grad(module(x).float().sum(), module.proj.bias)
    assert torch.isfinite(grad).all()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        assert module.float()(x.float()).dtype == torch.bfloat16
