# SPDX-License-Identifier: Apache-2.0
"""A Qwen3 on the kernels gives its own numbers: logits and gradients, in fp32, in bf16 and under autocast."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from model_checks import CLOSE, Calls, error, gradients, local_kernels, logits, one_thread

# model_checks has made the examples importable
# isort: split
from examples.qwen3_8b.inject import KERNELS, inject
from examples.qwen3_8b.model import random_model, random_tokens

BF16, F32 = torch.bfloat16, torch.float32
LAYERS = 4


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


@pytest.mark.parametrize("eps", [1e-6, 0.05])
def test_same_logits_in_fp32(kernels: dict[str, ModuleType], ids: torch.Tensor, eps: float) -> None:
    model = random_model("tiny", "cpu", F32, rms_norm_eps=eps)
    plain = logits(model, ids)
    inject(model, kernels)
    ours = logits(model, ids)
    assert not torch.equal(ours, plain), "nothing was replaced"
    torch.testing.assert_close(ours, plain, **CLOSE)


def test_logits_in_bf16_are_as_near_to_fp32_as_the_models_own(
    kernels: dict[str, ModuleType], ids: torch.Tensor
) -> None:
    """Norms round where the model's do; behind the rotation we round once, and the model four times."""
    model = random_model("tiny", "cpu", BF16)
    truth, plain = logits(copy.deepcopy(model).float(), ids), logits(model, ids)
    inject(model, kernels)
    ours = logits(model, ids)
    assert error(ours, truth) <= 1.05 * error(plain, truth)
    clear = plain.topk(2).values.diff(dim=-1).abs().squeeze(-1) > 2 * (ours - plain).abs().max()
    assert clear.sum() > 20
    assert torch.equal(ours.argmax(-1)[clear], plain.argmax(-1)[clear])


def test_norms_round_where_the_models_do(kernels: dict[str, ModuleType], ids: torch.Tensor) -> None:
    """In bf16 before the weight and behind it; one rounding would give other bits in every fourth place."""
    model = random_model("tiny", "cpu", BF16)
    seen: list[torch.Tensor] = []
    model.model.layers[0].mlp.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    logits(model, ids)
    inject(model, {"rmsnorm": kernels["rmsnorm"]})
    logits(model, ids)
    plain, ours = seen
    assert float((plain == ours).float().mean()) > 0.97


def test_gradients_in_fp32(kernels: dict[str, ModuleType], model: Any, ids: torch.Tensor) -> None:
    model.train()
    plain = gradients(model, ids)
    inject(model, kernels)
    for name, grad in gradients(model, ids).items():
        torch.testing.assert_close(grad, plain[name], rtol=1e-4, atol=1e-5 * float(plain[name].abs().max()))


def test_gradients_in_bf16(kernels: dict[str, ModuleType], ids: torch.Tensor) -> None:
    """All together are as near to those of fp32 as the model's own."""
    model = random_model("tiny", "cpu", BF16).train()
    truth, plain = gradients(copy.deepcopy(model).float(), ids), gradients(model, ids)
    inject(model, kernels)
    ours = gradients(model, ids)
    sizes = {name: float(grad.square().mean().sqrt()) for name, grad in truth.items()}
    relative = [
        sum(error(grads[name], truth[name]) / sizes[name] for name in truth) for grads in (ours, plain)
    ]
    assert relative[0] <= 1.1 * relative[1]


@pytest.mark.parametrize("training", [False, True])
def test_under_autocast(
    kernels: dict[str, ModuleType], model: Any, ids: torch.Tensor, training: bool
) -> None:
    """Weights and residual in fp32, what matrices give in bf16: sums of both are fp32, as torch's are."""
    model.train(training)
    truth, fp32 = gradients(model, ids), logits(model, ids)
    with torch.autocast("cpu", BF16):
        plain, plain_gradients = logits(model, ids), gradients(model, ids)
        assert inject(model, kernels).left == {}
        ours, our_gradients = logits(model, ids), gradients(model, ids)
    assert error(ours, fp32) <= 1.1 * error(plain, fp32)
    sizes = {name: float(grad.square().mean().sqrt()) for name, grad in truth.items()}
    assert sum(error(our_gradients[name], truth[name]) / sizes[name] for name in truth) <= 1.1 * sum(
        error(plain_gradients[name], truth[name]) / sizes[name] for name in truth
    )


def test_training_only_some_parameters(kernels: dict[str, ModuleType], model: Any, ids: torch.Tensor) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layers.1." in name and "norm" in name)
    model(ids, labels=ids).loss.backward()
    plain = {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}
    assert len(plain) == 4
    inject(model, kernels)
    model.zero_grad()
    model(ids, labels=ids).loss.backward()
    for name, parameter in model.named_parameters():
        if name in plain:
            torch.testing.assert_close(parameter.grad, plain[name], rtol=1e-4, atol=1e-7)
        else:
            assert parameter.grad is None


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(
    kernels: dict[str, ModuleType], model: Any, ids: torch.Tensor, reentrant: bool
) -> None:
    """Each layer is one checkpoint, and is computed twice; the sum and norm between two are not fused."""
    model.train()
    inject(model, kernels)
    wanted = gradients(model, ids)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    with Calls() as calls:
        got = gradients(model, ids)
    assert calls.counted["rms_norm_rope3d"] == 2 * LAYERS
    assert calls.counted["add_rms_norm"] == 2 * LAYERS
    for name, grad in got.items():
        torch.testing.assert_close(grad, wanted[name], rtol=1e-4, atol=1e-6)
