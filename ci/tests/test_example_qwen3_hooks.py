# SPDX-License-Identifier: Apache-2.0
"""A Qwen3 on the kernels generates, compiles, and lets hooks see and change what they always could."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from model_checks import CLOSE, Calls, error, gradients, local_kernels, logits, one_thread, ops
from transformers import StaticCache

# model_checks has made the examples importable
# isort: split
from examples.qwen3_8b.inject import KERNELS, inject
from examples.qwen3_8b.model import random_model, random_tokens

BF16, F32 = torch.bfloat16, torch.float32

LAYERS = 4
ALL = {"add_rms_norm": 2 * LAYERS, "rms_norm": 1, "rms_norm_rope3d": LAYERS}


@pytest.fixture(scope="module")
def kernels() -> Iterator[dict[str, ModuleType]]:
    with local_kernels(KERNELS) as found:
        yield found


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture
def model() -> Any:
    return random_model("tiny", "cpu", F32)


@pytest.fixture
def ids(model: Any) -> torch.Tensor:
    return random_tokens(model, 2, 19)


# ---- generating --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_greedy_tokens(kernels: dict[str, ModuleType], model: Any, ids: torch.Tensor, cache: str) -> None:
    """Two prompts of different lengths, padded on the left."""
    mask = torch.ones_like(ids)
    mask[0, :7] = 0
    arguments = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False, "disable_compile": True}
    if cache == "static":
        arguments["cache_implementation"] = "static"
    plain = model.generate(ids, **arguments)
    inject(model, kernels)
    with Calls() as calls:
        assert torch.equal(model.generate(ids, **arguments), plain)
    assert calls.counted == {name: 12 * count for name, count in ALL.items()}


def test_sliding_windows(kernels: dict[str, ModuleType], ids: torch.Tensor) -> None:
    model = random_model(
        "tiny", "cpu", F32, use_sliding_window=True, sliding_window=5, max_window_layers=2, layer_types=None
    )
    assert len(set(model.config.layer_types)) == 2
    plain = model.generate(ids, max_new_tokens=8, do_sample=False), logits(model, ids)
    inject(model, kernels)
    assert torch.equal(model.generate(ids, max_new_tokens=8, do_sample=False), plain[0])
    torch.testing.assert_close(logits(model, ids), plain[1], **CLOSE)


def test_scaled_rotary_embeddings(kernels: dict[str, ModuleType], ids: torch.Tensor) -> None:
    """YaRN, as Qwen3's card suggests for long texts: the model's own tables are what q and k turn by."""
    rope = {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    model = random_model("tiny", "cpu", F32, rope_parameters=rope)
    plain = logits(model, ids)
    inject(model, kernels)
    torch.testing.assert_close(logits(model, ids), plain, **CLOSE)
    assert ops(model, ids) == ALL


def test_embeddings_in_place_of_ids(kernels: dict[str, ModuleType], model: Any, ids: torch.Tensor) -> None:
    plain = logits(model, ids)
    inject(model, kernels)
    with torch.no_grad():
        ours = model(inputs_embeds=model.model.embed_tokens(ids)).logits
    torch.testing.assert_close(ours, plain, **CLOSE)
    for wrong in ({}, {"input_ids": ids, "inputs_embeds": torch.zeros(2, 19, 64)}):
        with pytest.raises(ValueError, match="exactly one of input_ids or inputs_embeds"):
            model(**wrong)


# ---- compiled ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F32, BF16], ids=["float32", "bfloat16"])
def test_compiled_whole(kernels: dict[str, ModuleType], dtype: torch.dtype, ids: torch.Tensor) -> None:
    model = random_model("tiny", "cpu", dtype)
    inject(model, kernels)
    eager = logits(model, ids)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(logits(compiled, ids), eager)


def test_compiled_training(kernels: dict[str, ModuleType], model: Any, ids: torch.Tensor) -> None:
    model.train()
    inject(model, kernels)
    wanted = gradients(model, ids)
    model.compile(fullgraph=True, backend="aot_eager")
    for name, grad in gradients(model, ids).items():
        torch.testing.assert_close(grad, wanted[name], rtol=1e-4, atol=1e-6)


def test_compiled_decoding(kernels: dict[str, ModuleType], model: Any, ids: torch.Tensor) -> None:
    """Into a static cache, step after step by one graph."""
    inject(model, kernels)
    caches = [StaticCache(config=model.config, max_cache_len=32) for _ in range(2)]
    step = torch.compile(model, fullgraph=True, backend="aot_eager")
    for cache in caches:
        logits(model, ids, past_key_values=cache)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for position in range(ids.shape[1], ids.shape[1] + 4):
        where = {"position_ids": torch.full((2, 1), position)}
        wanted = logits(model, ids[:, :1], past_key_values=caches[0], **where)
        assert torch.equal(logits(step, ids[:, :1], past_key_values=caches[1], **where), wanted)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs + 1


# ---- what else the model promises --------------------------------------------------------------------------

HOOKED = (
    *("model", "model.norm", "model.layers.1", "model.layers.1.self_attn", "model.layers.1.mlp"),
    *("model.layers.1.input_layernorm", "model.layers.1.post_attention_layernorm"),
    *(
        "model.layers.1.self_attn.q_norm",
        "model.layers.1.self_attn.k_norm",
        "model.layers.1.self_attn.v_proj",
    ),
)


def seen_by_hook(model: Any, name: str, ids: torch.Tensor) -> list[torch.Tensor]:
    """What a forward hook gets as this module's result."""
    seen: list[torch.Tensor] = []

    def hook(module: Any, args: Any, output: Any) -> None:
        seen.append(output if isinstance(output, torch.Tensor) else output[0])

    handle = model.get_submodule(name).register_forward_hook(hook)
    with torch.no_grad():
        model(ids)
    handle.remove()
    return seen


