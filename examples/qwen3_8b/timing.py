# SPDX-License-Identifier: Apache-2.0
"""Greedy generation as users run it, its times, and how far two models agree on tokens."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from transformers import CompileConfig, StoppingCriteria, StoppingCriteriaList


@dataclass(frozen=True)
class Generation:
    """What was generated, and how long that took.

    Attributes:
        tokens: the new ones, ``(batch, N)``, int64; ids that follow the end of a sequence are padding.
        prefill: seconds to the first of them.
        decode: seconds from the first to the last.
    """

    tokens: torch.Tensor
    prefill: float
    decode: float

    @property
    def seconds_per_token(self) -> float | None:
        """Of each step behind the first, which gives one token to every sequence; None if there was none."""
        steps = self.tokens.shape[1] - 1
        return self.decode / steps if steps else None

    def __str__(self) -> str:
        prefill = f"prefill {self.prefill * 1e3:.2f} ms"
        step = self.seconds_per_token
        if step is None:
            return prefill
        batch = self.tokens.shape[0]
        return f"{prefill}, decode {step * 1e3:.2f} ms a token, {batch / step:,.1f} tokens/s"


@dataclass(frozen=True)
class Agreement:
    """How far two models agree on the tokens that one of them chose, each seeing all that came before.

    Attributes:
        same: positions at which both would choose the same token, of ``positions``.
        clear: positions at which the first model's two best logits are further apart than twice the largest
            difference between the models: there a difference would be an error.
        same_of_clear: of those, the ones with the same token.
        difference: the largest between two logits of one token.
        diverges: the first new token that differs when each model reads its own, None if none does.
    """

    positions: int
    same: int
    clear: int
    same_of_clear: int
    difference: float
    diverges: int | None

    def __str__(self) -> str:
        alone = "none differs" if self.diverges is None else f"the first to differ is number {self.diverges}"
        return (
            f"same token at {self.same} of {self.positions} positions, at {self.same_of_clear} of the "
            f"{self.clear} that are clear; largest difference of a logit {self.difference:.2g}; "
            f"each by its own tokens, {alone}"
        )


def generate(
    model: Any, ids: torch.Tensor, new_tokens: int, *, compiled: bool = False, to_the_end: bool = True
) -> Generation:
    """Greedy tokens by ``model.generate``, timed the second time that it runs.

    Args:
        model: one that generates.
        ids: the prompts, ``(batch, T)``, int64, on the model's device.
        new_tokens: how many to each prompt.
        compiled: with a static cache, and torch.compile for what decodes, as ``generate`` does it on GPUs.
        to_the_end: all the new tokens, also behind an end of the text; otherwise a model may stop.
    """
    arguments: dict[str, Any] = {"max_new_tokens": new_tokens, "do_sample": False, "num_beams": 1}
    arguments["attention_mask"] = torch.ones_like(ids)
    if to_the_end:
        arguments["min_new_tokens"] = new_tokens
    if compiled:
        torch.compiler.reset()  # or what was compiled before would run on
        config: Any = CompileConfig(fullgraph=True)
        config._compile_all_devices = True  # on a CPU too
        arguments |= {"cache_implementation": "static", "compile_config": config}
    model.generate(ids, **arguments)  # compiles, allocates, and fills caches
    first = _First()
    start = _now(ids.device)
    out = model.generate(ids, stopping_criteria=StoppingCriteriaList([first]), **arguments)
    end = _now(ids.device)
    return Generation(out[:, ids.shape[1] :], first.time - start, end - first.time)


class _First(StoppingCriteria):
    """When the first token was there; it stops nothing."""

    time = math.nan

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        if math.isnan(self.time):
            self.time = _now(input_ids.device)
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


@torch.inference_mode()
def forced_logits(model: Any, ids: torch.Tensor, new_tokens: torch.Tensor) -> torch.Tensor:
    """The logits ``(batch, N, vocabulary)`` behind each of these tokens, with those before it given."""
    sequence = torch.cat([ids, new_tokens], 1)[:, :-1]
    logits: torch.Tensor = model(sequence, logits_to_keep=new_tokens.shape[1], use_cache=False).logits
    return logits


def agreement(
    plain: torch.Tensor, ours: torch.Tensor, plain_tokens: torch.Tensor, our_tokens: torch.Tensor
) -> Agreement:
    """Of two models' :func:`forced_logits` on the same tokens, and of what each generated."""
    difference = float((plain.float() - ours.float()).abs().max())
    same = plain.argmax(-1) == ours.argmax(-1)
    best, second = plain.float().topk(2).values.unbind(-1)
    clear = best - second > 2 * difference
    common = min(plain_tokens.shape[1], our_tokens.shape[1])  # one of both may have ended
    differs = (plain_tokens[:, :common] != our_tokens[:, :common]).any(0).nonzero().flatten().tolist()
    if plain_tokens.shape[1] != our_tokens.shape[1]:
        differs.append(common)
    return Agreement(
        positions=same.numel(),
        same=int(same.sum()),
        clear=int(clear.sum()),
        same_of_clear=int((same & clear).sum()),
        difference=difference,
        diverges=differs[0] + 1 if differs else None,
    )


def _now(device: torch.device) -> float:
    """Seconds, when all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
