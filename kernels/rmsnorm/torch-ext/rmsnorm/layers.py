# SPDX-License-Identifier: Apache-2.0
"""Layers that kernelize puts in place of a model's own: a forward each, and no state of their own."""

from __future__ import annotations

import torch
from torch import nn

from ._functional import rms_norm

__all__ = ["GemmaRMSNorm", "LlamaRMSNorm", "RMSNorm"]


class RMSNorm(nn.Module):
    """In place of ``torch.nn.RMSNorm`` and of diffusers' ``RMSNorm``.

    Reads ``weight`` (may be None), ``eps`` (may be None) and, if there is one, ``bias``. torch.nn's class,
    told by its ``normalized_shape``, rounds once; diffusers' rounds before it multiplies a half-precision
    weight.
    """

    can_torch_compile = True
    has_backward = True

    eps: float | None
    weight: torch.Tensor | None

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        normalized_shape = getattr(self, "normalized_shape", None)
        if normalized_shape is None:
            half = weight is not None and weight.dtype in (torch.float16, torch.bfloat16)
            y = rms_norm(hidden_states, weight, self.eps, rounding="before_weight" if half else "once")
            bias = getattr(self, "bias", None)
            return y if bias is None else y + bias
        if len(normalized_shape) == 1:
            return rms_norm(hidden_states, weight, self.eps)
        # Several normalised dimensions are one row to the op.
        start = hidden_states.dim() - len(normalized_shape)
        rows = hidden_states.flatten(start)
        flat_weight = None if weight is None else weight.flatten()
        return rms_norm(rows, flat_weight, self.eps).view(hidden_states.shape)


class LlamaRMSNorm(nn.Module):
    """In place of transformers' ``LlamaRMSNorm`` and its many equals: Qwen2's, Qwen3's, Mistral's."""

    can_torch_compile = True
    has_backward = True

    variance_epsilon: float
    weight: torch.Tensor

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden_states, self.weight, self.variance_epsilon, rounding="before_weight")


class GemmaRMSNorm(nn.Module):
    """In place of transformers' ``GemmaRMSNorm``, whose weight is stored minus one."""

    can_torch_compile = True
    has_backward = True

    eps: float
    weight: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self.eps, weight_offset=1.0)
