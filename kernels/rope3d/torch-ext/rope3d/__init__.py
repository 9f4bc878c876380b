# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding over frames, height and width, without tables: forward and backward, CPU and CUDA.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021. Pair j of a head, of lanes
``a`` and ``b``, turns by an angle that depends on the token alone::

    angle = coords[token, axis[j]] * inv_freq[j]
    out[a] = x[a] * cos(angle) - x[b] * sin(angle)      out[b] = x[b] * cos(angle) + x[a] * sin(angle)

Arithmetic is fp32 (fp64 for fp64 input). A token's result does not depend, in any bit, on the other
tokens, on strides or on alignment, and gradients are the same in every run.
"""

from . import _autograd, _fake, layers, presets, reference  # noqa: F401  (the first two register)
from ._functional import apply_rotary, apply_rotary_, rms_norm_rope3d, rope3d, rope3d_
from ._grid import Rotary, grid

__all__ = [
    "Rotary",
    "apply_rotary",
    "apply_rotary_",
    "grid",
    "layers",
    "presets",
    "rms_norm_rope3d",
    "rope3d",
    "rope3d_",
]
