# SPDX-License-Identifier: Apache-2.0
"""Text with Qwen3 on the kernels of this repository: what it says, how fast, how far it agrees with eager.

Run from the top of the repository, `python -m examples.qwen3_8b.generate --help`.
"""

from __future__ import annotations

import json
import logging
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from examples.arguments import Refusal
from examples.loading import load_kernels, reason
from examples.qwen3_8b.inject import KERNELS, inject
from examples.qwen3_8b.layers import swap_layers
from examples.qwen3_8b.model import random_model, random_tokens
from examples.qwen3_8b.settings import Settings, parse
from examples.qwen3_8b.timing import Generation, agreement, forced_logits, generate


def main(argv: Sequence[str] | None = None) -> int:
    """0: generated; 2: refused, with a sentence."""
    for name in ("kernels.validate", "kernels.layer.layer"):  # how a build was made; layers that stay
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        settings = parse(argv)
        run(settings)
    except Refusal as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except torch.OutOfMemoryError:
        print(
            "error: the GPU's memory is full; try fewer --prompt-tokens or a smaller --batch", file=sys.stderr
        )
        return 2
    return 0


def run(settings: Settings) -> None:
    """Generate, and say how it went."""
    kernels = _kernels(settings) if settings.kernels else {}
    model = _model(settings)
    ids, tokenizer = _prompt(settings, model)
    record = {**_described(settings, ids), "kernels": {name: _build(each) for name, each in kernels.items()}}
    plain = logits = None
    if settings.compare or not settings.kernels:
        plain = generation = _timed(model, ids, settings)
        print(f"without kernels: {plain}")
        record["without_kernels"] = _times(plain)
        logits = forced_logits(model, ids, plain.tokens) if settings.compare else None
    if settings.kernels:
        record["replaced"] = _replaced(model, kernels, settings)
        generation = _timed(model, ids, settings)
        print(f"with kernels:    {generation}")
        record["with_kernels"] = _times(generation)
    if plain is not None and logits is not None:
        ours = forced_logits(model, ids, plain.tokens)
        agreed = agreement(logits, ours, plain.tokens, generation.tokens)
        print(agreed)
        record["agreement"] = asdict(agreed)
    if tokenizer is not None:
        print(tokenizer.decode(generation.tokens[0], skip_special_tokens=True))
    if settings.json is not None:
        settings.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _timed(model: Any, ids: torch.Tensor, settings: Settings) -> Generation:
    return generate(
        model,
        ids,
        settings.new_tokens,
        compiled=settings.compile,
        to_the_end=settings.prompt is None,  # a text may end
    )


def _kernels(settings: Settings) -> dict[str, ModuleType]:
    kernels = load_kernels(KERNELS, settings.device)
    if not kernels:
        raise Refusal("no kernel can be loaded; let LOCAL_KERNELS name builds, or use --no-kernels")
    return kernels


def _model(settings: Settings) -> Any:
    if settings.size is not None:
        return random_model(settings.size, settings.device, settings.dtype, settings.seed)
    try:
        kind = AutoConfig.from_pretrained(settings.model).model_type
        if kind != "qwen3":
            raise Refusal(f"{settings.model} is a {kind}, wanted a qwen3")
        model: Any = AutoModelForCausalLM.from_pretrained(settings.model, dtype=settings.dtype)
    except Refusal:
        raise
    except Exception as error:  # of the Hub's client, of transformers, of a file
        raise Refusal(f"{settings.model} cannot be loaded: {reason(error)}") from None
    return model.to(settings.device).eval()


def _prompt(settings: Settings, model: Any) -> tuple[torch.Tensor, Any]:
    """Ids ``(batch, T)``, and the tokenizer where they are of a text."""
    if settings.prompt_tokens is not None:
        return random_tokens(model, settings.batch, settings.prompt_tokens, settings.seed), None
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(settings.model)
    except Exception as error:
        raise Refusal(f"the tokenizer of {settings.model} cannot be loaded: {reason(error)}") from None
    if tokenizer.chat_template is None:
        ids = tokenizer(settings.prompt, return_tensors="pt")["input_ids"]
    else:
        messages = [{"role": "user", "content": settings.prompt}]
        ids = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )["input_ids"]
    return ids.repeat(settings.batch, 1).to(settings.device), tokenizer


def _replaced(model: Any, kernels: dict[str, ModuleType], settings: Settings) -> dict[str, int]:
    """Put the kernels in, say so, and count."""
    if settings.layers_only:
        count = swap_layers(model, compiled=settings.compile)
        print(f"layers swapped: {count}, and the function that rotates")
        return {"layers": count}
    injection = inject(model, kernels)
    print(injection)
    return injection.replaced


def _described(settings: Settings, ids: torch.Tensor) -> dict[str, Any]:
    """The settings and what they met, in words of JSON."""
    described = {name: value for name, value in asdict(settings).items() if name not in ("json", "kernels")}
    on_gpu = settings.device.type == "cuda"
    names = ("torch", "transformers", "kernels")
    return described | {
        "weights": f"random, {settings.size}" if settings.size is not None else settings.model,
        "prompt_tokens": ids.shape[1],
        "dtype": str(settings.dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name(settings.device)
        if on_gpu
        else f"cpu, {torch.get_num_threads()} threads",
        "versions": {"python": platform.python_version(), **{name: version(name) for name in names}},
    }


def _build(kernel: ModuleType) -> str:
    """The variant and the id of the build."""
    return f"{Path(kernel.__file__ or '').parent.name} {kernel.__name__}"


def _times(generation: Generation) -> dict[str, Any]:
    return {
        "prefill_seconds": generation.prefill,
        "decode_seconds": generation.decode,
        "seconds_per_token": generation.seconds_per_token,
    }


if __name__ == "__main__":
    sys.exit(main())
