# SPDX-License-Identifier: Apache-2.0
"""The layers drop into other models of transformers by kernelize: numbers, gradients, one graph."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from types import MethodType, ModuleType
from typing import Any

import pytest
import torch
import transformers
from kernels import replace_kernel_forward_from_hub
from model_checks import CLOSE, error, gradients, local_kernels, logits, one_thread, ops

# model_checks has made the examples importable
# isort: split
from examples.qwen3_8b.inject import KERNELS
from examples.qwen3_8b.layers import LAYERS, swap_layers

BF16, F32 = torch.bfloat16, torch.float32
SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "pad_token_id": 0,
}
IMAGE, START, END = 255, 254, 253  # tokens around a picture of 4 by 6 patches, merged two by two
GEMMA = {
    "GemmaRMSNorm": ("rmsnorm", "GemmaRMSNorm"),
    "GemmaMLP": ("geglu", "GemmaMLP"),
    "rotary_pos_emb": LAYERS["rotary_pos_emb"],
}


@dataclass(frozen=True)
class Case:
    """A model, the layers for it, and what runs then: modules swapped, and the ops of one pass."""

    module: str
    make: Callable[[], Any]
    swapped: int
    ops: dict[str, int]
    layers: dict[str, tuple[str, str]]
    inputs: Callable[[], dict[str, torch.Tensor]]


def text() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {"input_ids": torch.randint(1, 250, (2, 21), generator=generator)}


def text_and_picture() -> dict[str, torch.Tensor]:
    """Six tokens of a picture between words, so that the three positions of M-RoPE differ."""
    words = text()["input_ids"][:1]
    picture = torch.tensor([[START, *[IMAGE] * 6, END]])
    ids = torch.cat([words[:, :5], picture, words[:, 5:]], 1)
    return {
        "input_ids": ids,
        "mm_token_type_ids": (ids == IMAGE).int(),
        "pixel_values": torch.randn(24, 3 * 2 * 4 * 4, generator=torch.Generator().manual_seed(2)),
        "image_grid_thw": torch.tensor([[1, 4, 6]]),
    }


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))


def gemma() -> Any:
    return transformers.GemmaForCausalLM(transformers.GemmaConfig(**SIZES, hidden_act="gelu_pytorch_tanh"))


def _multimodal(name: str, sizes: dict[str, Any], rope: dict[str, Any], vision: dict[str, Any]) -> Any:
    own: Any = getattr(transformers, f"{name}Config")
    of_vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 4}
    config = own(
        text_config=sizes | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6} | rope},
        vision_config=of_vision | {"out_hidden_size": 64} | vision,
        image_token_id=IMAGE,
        vision_start_token_id=START,
        vision_end_token_id=END,
        video_token_id=252,
    )
    return getattr(transformers, f"{name}ForConditionalGeneration")(config)


def qwen2_5_vl() -> Any:
    vision = {"fullatt_block_indexes": [1], "window_size": 16}
    sizes = {name: size for name, size in SIZES.items() if name != "head_dim"}  # it has hidden_size / heads
    return _multimodal("Qwen2_5_VL", sizes, {"mrope_section": [2, 3, 3]}, vision)


def qwen3_vl() -> Any:
    rope = {"mrope_section": [6, 5, 5], "mrope_interleaved": True}
    vision = {"deepstack_visual_indexes": [0], "num_position_embeddings": 64}
    return _multimodal("Qwen3VL", SIZES, rope, vision)


CASES = {
    "llama": Case("llama", llama, 5, {"rms_norm": 5, "apply_rotary": 2}, LAYERS, text),
    "gemma": Case("gemma", gemma, 7, {"rms_norm": 5, "apply_rotary": 2, "geglu_split": 2}, GEMMA, text),
    "qwen2_5_vl": Case(
        "qwen2_5_vl", qwen2_5_vl, 10, {"rms_norm": 10, "apply_rotary": 2}, LAYERS, text_and_picture
    ),
    "qwen3_vl": Case("qwen3_vl", qwen3_vl, 9, {"rms_norm": 9, "apply_rotary": 2}, LAYERS, text_and_picture),
}


@pytest.fixture(scope="module")
def kernels() -> Iterator[dict[str, ModuleType]]:
    with local_kernels([*KERNELS, "geglu"]) as found:
        yield found


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    """Afterwards the functions of the process and Gemma's classes are as they were."""
    found = CASES[request.param]
    own = import_module(f"transformers.models.{found.module}.modeling_{found.module}")
    named = [getattr(own, name) for name in found.layers if hasattr(own, name)]
    for kind in named:  # Gemma's norm and MLP are not marked for kernelize
        replace_kernel_forward_from_hub(kind, kind.__name__)
    yield found
    for kind in named:
        del kind.kernel_layer_name, kind.kernel_condition
    function = own.apply_rotary_pos_emb
    function.forward = MethodType(type(function).forward, function)


def made(case: Case, dtype: torch.dtype = F32) -> Any:
    """With random norms too, as ones would hide a weight that is not read."""
    torch.manual_seed(0)
    model = case.make().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.normal_(0.0 if case.module == "gemma" else 1.0, 0.1)
    return model.to(dtype)


def test_layers_drop_in(kernels: dict[str, ModuleType], case: Case) -> None:
    """The model's own logits in fp32, and the gradients of every parameter; all ops run that should."""
    model, inputs = made(case), case.inputs()
    ids = inputs.pop("input_ids")
    plain, plain_gradients = logits(model, ids, **inputs), gradients(model.train(), ids, **inputs)
    assert swap_layers(model.train(), layers=case.layers, compiled=True) == case.swapped
    for name, grad in gradients(model, ids, **inputs).items():
        torch.testing.assert_close(
            grad,
            plain_gradients.pop(name),
            rtol=1e-3,
            atol=1e-5,
            msg=lambda text, name=name: f"{name}: {text}",
        )
    assert not plain_gradients
    model.eval()
    assert ops(model, ids, **inputs) == case.ops
    torch.testing.assert_close(logits(model, ids, **inputs), plain, **CLOSE)


def test_in_bf16_they_are_as_near_to_fp32_as_the_models_own(
    kernels: dict[str, ModuleType], case: Case
) -> None:
    model, inputs = made(case, BF16), case.inputs()
    ids = inputs.pop("input_ids")
    truth, plain = logits(copy.deepcopy(model).float(), ids, **inputs), logits(model, ids, **inputs)
    swap_layers(model, layers=case.layers)
    ours = logits(model, ids, **inputs)
    assert not torch.equal(ours, plain)
    assert error(ours, truth) <= 1.1 * error(plain, truth)


@pytest.mark.parametrize("case", ["llama", "gemma"], indirect=True)
def test_compiled_whole(kernels: dict[str, ModuleType], case: Case) -> None:
    """Not the others: their own code has graph breaks, where pictures go in among words."""
    model, inputs = made(case), case.inputs()
    swap_layers(model, layers=case.layers, compiled=True)
    eager = logits(model, **inputs)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(logits(compiled, **inputs), eager)


@pytest.mark.parametrize("case", ["qwen2_5_vl", "qwen3_vl"], indirect=True)
def test_positions_of_a_picture_count(kernels: dict[str, ModuleType], case: Case) -> None:
    """The swapped function turns by all three: without a picture's rows and columns logits are others."""
    model, inputs = made(case), case.inputs()
    swap_layers(model, layers=case.layers)
    length = inputs["input_ids"].shape[1]
    by_line = torch.arange(length).expand(3, 1, length)
    assert error(logits(model, **inputs, position_ids=by_line), logits(model, **inputs)) > 1e-4
