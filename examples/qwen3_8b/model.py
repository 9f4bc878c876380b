# SPDX-License-Identifier: Apache-2.0
"""Qwen3 models with random weights, made where they will run: nothing is downloaded, nothing is copied."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

STD = 0.02  # Qwen3's own initializer_range
NORM_STD = 0.1  # of a norm's weights around 1, so that one which is not read shows

# full is Qwen/Qwen3-8B to the letter; tiny has all of its parts, and runs on a laptop in no time.
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    },
    "full": {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
}
SHARED: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}


def config_of(size: str, **changes: Any) -> Qwen3Config:
    """The configuration of a size, ``tiny`` or ``full``, with changes to it.

    Raises:
        ValueError: no such size.
    """
    if size not in SIZES:
        raise ValueError(f"size is {size!r}, wanted one of {', '.join(SIZES)}")
    return Qwen3Config(**(SHARED | SIZES[size] | changes))


def random_model(
    size: str, device: torch.device | str, dtype: torch.dtype, seed: int = 0, **changes: Any
) -> Qwen3ForCausalLM:
    """A ``Qwen3ForCausalLM`` of random weights, ready for inference; training it is possible too.

    Matrices are normal with deviation 0.02, norms 1 with deviation 0.1. The same arguments give the same
    weights on devices of one type.

    Args:
        size: ``tiny``, or ``full``: Qwen3-8B, whose weights take 16.4 GB in bfloat16.
        device: where the weights are made.
        dtype: of the weights.
        seed: of their random numbers.
        changes: to the configuration, such as ``num_hidden_layers=2``.

    Raises:
        ValueError: no such size.
        RuntimeError: ``device`` is no device, or has too little memory.
    """
    config = config_of(size, dtype=dtype, **changes)
    model_class: Any = Qwen3ForCausalLM
    with torch.device("meta"):
        model = model_class._from_config(config, dtype=dtype)
    model.to_empty(device=device)
    model.model.rotary_emb = Qwen3RotaryEmbedding(config).to(device)  # its frequencies are no parameters
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = name.endswith("norm.weight")
            parameter.normal_(float(is_norm), NORM_STD if is_norm else STD, generator=generator)
    model.generation_config.pad_token_id = 0
    result: Qwen3ForCausalLM = model.eval()
    return result


def random_tokens(model: Any, batch: int, tokens: int, seed: int = 0) -> torch.Tensor:
    """Token ids ``(batch, tokens)``, int64, on the model's device; the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, model.config.vocab_size, (batch, tokens), generator=generator)
    return ids.to(model.device)
