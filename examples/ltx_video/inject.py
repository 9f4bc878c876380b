# SPDX-License-Identifier: Apache-2.0
"""Puts kernels into an LTX-Video of diffusers, and takes them out again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from diffusers.models.activations import GELU
from diffusers.models.normalization import RMSNorm
from diffusers.models.transformers.transformer_ltx import (
    LTXAttention,
    LTXVideoAttnProcessor,
    LTXVideoRotaryPosEmbed,
    LTXVideoTransformer3DModel,
    LTXVideoTransformerBlock,
)
from torch import nn

from examples.ltx_video import forwards
from examples.rebinding import Forward, Injection, Swap, is_kind, rebind, runs, same_arguments

KERNELS = ("adaln", "rmsnorm", "rope3d")
CALLS_OF_A_BLOCK = {"ada_norm": 1, "gate_residual": 2, "gate_residual_ada_norm": 1}


@dataclass(frozen=True)
class _Plan:
    """What is to be done, as it is found."""

    swaps: list[Swap] = field(default_factory=list)
    replaced: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    taken_in: set[nn.Module] = field(default_factory=set)  # norms that are part of another module's pass

    def take(
        self,
        module: nn.Module,
        ours: Forward,
        calls: Mapping[str, int],
        *norms: nn.Module,
        kinds: tuple[type[nn.Module], ...] = (nn.RMSNorm, RMSNorm),
    ) -> bool:
        """Plan for a module, unless it has a forward of somebody else's, or norms of another kind."""
        for norm in norms:
            if not any(is_kind(norm, kind) for kind in kinds):
                self.left[f"{type(module).__name__} with a {type(norm).__name__}"] += 1
                return False
        own = type(module).forward
        if not (runs(module, own) or runs(module, ours)):
            self.left[f"{type(module).__name__} with another forward"] += 1
            return False
        self.swaps.append(Swap(module, own, ours))
        self.replaced.update(calls)
        self.taken_in.update(norms)
        return True


def inject(model: Any, kernels: Mapping[str, ModuleType]) -> Injection:
    """Have a model run on kernels wherever they do its work, until :meth:`Injection.undo`.

    Modules, parameters, hooks and ``state_dict`` stay as they are; a copy of the model has the kernels too.
    To inject again changes nothing. Inject before ``torch.compile``.

    Args:
        model: a pipeline of diffusers whose ``transformer`` is an ``LTXVideoTransformer3DModel``, or that
            model, bare or wrapped.
        kernels: of ``adaln``, ``rmsnorm`` and ``rope3d`` those that there are, as ``load_kernels`` gives
            them. What the others would do stays torch's.

    Raises:
        ValueError: the model is no LTX-Video, or nothing in it can be replaced.
    """
    plan = _Plan()
    transformers = _transformers(model)
    for transformer in transformers:
        _plan_for(transformer, kernels, plan)
    if plan.swaps:
        for transformer in transformers:
            _plan_feed_forward(transformer, plan)
    else:
        raise ValueError(
            f"inject: nothing in the model can be replaced with the kernels given "
            f"({', '.join(kernels) or 'none'}), wanted some of {', '.join(KERNELS)}"
        )
    if "rmsnorm" in kernels:  # given to them before, by an injection without the kernel that takes them in
        for norm in plan.taken_in:
            if runs(norm, ours := forwards.of_rms_norm(kernels["rmsnorm"])):
                rebind(norm, ours, type(norm).forward)
    for swap in plan.swaps:
        if not runs(swap.module, swap.ours):
            rebind(swap.module, swap.own, swap.ours)
    return Injection(dict(sorted(plan.replaced.items())), dict(plan.left), tuple(plan.swaps))


def _transformers(model: Any) -> list[LTXVideoTransformer3DModel]:
    inner = model if isinstance(model, nn.Module) else getattr(model, "transformer", None)
    modules = inner.modules() if isinstance(inner, nn.Module) else ()
    found = [module for module in modules if isinstance(module, LTXVideoTransformer3DModel)]
    if not found:
        raise ValueError(
            f"inject: model is a {type(model).__name__}, wanted a pipeline of LTX-Video or its "
            "LTXVideoTransformer3DModel"
        )
    return found


def _plan_for(transformer: Any, kernels: Mapping[str, ModuleType], plan: _Plan) -> None:
    adaln, rmsnorm, rope3d = (kernels.get(name) for name in KERNELS)
    blocks: list[Any] = [b for b in transformer.transformer_blocks if is_kind(b, LTXVideoTransformerBlock)]
    if adaln is not None:
        ours = forwards.of_model(adaln)
        if is_kind(transformer, LTXVideoTransformer3DModel) and same_arguments(transformer, ours):
            plan.take(transformer, ours, {"ada_norm": 1}, transformer.norm_out, kinds=(nn.LayerNorm,))
        for block in blocks:
            plan.take(block, forwards.of_block(adaln), CALLS_OF_A_BLOCK, block.norm1, block.norm2)
    if rope3d is not None:
        _plan_attention(transformer, blocks, rope3d, plan)
    if rmsnorm is not None:
        for module in transformer.modules():
            if module not in plan.taken_in and (is_kind(module, nn.RMSNorm) or is_kind(module, RMSNorm)):
                plan.take(module, forwards.of_rms_norm(rmsnorm), {"rms_norm": 1})


def _plan_attention(transformer: Any, blocks: list[Any], rope3d: ModuleType, plan: _Plan) -> None:
    ours = forwards.of_attention(rope3d)
    all_turn = len(blocks) == len(transformer.transformer_blocks)
    for attn, turns in [(a, a is block.attn1) for block in blocks for a in (block.attn1, block.attn2)]:
        if not is_kind(attn, LTXAttention) or type(attn.processor) is not LTXVideoAttnProcessor:
            plan.left[f"{type(attn).__name__} with a {type(attn.processor).__name__}"] += 1
            taken = False
        elif turns and attn.norm_q.eps != attn.norm_k.eps:
            plan.left[f"{type(attn).__name__} with an eps for each norm"] += 1
            taken = False
        elif turns:
            taken = plan.take(attn, ours, {"rms_norm_rope3d": 1}, attn.norm_q, attn.norm_k)
        else:
            taken = plan.take(attn, ours, {})
        all_turn = all_turn and (taken or not turns)
    # Somebody else's attention needs the tables.
    if all_turn and is_kind(transformer.rope, LTXVideoRotaryPosEmbed):
        plan.take(transformer.rope, forwards.of_rope(rope3d), {"rope": 1})


def _plan_feed_forward(transformer: Any, plan: _Plan) -> None:
    """The GELU of a feed-forward on a GPU: no gated one, so it is not for geglu."""
    module: Any
    for module in transformer.modules():
        if not is_kind(module, GELU) or module.approximate != "tanh":
            continue
        if module.proj.weight.is_cuda and module.proj.bias is not None:
            plan.take(module, forwards.of_gelu(), {"linear_gelu of cuBLAS": 1})