@pytest.mark.parametrize("name", HOOKED)
def test_hooks_fire(kernels: dict[str, ModuleType], model: Any, ids: torch.Tensor, name: str) -> None:
    """Once, on what the model's own module gives; and when a hook is gone, all is fused again."""
    (plain,) = seen_by_hook(model, name, ids)
    inject(model, kernels)
    (ours,) = seen_by_hook(model, name, ids)
    torch.testing.assert_close(ours, plain, **CLOSE)
    assert ops(model, ids) == ALL


@pytest.mark.parametrize("name", HOOKED[1:])
def test_a_hook_may_change_what_goes_in_and_comes_out(
    kernels: dict[str, ModuleType], model: Any, ids: torch.Tensor, name: str
) -> None:
    """As adapters and steering do."""

    def before(module: Any, args: Any, kwargs: Any) -> Any:
        scaled = {k: v * 1.1 if k == "hidden_states" else v for k, v in kwargs.items()}
        return tuple(a * 1.1 for a in args), scaled

    def after(module: Any, args: Any, output: Any) -> Any:
        return output * 0.7 if isinstance(output, torch.Tensor) else (output[0] * 0.7, *output[1:])

    module = model.get_submodule(name)
    unhooked = logits(model, ids)
    module.register_forward_pre_hook(before, with_kwargs=True)
    module.register_forward_hook(after)
    plain = logits(model, ids)
    assert error(plain, unhooked) > 1e-3
    inject(model, kernels)
    torch.testing.assert_close(logits(model, ids), plain, **CLOSE)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # attention gets its input by name
def test_backward_hooks_fire(kernels: dict[str, ModuleType], model: Any, ids: torch.Tensor) -> None:
    counts = []
    for swap in (False, True):
        fired: Counter[str] = Counter()
        if swap:
            inject(model, kernels)
        handles = [
            model.get_submodule(name).register_full_backward_hook(
                lambda module, grad_in, grad_out, name=name, fired=fired: fired.update([name])
            )
            for name in HOOKED[1:]
        ]
        model(ids, labels=ids).loss.backward()
        for handle in handles:
            handle.remove()
        counts.append(fired)
    assert counts[0] == counts[1] == Counter(HOOKED[1:])


def test_a_wrapped_forward_is_called(kernels: dict[str, ModuleType], model: Any, ids: torch.Tensor) -> None:
    """accelerate wraps forwards to move weights in time; what it wraps must run, and runs the kernels."""
    inject(model, kernels)
    calls: Counter[str] = Counter()
    wrapped = ("model.layers.1", "model.layers.2.post_attention_layernorm", "model.layers.3.self_attn.k_norm")
    for name in wrapped:
        module = model.get_submodule(name)
        module._old_forward = module.forward

        def forward(*args: Any, module: Any = module, name: str = name, **kwargs: Any) -> Any:
            calls[name] += 1
            return module._old_forward(*args, **kwargs)

        module.forward = forward
    assert ops(model, ids) == {"add_rms_norm": 5, "rms_norm": 6, "rms_norm_rope3d": 3}
    assert calls == Counter(wrapped)
    before = logits(model, ids)
    inject(model, kernels).undo()
    assert ops(model, ids) == {}
    torch.testing.assert_close(logits(model, ids), before, **CLOSE)


def test_hidden_states_and_attentions(kernels: dict[str, ModuleType], ids: torch.Tensor) -> None:
    """transformers collects them by hooks on layers, which stay: sums between layers are not fused then."""
    model = random_model("tiny", "cpu", F32, attn_implementation="eager")
    asked = {"output_hidden_states": True, "output_attentions": True}
    with torch.no_grad():
        plain = copy.deepcopy(model)(ids, **asked)
        inject(model, kernels)
        ours = model(ids, **asked)
    for kind in ("hidden_states", "attentions"):
        assert len(ours[kind]) == len(plain[kind])
        for got, wanted in zip(ours[kind], plain[kind], strict=True):
            torch.testing.assert_close(got, wanted, **CLOSE)
    assert ops(model, ids) == {"add_rms_norm": LAYERS, "rms_norm": 1 + LAYERS, "rms_norm_rope3d": LAYERS}


def test_tuples_in_place_of_outputs(kernels: dict[str, ModuleType], model: Any, ids: torch.Tensor) -> None:
    inject(model, kernels)
    with torch.no_grad():
        first, cache = model(ids, return_dict=False)
        assert torch.equal(first, model(ids).logits)
        assert cache.get_seq_length() == ids.shape[1]
        assert model(ids, use_cache=False).past_key_values is None
