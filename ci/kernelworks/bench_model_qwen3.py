# SPDX-License-Identifier: Apache-2.0
"""Qwen3-8B as work to measure: reading a long prompt, and writing tokens behind a short one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from examples.qwen3_8b.inject import KERNELS, inject
from examples.qwen3_8b.model import random_model, random_tokens
from transformers import CompileConfig, StoppingCriteria, StoppingCriteriaList

from kernelworks import bench_model_distance as distance
from kernelworks.bench_model_distance import Generated
from kernelworks.bench_model_record import ModelRequest
from kernelworks.bench_model_work import (
    COMPILE_OPTIONS,
    COMPILED,
    Prepared,
    Work,
    bytes_of,
    twin,
    variants_of,
    widened,
)

NAMES = KERNELS
SEED = 0
NO_TOKEN = -1  # as the end of a text, so that none ends early


@dataclass(frozen=True)
class Text:
    """How many tokens are read at once, and how many written behind how many; batch 1."""

    prefill: int
    prompt: int
    new: int


SIZES = {"full": Text(8192, 32, 64), "tiny": Text(64, 8, 8)}


def prepare(request: ModelRequest, kernels: Mapping[str, ModuleType]) -> Prepared:
    """The model with random weights, in every variant."""
    text, dtype = SIZES[request.size], getattr(torch, request.dtype)
    model = random_model(request.size, request.device, dtype, SEED)
    injections: list[Any] = []
    readers = variants_of(model, request.variants, lambda each: injections.append(inject(each, kernels)))
    # generate compiles by itself, one token at a time; it must not meet a model that is compiled already.
    writers = {name: twin(each) if name in COMPILED else each for name, each in readers.items()}
    for name in COMPILED:
        if name in readers:
            readers[name].compile(**COMPILE_OPTIONS)
    truth = Truth(model)
    return Prepared(
        works=(
            _prefill(readers, random_tokens(model, 1, text.prefill, SEED), truth, dtype, quick=request.quick),
            _decode(
                writers,
                random_tokens(model, 1, text.prompt, SEED),
                text.new,
                truth,
                dtype,
                quick=request.quick,
            ),
        ),
        settings={
            "batch": 1,
            "tokens of prefill": text.prefill,
            "tokens before generation": text.prompt,
            "new tokens": text.new,
            "attention": model.config._attn_implementation,
            "cache of eager and kernels": "dynamic",
            "cache of what is compiled": "dynamic in prefill, static in generation, as generate has it",
            "compiled": "the model, whole",
            "compile": COMPILE_OPTIONS,
            "seed": SEED,
        },
        replaced=injections[0].replaced if injections else {},
        left=injections[0].left if injections else {},
        weight_bytes=bytes_of(model),
        forget_truth=truth.forget,
    )


class Truth:
    """Logits of the same weights in a wider type; the wide model is made when it is first asked."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._wide: Any = None

    def __call__(self, ids: torch.Tensor, last: int) -> torch.Tensor:
        """Those behind the last tokens of `ids` `(1, T)`: `(1, last, vocabulary)`."""
        if self._wide is None:
            self._wide = widened(self._model)
        logits: torch.Tensor = self._wide(ids, logits_to_keep=last, use_cache=False).logits
        return logits

    def forget(self) -> None:
        self._wide = None


def _prefill(
    models: Mapping[str, Any], ids: torch.Tensor, truth: Truth, dtype: torch.dtype, *, quick: bool
) -> Work:
    wanted: list[torch.Tensor] = []

    def run(variant: str, units: int, begin: Callable[[], None]) -> Any:
        model = models[variant]
        begin()
        for _ in range(units):
            output = model(input_ids=ids, use_cache=True, logits_to_keep=1)
        return output.logits

    def judge(output: Any, eager: Any) -> Any:
        if not wanted:
            wanted.append(truth(ids, 1))
        return distance.judged(output, wanted[0], eager, dtype)

    return Work("prefill", "prompt", 1, 4 if quick else 10, 1, run, judge)


class _First(StoppingCriteria):
    """Says when the first token is there, which ends the reading of the prompt; it stops nothing."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self.begin: Callable[[], None] | None = begin

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        if self.begin is not None:
            self.begin()
            self.begin = None
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def _decode(
    models: Mapping[str, Any], ids: torch.Tensor, new: int, truth: Truth, dtype: torch.dtype, *, quick: bool
) -> Work:
    config: Any = CompileConfig(**COMPILE_OPTIONS)
    config._compile_all_devices = True  # on a CPU too
    # The cache is as long in every call, or a shorter text would compile anew.
    length = ids.shape[1] + new
    compiled = {"cache_implementation": "static", "compile_config": config, "max_cache_len": length}
    truths: dict[str, torch.Tensor] = {}

    def run(variant: str, units: int, begin: Callable[[], None]) -> Any:
        out = models[variant].generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=units + 1,
            do_sample=False,
            eos_token_id=NO_TOKEN,
            return_dict_in_generate=True,
            output_logits=True,
            stopping_criteria=StoppingCriteriaList([_First(begin)]),
            **(compiled if variant in COMPILED else {}),
        )
        return Generated(out.sequences[:, ids.shape[1] :], torch.stack(out.logits, 1))

    def of(tokens: torch.Tensor) -> torch.Tensor:
        sequence = torch.cat([ids, tokens], 1)[:, :-1]
        key = str(tokens.tolist())
        if key not in truths:
            truths[key] = truth(sequence, tokens.shape[1])
        return truths[key]

    def judge(output: Generated, eager: Generated | None) -> Any:
        eager_truth = None if eager is None else of(eager.tokens)
        return distance.judged_tokens(output, of(output.tokens), eager, eager_truth, dtype)

    return Work("decode", "token", new - 1, 2 if quick else 5, min(8, new - 1), run, judge)
