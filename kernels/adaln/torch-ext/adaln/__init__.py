# SPDX-License-Identifier: Apache-2.0
"""Modulated normalisation of diffusion transformers: forward and backward, CPU and CUDA.

Peebles and Xie, "Scalable Diffusion Models with Transformers", 2023 (adaLN-Zero)::

    residual_out = residual + gate * x
    n = rms_norm(residual_out) or layer_norm(residual_out)          of x, where there is no residual
    y = (n * weight + bias) * (1 + scale) + shift

Arithmetic is fp32 (fp64 for fp64 input). A row's result does not depend, in any bit, on the other rows, on
strides, on alignment or on how its modulators are broadcast, and gradients are the same in every run.
"""

from . import _autograd, _fake, layers, reference  # noqa: F401  (the first two register)
from ._functional import ada_norm, gate_residual, gate_residual_ada_norm

__all__ = ["ada_norm", "gate_residual", "gate_residual_ada_norm", "layers"]
