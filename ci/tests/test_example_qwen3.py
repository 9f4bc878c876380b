# SPDX-License-Identifier: Apache-2.0
"""A Qwen3 of transformers runs on the kernels, gives its own numbers, and is itself again afterwards."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from model_checks import CLOSE, ROOT, load_kernels, local_kernels, logits, one_thread, ops
from transformers import Qwen3ForCausalLM, Qwen3ForSequenceClassification, Qwen3Model
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

# model_checks has made the examples importable
# isort: split
from examples.qwen3_8b.inject import KERNELS, inject
from examples.qwen3_8b.model import config_of, random_model, random_tokens

F32 = torch.float32
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


# ---- what is replaced --------------------------------------------------------------------------------------


def test_counts_are_what_runs(kernels: dict[str, ModuleType], model: Any, ids: torch.Tensor) -> None:
    injection = inject(model, kernels)
    assert injection.replaced == ALL == ops(model, ids)
    assert injection.left == {}
    assert str(injection) == "calls in one pass: 8 add_rms_norm, 1 rms_norm, 4 rms_norm_rope3d"


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("rmsnorm", {"add_rms_norm": 2 * LAYERS, "rms_norm": 1 + 2 * LAYERS}),
        ("rope3d", {"rms_norm_rope3d": LAYERS}),
    ],
)
def test_one_kernel_alone(
    kernels: dict[str, ModuleType], model: Any, ids: torch.Tensor, name: str, wanted: dict[str, int]
) -> None:
    plain = logits(model, ids)
    injection = inject(model, {name: kernels[name]})
    assert injection.replaced == wanted == ops(model, ids)
    torch.testing.assert_close(logits(model, ids), plain, **CLOSE)


def test_a_kernel_that_is_not_there_is_said_once(
    kernels: dict[str, ModuleType], model: Any, ids: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_KERNELS", f"kernelworks/rmsnorm={ROOT / 'kernels/rmsnorm'}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.warns(UserWarning, match="rope3d is not used, torch is in its place") as said:
        injection = inject(model, load_kernels(KERNELS, "cpu"))
    assert len(said) == 1
    assert "rms_norm_rope3d" not in injection.replaced
    assert ops(model, ids) == injection.replaced


@pytest.mark.parametrize("given", [{}, {"adaln": None}], ids=["none", "another"])
def test_nothing_to_replace_is_an_error(model: Any, given: Any) -> None:
    with pytest.raises(ValueError, match=r"inject: nothing of the model can be replaced .*rmsnorm, rope3d"):
        inject(model, given)


def test_another_model_is_an_error(kernels: dict[str, ModuleType]) -> None:
    with pytest.raises(ValueError, match="inject: model is a Linear, wanted a Qwen3Model"):
        inject(torch.nn.Linear(2, 2), kernels)


@pytest.mark.parametrize("kind", [Qwen3Model, Qwen3ForSequenceClassification, "wrapped"])
def test_other_heads(kernels: dict[str, ModuleType], kind: Any, ids: torch.Tensor) -> None:
    torch.manual_seed(0)
    config = config_of("tiny", pad_token_id=0)
    model: Any = torch.nn.Sequential(Qwen3Model(config)) if kind == "wrapped" else kind(config)
    model.eval()
    with torch.no_grad():
        plain = model(ids)[0]
        assert inject(model, kernels).replaced == ALL == ops(model, ids)
        torch.testing.assert_close(model(ids)[0], plain, **CLOSE)


def test_classes_of_anothers_are_left(kernels: dict[str, ModuleType], model: Any, ids: torch.Tensor) -> None:
    """A norm below Qwen3's with another forward, and one in a wrapper, as adapters put them there."""

    class Doubled(Qwen3RMSNorm):
        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(hidden_states)

    class Wrapped(torch.nn.Module):
        def __init__(self, norm: Any) -> None:
            super().__init__()
            self.norm, self.weight, self.variance_epsilon = norm, norm.weight, norm.variance_epsilon

        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            return 3 * self.norm(hidden_states)

    layers = model.model.layers
    layers[0].post_attention_layernorm = Doubled(64)
    layers[1].input_layernorm = Wrapped(layers[1].input_layernorm)
    layers[2].self_attn.k_norm = Doubled(32)
    layers[3].self_attn.q_norm = Wrapped(layers[3].self_attn.q_norm)
    plain = logits(model, ids)
    injection = inject(model, kernels)
    assert injection.left == {
        "Doubled with a forward of its own": 2,
        "Qwen3Attention with norms that are not Qwen3's": 2,
    }
    torch.testing.assert_close(logits(model, ids), plain, **CLOSE)
    injection.undo()
    for name in ("rmsnorm", "rope3d"):
        alone = inject(model, {name: kernels[name]})
        torch.testing.assert_close(logits(model, ids), plain, **CLOSE)
        alone.undo()


