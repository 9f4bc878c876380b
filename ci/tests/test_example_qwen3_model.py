# SPDX-License-Identifier: Apache-2.0
"""Qwen3 with random weights: the real sizes, and the same numbers from the same seed."""

from __future__ import annotations

from typing import Any

import model_checks  # noqa: F401  (makes the examples importable)
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

# isort: split
from examples.qwen3_8b.model import config_of, random_model, random_tokens
from examples.qwen3_8b.settings import PARAMETERS

BF16, F32 = torch.bfloat16, torch.float32


def test_full_is_qwen3_8b() -> None:
    """As its config.json and its card have it: 8.2 billion parameters, 6.95 without embeddings."""
    config = config_of("full")
    with torch.device("meta"):
        model: Any = Qwen3ForCausalLM(config)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS == 8_190_735_360
    assert (config.rms_norm_eps, config.rope_parameters["rope_theta"]) == (1e-6, 1e6)
    assert config.layer_types == ["full_attention"] * 36


def test_random_weights_follow_the_seed() -> None:
    first, again, other = (random_model("tiny", "cpu", BF16, seed) for seed in (1, 1, 2))
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name)), name
        assert not torch.equal(parameter, other.get_parameter(name)), name
    norms, matrices = (
        torch.cat(
            [p.detach().float().flatten() for name, p in first.named_parameters() if ("norm" in name) is norm]
        )
        for norm in (True, False)
    )
    assert (float(norms.mean()), float(norms.std())) == pytest.approx((1, 0.1), rel=0.1)
    assert (float(matrices.mean()), float(matrices.std())) == pytest.approx((0, 0.02), rel=0.02, abs=5e-4)
    assert first.dtype == BF16
    assert not first.training
    assert torch.equal(random_tokens(first, 2, 9, 3), random_tokens(other, 2, 9, 3))


def test_rotary_embeddings_of_a_random_model_are_right() -> None:
    """They are no parameters, so what fills those does not fill them."""
    made = random_model("tiny", "cpu", BF16).model.rotary_emb
    right = Qwen3RotaryEmbedding(Qwen3Config(**config_of("tiny").to_dict()))
    assert torch.equal(made.inv_freq, right.inv_freq)
    assert made.inv_freq.dtype == F32


def test_an_unknown_size_is_an_error() -> None:
    with pytest.raises(ValueError, match="size is 'huge', wanted one of tiny, full"):
        random_model("huge", "cpu", F32)


def test_changes_reach_the_model() -> None:
    assert len(random_model("tiny", "cpu", F32, num_hidden_layers=1).model.layers) == 1
