# SPDX-License-Identifier: Apache-2.0
"""What tests of models of transformers share: kernels, what they compare, and which ops ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import example_models
import pytest
import torch
from example_models import ROOT as ROOT
from torch.utils._python_dispatch import TorchDispatchMode

# example_models has made the examples importable
# isort: split
from examples.loading import load_kernels

# fp32 sums of 64 to 192 terms in another order, through four layers: a few units of the last place of logits
# that are up to 1. bf16 is judged by its distance from fp32 instead.
CLOSE = {"rtol": 0.0, "atol": 1e-5}


@contextmanager
def local_kernels(names: Iterable[str]) -> Iterator[dict[str, ModuleType]]:
    """These kernels from their directories, for the CPU; LOCAL_KERNELS names them, so no Hub is asked."""
    names = list(names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_KERNELS", example_models.local_kernels(names))
        yield load_kernels(names, "cpu")


@contextmanager
def one_thread() -> Iterator[None]:
    """As the models are tiny; and nothing is compiled yet."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch._dynamo.reset()
    yield
    torch.set_num_threads(threads)


class Calls(TorchDispatchMode):
    """Counts the ops of our kernels, by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, _, name = func._schema.name.partition("::")
        if namespace.startswith(("_rmsnorm", "_rope3d", "_geglu")):
            self.counted[name.removesuffix("_train")] += 1
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def ops(model: Any, ids: torch.Tensor, **arguments: Any) -> dict[str, int]:
    """Which ops of ours one pass calls, and how often."""
    with Calls() as calls:
        model(ids, **arguments)
    return dict(calls.counted)


@torch.no_grad()
def logits(model: Any, input_ids: torch.Tensor, **arguments: Any) -> torch.Tensor:
    """In fp32, whatever the model has."""
    result: torch.Tensor = model(input_ids, **arguments).logits.float()
    return result


def gradients(model: Any, ids: torch.Tensor, **arguments: Any) -> dict[str, torch.Tensor]:
    """Of the loss, by the parameters' names, in fp32."""
    model.zero_grad()
    model(ids, labels=ids, **arguments).loss.backward()
    return {name: p.grad.float().clone() for name, p in model.named_parameters() if p.grad is not None}


def error(got: torch.Tensor, truth: torch.Tensor) -> float:
    """The root of the mean square."""
    return float((got - truth).square().mean().sqrt())