def test_a_forward_of_anothers_is_left(kernels: dict[str, ModuleType], model: Any, ids: torch.Tensor) -> None:
    """As where another library has put its own norm into the model."""
    q_norm, norm = model.model.layers[0].self_attn.q_norm, model.model.layers[1].post_attention_layernorm
    for module in (q_norm, norm):
        module.forward = functools.partial(type(module).forward, module)
    plain = logits(model, ids)
    injection = inject(model, kernels)
    assert injection.left == {
        "Qwen3RMSNorm with a forward of another's": 2,
        "Qwen3Attention with norms that are not Qwen3's": 1,
    }
    assert injection.replaced == ops(model, ids)
    assert injection.replaced == {"add_rms_norm": 7, "rms_norm": 2, "rms_norm_rope3d": 3}
    torch.testing.assert_close(logits(model, ids), plain, **CLOSE)


# ---- in and out --------------------------------------------------------------------------------------------


def test_undo_gives_the_same_bits(kernels: dict[str, ModuleType], model: Any, ids: torch.Tensor) -> None:
    plain = logits(model, ids)
    injection = inject(model, kernels)
    injection.undo()
    injection.undo()
    assert torch.equal(logits(model, ids), plain)
    assert ops(model, ids) == {}
    assert not any("forward" in module.__dict__ for module in model.modules())
    assert inject(model, kernels).replaced == ALL == ops(model, ids)


def test_injecting_twice_is_injecting_once(
    kernels: dict[str, ModuleType], model: Any, ids: torch.Tensor
) -> None:
    first = inject(model, kernels)
    once = logits(model, ids)
    second = inject(model, kernels)
    assert second.replaced == first.replaced
    assert torch.equal(logits(model, ids), once)
    first.undo()
    assert ops(model, ids) == {}
    second.undo()
    assert ops(model, ids) == {}


def test_state_repr_and_files_are_the_models_own(
    kernels: dict[str, ModuleType], model: Any, ids: torch.Tensor, tmp_path: Path
) -> None:
    words, keys = repr(model), list(model.state_dict())
    inject(model, kernels)
    ours = logits(model, ids)
    assert repr(model) == words
    assert list(model.state_dict()) == keys
    model.save_pretrained(tmp_path)
    model.load_state_dict(model.state_dict())
    again = Qwen3ForCausalLM.from_pretrained(tmp_path, dtype=F32).eval()
    assert ops(again, ids) == {}
    torch.testing.assert_close(logits(again, ids), ours, **CLOSE)
    inject(again, kernels)
    assert torch.equal(logits(again, ids), ours)


def test_a_copy_has_the_kernels_and_is_its_own(
    kernels: dict[str, ModuleType], model: Any, ids: torch.Tensor
) -> None:
    injection = inject(model, kernels)
    ours = logits(model, ids)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    injection.undo()
    assert ops(twin, ids) == ALL
    assert torch.equal(logits(twin, ids), ours)
    inject(twin, kernels).undo()
    assert ops(twin, ids) == {}


def test_moved_to_another_dtype(kernels: dict[str, ModuleType], model: Any, ids: torch.Tensor) -> None:
    wanted = logits(copy.deepcopy(model).double(), ids)
    inject(model, kernels)
    torch.testing.assert_close(logits(model.double(), ids), wanted, rtol=0, atol=1e-6)
