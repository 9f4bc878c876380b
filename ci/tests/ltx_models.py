# SPDX-License-Identifier: Apache-2.0
"""A tiny LTX-Video transformer, what it is called with, and what runs then."""

from __future__ import annotations

from typing import Any

import torch
from example_models import ops_of, perturb
from examples.ltx_video.model import random_transformer

F32 = torch.float32
LAYERS, TOKENS, TEXT = 2, 24, 6
# Calls in one pass: four of adaln in each block and one at the end, q and k of both attentions of each.
ADALN = {"ada_norm": LAYERS + 1, "gate_residual": 2 * LAYERS, "gate_residual_ada_norm": LAYERS}
RMSNORM = {"rms_norm": 2 * LAYERS}
ROPE3D = {"rms_norm_rope3d": LAYERS}
ALL = ADALN | RMSNORM | ROPE3D


def tiny(dtype: torch.dtype = F32, **config: Any) -> Any:
    return perturb(random_transformer("tiny", **config)).to(dtype)


def inputs(dtype: torch.dtype = F32, **others: Any) -> dict[str, Any]:
    """One step of a video of 2 by 3 by 4 latents with guidance; the second text is shorter."""
    generator = torch.Generator().manual_seed(1)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    return {
        "hidden_states": randn(2, TOKENS, 8),
        "encoder_hidden_states": randn(2, TEXT, 32),
        "timestep": torch.tensor([3, 500]),
        "encoder_attention_mask": torch.tensor([[1] * TEXT, [1, 1, 1, 1, 0, 0]]),
        "num_frames": 2,
        "height": 3,
        "width": 4,
        "rope_interpolation_scale": (0.3, 32.0, 32.0),
        "return_dict": False,
        **others,
    }


def output(model: Any) -> torch.Tensor:
    with torch.no_grad():
        out: torch.Tensor = model(**inputs())[0]
    return out


def runs_kernels(model: Any) -> dict[str, int]:
    return ops_of(lambda: model(**inputs())).of_kernels()


def assert_as_it_was(model: Any, theirs: torch.Tensor) -> None:
    """Bit for bit the plain model's, and nothing of ours is bound anywhere."""
    assert torch.equal(output(model), theirs)
    assert runs_kernels(model) == {}
