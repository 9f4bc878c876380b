# SPDX-License-Identifier: Apache-2.0
"""Puts kernels into a Qwen3 of transformers, and takes them out again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from torch import nn
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3Attention,
    Qwen3DecoderLayer,
    Qwen3Model,
    Qwen3RMSNorm,
)

from examples.qwen3_8b import forwards
from examples.rebinding import Forward, Injection, Swap, is_kind, rebind, runs, same_arguments

KERNELS = ("rmsnorm", "rope3d")
# The classes that are replaced, and the kernel that each needs.
KINDS: dict[type[nn.Module], str] = {
    Qwen3Model: "rmsnorm",
    Qwen3DecoderLayer: "rmsnorm",
    Qwen3RMSNorm: "rmsnorm",
    Qwen3Attention: "rope3d",
}


def inject(model: nn.Module, kernels: Mapping[str, ModuleType]) -> Injection:
    """Have a model run on kernels wherever they do its work, until :meth:`Injection.undo`.

    Modules, parameters, hooks and ``state_dict`` stay; a copy of the model has the kernels too. To inject
    again is to change nothing. Do it before ``torch.compile`` runs for the first time.

    Args:
        model: one with a ``Qwen3Model`` of transformers in it, such as ``Qwen3ForCausalLM``, bare or wrapped.
        kernels: of ``rmsnorm`` and ``rope3d`` those that there are, as ``load_kernels`` gives them. What the
            other would do stays torch's.

    Raises:
        ValueError: the model is no Qwen3, or nothing in it can be replaced.
    """
    swaps: list[Swap] = []
    replaced: Counter[str] = Counter()
    left: Counter[str] = Counter()
    for qwen3 in _models(model):
        for module, ours in _plan(qwen3, kernels):
            own = type(module).forward
            if runs(module, own) or runs(module, ours):
                swaps.append(Swap(module, own, ours))
            else:
                left[f"{type(module).__name__} with a forward of another's"] += 1
        ready = {swap.module for swap in swaps}
        left.update(_others(qwen3, ready, kernels))
        replaced.update(_calls(qwen3, ready))
    if not swaps:
        given = ", ".join(sorted(kernels)) or "none"
        raise ValueError(
            f"inject: nothing of the model can be replaced with the kernels given ({given}), "
            f"wanted some of {', '.join(KERNELS)}"
        )
    for swap in swaps:
        if not runs(swap.module, swap.ours):
            rebind(swap.module, swap.own, swap.ours)
    return Injection(dict(sorted(replaced.items())), dict(left), tuple(swaps))


def _models(model: Any) -> list[Any]:
    modules = model.modules() if isinstance(model, nn.Module) else ()
    found = [module for module in modules if isinstance(module, Qwen3Model)]
    if not found:
        raise ValueError(
            f"inject: model is a {type(model).__name__}, wanted a Qwen3Model, or one with it inside"
        )
    return found


def _plan(qwen3: Any, kernels: Mapping[str, ModuleType]) -> Iterator[tuple[nn.Module, Forward]]:
    """The modules to change, each with its forward."""
    rmsnorm, rope3d = (kernels.get(name) for name in KERNELS)
    for module in qwen3.modules():
        if rope3d is not None and is_kind(module, Qwen3Attention) and _norms_alike(module, rmsnorm):
            yield module, forwards.of_attention(rope3d, rmsnorm)
        if rmsnorm is None:
            continue
        if is_kind(module, Qwen3RMSNorm):
            yield module, forwards.of_norm(rmsnorm)
        if is_kind(module, Qwen3DecoderLayer):
            yield module, forwards.of_layer(rmsnorm)
        if is_kind(module, Qwen3Model) and same_arguments(module, forwards.of_model(rmsnorm)):
            yield module, forwards.of_model(rmsnorm)


def _others(qwen3: Any, ready: set[nn.Module], kernels: Mapping[str, ModuleType]) -> Counter[str]:
    """What was not planned for, as it is not transformers' own."""
    left: Counter[str] = Counter()
    for module in qwen3.modules():
        for kind, kernel in KINDS.items():
            if kernel in kernels and isinstance(module, kind) and not is_kind(module, kind):
                left[f"{type(module).__name__} with a forward of its own"] += 1
        if "rope3d" in kernels and is_kind(module, Qwen3Attention) and module not in ready:
            left["Qwen3Attention with norms that are not Qwen3's"] += 1
    return left


def _calls(qwen3: Any, ready: set[nn.Module]) -> Counter[str]:
    """What one pass of a model calls where these modules are ready for it and none has hooks."""
    calls: Counter[str] = Counter()

    def count(norm: nn.Module, behind_a_sum: bool) -> None:
        if norm in ready:
            calls["add_rms_norm" if behind_a_sum else "rms_norm"] += 1

    open_sum = False  # whether a layer has left its last sum to the norm that follows
    for layer in list(qwen3.layers)[: qwen3.config.num_hidden_layers]:
        attention = layer.self_attn
        count(layer.input_layernorm, open_sum and layer in ready)
        if attention in ready:
            calls["rms_norm_rope3d"] += 1
        else:
            count(attention.q_norm, False)
            count(attention.k_norm, False)
        count(layer.post_attention_layernorm, layer in ready)
        open_sum = qwen3 in ready and layer in ready
    count(qwen3.norm, open_sum)
    return calls


def _norms_alike(attention: Any, rmsnorm: ModuleType | None) -> bool:
    """Whether one pass can do what both norms do."""
    norms = (attention.q_norm, attention.k_norm)
    known = [Qwen3RMSNorm.forward, *([] if rmsnorm is None else [forwards.of_norm(rmsnorm)])]
    return (
        all(is_kind(norm, Qwen3RMSNorm) and any(runs(norm, each) for each in known) for norm in norms)
        and norms[0].variance_epsilon == norms[1].variance_epsilon
    )
