# SPDX-License-Identifier: Apache-2.0
"""Layers that kernelize puts in place of a model's own: a forward each, and no state of their own.

They round the product once, where the models in half precision round gelu(gate) and then the product.
"""

from __future__ import annotations

import torch
from torch import nn

from ._functional import geglu, geglu_split

__all__ = ["GEGLU", "GeluAndMul", "GemmaMLP", "ModernBertMLP"]

# transformers' classes of the two functions, by name: a kernel imports torch alone.
_APPROXIMATE = {
    "GELUActivation": "none",
    "GELUTanh": "tanh",
    "NewGELUActivation": "tanh",
    "PytorchGELUTanh": "tanh",
}


def _approximate(layer: str, name: str, activation: nn.Module) -> str:
    """What ``approximate`` is in a model's activation; one that is no GELU is refused."""
    if isinstance(activation, nn.GELU):
        return activation.approximate
    kind = type(activation).__name__
    if kind not in _APPROXIMATE:
        raise ValueError(f"{layer}: {name} is {kind}, wanted nn.GELU or one of {', '.join(_APPROXIMATE)}")
    return _APPROXIMATE[kind]


class GEGLU(nn.Module):
    """In place of diffusers' ``GEGLU`` (models/activations.py): value first, gate last, the error function.

    Reads ``proj``. The deprecated argument ``scale`` is ignored, as it is there.
    """

    can_torch_compile = True
    has_backward = True

    proj: nn.Module

    def forward(self, hidden_states, *args, **kwargs) -> torch.Tensor:
        return geglu(self.proj(hidden_states))


class GemmaMLP(nn.Module):
    """In place of transformers' ``GemmaMLP``, ``Gemma2MLP`` and ``Gemma3MLP``.

    Reads ``gate_proj``, ``up_proj``, ``down_proj`` and ``act_fn``, which says which GELU it is.
    """

    can_torch_compile = True
    has_backward = True

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module
    act_fn: nn.Module

    def forward(self, x):
        approximate = _approximate("GemmaMLP", "act_fn", self.act_fn)
        return self.down_proj(geglu_split(self.up_proj(x), self.gate_proj(x), approximate=approximate))


class ModernBertMLP(nn.Module):
    """In place of transformers' ``ModernBertMLP``: one projection to both halves, the gate first.

    Reads ``Wi``, ``act``, which says which GELU it is, ``drop`` and ``Wo``.
    """

    can_torch_compile = True
    has_backward = True

    Wi: nn.Module
    act: nn.Module
    drop: nn.Module
    Wo: nn.Module

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        approximate = _approximate("ModernBertMLP", "act", self.act)
        return self.Wo(self.drop(geglu(self.Wi(hidden_states), approximate=approximate, gate="first")))


class GeluAndMul(nn.Module):
    """In place of vLLM's ``GeluAndMul``: the gate first, and ``approximate`` an attribute."""

    can_torch_compile = True
    has_backward = True

    approximate: str

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return geglu(x, approximate=self.approximate, gate="first")
