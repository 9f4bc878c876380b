# SPDX-License-Identifier: Apache-2.0
"""Text to video with LTX-Video on the kernels of this repository.

Run from the top of the repository, `python -m examples.ltx_video.generate --help`. It writes the video, and
beside it a record of what ran and how long it took.
"""

from __future__ import annotations

import itertools
import json
import logging
import platform
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from diffusers import LTXPipeline

from examples.arguments import Refusal
from examples.loading import load_kernels, reason
from examples.ltx_video.inject import KERNELS, inject
from examples.ltx_video.model import prompt_embeds, random_pipeline
from examples.ltx_video.settings import Settings, parse
from examples.ltx_video.video import Frames, differences, to_levels, write
from examples.rebinding import Injection


@dataclass(frozen=True)
class Run:
    """A video and its times: of each step but the first, which warms up or compiles, and of everything."""

    frames: Frames
    seconds_of_steps: tuple[float, ...]
    seconds: float

    @property
    def seconds_per_step(self) -> float | None:
        return statistics.median(self.seconds_of_steps) if self.seconds_of_steps else None

    def __str__(self) -> str:
        step = self.seconds_per_step
        return f"{self.seconds:.2f} s in all" + (f", {step:.4f} s a step" if step is not None else "")


def main(argv: Sequence[str] | None = None) -> int:
    """0: written; 2: refused, with a sentence."""
    logging.getLogger("kernels.validate").setLevel(logging.ERROR)  # how a build was made is for its makers
    try:
        settings = parse(argv)
        make(settings)
    except Refusal as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def make(settings: Settings) -> None:
    """Generate, write, and say how it went."""
    kernels = _kernels(settings) if settings.kernels else {}
    pipeline = _pipeline(settings)
    record = {**_described(settings), "kernels": {name: _build(kernel) for name, kernel in kernels.items()}}
    plain = None
    if settings.compare or not settings.kernels:
        plain = run = generate(pipeline, settings)
        print(f"without kernels: {run}")
        record["without_kernels"] = _times(run)
    if settings.kernels:
        injection = inject(pipeline, kernels)
        print(injection)
        run = generate(pipeline, settings)
        print(f"with kernels: {run}")
        record["with_kernels"] = {**_counts(injection), **_times(run)}
    if settings.compare and plain is not None:
        record["differences"] = _compared(plain, run)
    write(run.frames, settings.output, settings.frame_rate)
    settings.record.write_text(json.dumps(record, indent=2) + "\n")
    print(f"written: {settings.output}, {settings.record}")


def generate(pipeline: Any, settings: Settings) -> Run:
    """One video, from the seed."""
    if settings.compile:
        torch.compiler.reset()  # or what was compiled before would run on
        pipeline.transformer.compile()
    ends = []

    def on_step_end(_pipeline: Any, _step: int, _time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        ends.append(_now(settings.device))
        return tensors

    texts: dict[str, Any] = {"prompt": settings.prompt, "negative_prompt": settings.negative_prompt}
    if settings.size is not None:
        texts = prompt_embeds(pipeline, settings.prompt, settings.negative_prompt)
    start = _now(settings.device)
    try:
        (frames,) = pipeline(
            **texts,
            width=settings.width,
            height=settings.height,
            num_frames=settings.frames,
            frame_rate=settings.frame_rate,
            num_inference_steps=settings.steps,
            guidance_scale=settings.guidance,
            generator=torch.Generator(settings.device).manual_seed(settings.seed),
            callback_on_step_end=on_step_end,
            output_type="np",
        ).frames
    except torch.OutOfMemoryError:
        raise Refusal("the GPU's memory is full: fewer --frames, or less --width and --height") from None
    seconds = _now(settings.device) - start
    if not np.isfinite(frames).all():
        raise Refusal(f"the frames hold what is no number in {settings.dtype}, try another --dtype")
    of_steps = tuple(after - before for before, after in itertools.pairwise(ends))
    return Run(to_levels(frames), of_steps, seconds)


def _now(device: torch.device) -> float:
    """Seconds, when all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _kernels(settings: Settings) -> dict[str, ModuleType]:
    kernels = load_kernels(KERNELS, settings.device)
    if not kernels:
        raise Refusal("no kernel can be loaded; let LOCAL_KERNELS name builds, or use --no-kernels")
    return kernels


def _pipeline(settings: Settings) -> Any:
    if settings.size is not None:
        return random_pipeline(settings.size, settings.device, settings.dtype, settings.seed)
    try:
        pipeline_class: Any = LTXPipeline
        pipeline = pipeline_class.from_pretrained(settings.model, torch_dtype=settings.dtype)
    except Exception as error:  # of the Hub's client, of diffusers, of transformers, of a library missing
        raise Refusal(f"{settings.model} cannot be loaded: {reason(error)}") from None
    return pipeline.to(settings.device)


def _described(settings: Settings) -> dict[str, Any]:
    """The settings and what they met, in words of JSON."""
    given = asdict(settings)
    for name in ("model", "size", "device", "dtype", "kernels", "output"):
        del given[name]
    gpu = settings.device.type == "cuda"
    libraries = ("torch", "diffusers", "transformers", "kernels")
    return {
        "weights": settings.model if settings.size is None else f"random, {settings.size}",
        "device": torch.cuda.get_device_name(settings.device) if gpu else "cpu",
        "threads": torch.get_num_threads(),
        "dtype": str(settings.dtype).removeprefix("torch."),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in libraries}},
        **given,
    }


def _build(kernel: ModuleType) -> str:
    """The variant and the id of the build."""
    return f"{Path(kernel.__file__ or '').parent.name} {kernel.__name__}"


def _counts(injection: Injection) -> dict[str, Mapping[str, int]]:
    return {"replaced": injection.replaced, "left": injection.left}


def _times(run: Run) -> dict[str, Any]:
    return {
        "seconds_per_step": run.seconds_per_step,
        "seconds_of_steps": run.seconds_of_steps,
        "seconds": run.seconds,
    }


def _compared(plain: Run, run: Run) -> list[dict[str, Any]]:
    """Print and return how the frames of two runs differ."""
    found = differences(plain.frames, run.frames)
    print("frame      PSNR  largest difference, of 255 levels")
    for number, difference in enumerate(found):
        print(f"{number:>5} {difference}")
    return [asdict(each) for each in found]


if __name__ == "__main__":
    sys.exit(main())
