# SPDX-License-Identifier: Apache-2.0
"""What the command line asks for, read and judged before anything is loaded."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from examples.arguments import DTYPES, Parser, Refusal, device_of, dtype_of, judge_seed
from examples.qwen3_8b.model import SHARED, SIZES

MODEL = "Qwen/Qwen3-8B"
PROMPT = "Explain in three sentences why the sky is blue."
PARAMETERS = 8_190_735_360  # of the full size
PROMPT_TOKENS = 128  # of random ids, where none are asked for


@dataclass(frozen=True)
class Settings:
    """One generation.

    ``size`` is None for weights from the Hub, else that of random ones. One of ``prompt`` and
    ``prompt_tokens`` is None: a text, or so many random ids.
    """

    model: str
    size: str | None
    prompt: str | None
    prompt_tokens: int | None
    new_tokens: int
    batch: int
    seed: int
    device: torch.device
    dtype: torch.dtype
    kernels: bool
    layers_only: bool
    compile: bool
    compare: bool
    json: Path | None


def parse(argv: Sequence[str] | None = None) -> Settings:
    """The settings.

    Raises:
        Refusal: an argument is not known, or asks for what cannot be.
    """
    given = _parser().parse_args(argv)
    if given.size is not None and not given.random_weights:
        raise Refusal("--size is for --random-weights; the size of others is their own")
    if given.prompt is not None and given.random_weights:
        raise Refusal(
            "--prompt needs the tokenizer of real weights; with --random-weights say --prompt-tokens"
        )
    if given.prompt is not None and given.prompt_tokens is not None:
        raise Refusal("--prompt is a text and --prompt-tokens a number of random ids, wanted one of them")
    prompt, prompt_tokens = given.prompt, given.prompt_tokens
    if prompt is None and prompt_tokens is None:
        prompt, prompt_tokens = (None, PROMPT_TOKENS) if given.random_weights else (PROMPT, None)
    device = device_of(given.device)
    settings = Settings(
        model=given.model,
        size=(given.size or "full") if given.random_weights else None,
        prompt=prompt,
        prompt_tokens=prompt_tokens,
        new_tokens=given.new_tokens,
        batch=given.batch,
        seed=given.seed,
        device=device,
        dtype=dtype_of(given.dtype, device),
        kernels=given.kernels,
        layers_only=given.layers_only,
        compile=given.compile,
        compare=given.compare,
        json=given.json,
    )
    _judge(settings)
    return settings


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m examples.qwen3_8b.generate",
        description="Text with Qwen3, on the kernels of this repository.",
    )
    weights = parser.add_argument_group("weights")
    weights.add_argument("--model", default=MODEL, help=f"a repository on the Hub, or a folder; {MODEL}")
    weights.add_argument("--random-weights", action="store_true", help="none are downloaded; says nonsense")
    weights.add_argument("--size", choices=SIZES, help="of random weights: Qwen3-8B's own, or a toy's; full")
    text = parser.add_argument_group("text")
    text.add_argument("--prompt", help="what to say to the model")
    text.add_argument("--prompt-tokens", type=int, metavar="N", help="random ids in place of a text")
    text.add_argument("--new-tokens", type=int, default=64, metavar="N", help="how many to generate; 64")
    text.add_argument("--batch", type=int, default=1, metavar="N", help="sequences at once; 1")
    text.add_argument("--seed", type=int, default=0, help="of random ids and weights; 0")
    run = parser.add_argument_group("how it runs")
    run.add_argument("--device", help="cuda, cuda:1, cpu; a GPU if there is one")
    run.add_argument("--dtype", choices=DTYPES, help="bfloat16, and float32 on the CPU")
    run.add_argument("--kernels", action=argparse.BooleanOptionalAction, default=True, help="use the kernels")
    run.add_argument("--layers-only", action="store_true", help="swap layers by kernelize, and fuse nothing")
    run.add_argument("--compile", action="store_true", help="a static cache, and torch.compile for decoding")
    run.add_argument("--compare", action="store_true", help="without kernels too, and how tokens agree")
    run.add_argument("--json", type=Path, metavar="PATH", help="write a record of what ran, and its times")
    return parser


def _memory() -> int:
    """Bytes of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _judge(settings: Settings) -> None:
    if settings.size == "full" and settings.device.type == "cpu":
        needed, there = PARAMETERS * settings.dtype.itemsize, _memory()
        if needed > there:
            dtype = str(settings.dtype).removeprefix("torch.")
            raise Refusal(
                f"the weights take {needed / 1e9:.0f} GB in {dtype}, and this machine has "
                f"{there / 1e9:.0f} GB; try --size tiny, or a GPU"
            )
    for name in ("prompt_tokens", "new_tokens", "batch"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise Refusal(f"--{name.replace('_', '-')} is {value}, wanted 1 or more")
    longest = SHARED["max_position_embeddings"]
    if (settings.prompt_tokens or 0) + settings.new_tokens > longest:
        raise Refusal(f"prompt and new tokens are more than the {longest} that Qwen3 has positions for")
    if settings.prompt == "":
        raise Refusal("--prompt is empty, wanted a text")
    judge_seed(settings.seed)
    if not settings.kernels and (settings.compare or settings.layers_only):
        name = "--compare" if settings.compare else "--layers-only"
        raise Refusal(f"{name} runs with kernels, so --no-kernels does not go with it")
    if settings.json is not None and not settings.json.absolute().parent.is_dir():
        raise Refusal(
            f"--json is {str(settings.json)!r}, and there is no folder {str(settings.json.parent)!r}"
        )
