# SPDX-License-Identifier: Apache-2.0
"""Gated GELU, both halves in one tensor or each in its own: forward and backward, CPU and CUDA.

Shazeer, "GLU Variants Improve Transformer", 2020, equation 6, without its projections::

    y = value * gelu(gate)          gelu(x) = x * cdf(x)

with the cumulative distribution function of the normal distribution, or its approximation by tanh (Hendrycks
and Gimpel, "Gaussian Error Linear Units", 2016). Which half is the gate is the caller's to say. Results are
rounded once. Each depends on its own value and gate alone, and gradients are the same in every run.
"""

from . import _autograd, _fake, layers, reference  # noqa: F401  (the first two register)
from ._functional import geglu, geglu_split

__all__ = ["geglu", "geglu_split", "layers"]
