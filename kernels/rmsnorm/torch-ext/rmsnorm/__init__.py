# SPDX-License-Identifier: Apache-2.0
"""RMSNorm, alone or with the residual addition in front of it: forward and backward, CPU and CUDA.

Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019::

    n = x / sqrt(mean(x**2) + eps)          y = n * (weight + weight_offset)

Arithmetic is fp32 (fp64 for fp64 input). A row's result does not depend, in any bit, on the other rows, on
strides or on alignment, and gradients are the same in every run.
"""

from . import _autograd, _fake, layers, reference  # noqa: F401  (the first two register)
from ._functional import add_rms_norm, rms_norm

__all__ = ["add_rms_norm", "layers", "rms_norm"]
