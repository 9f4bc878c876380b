# SPDX-License-Identifier: Apache-2.0
"""LTX-Video as work to measure: a step of the transformer with guidance, and text to video."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from examples.ltx_video.inject import KERNELS, inject
from examples.ltx_video.model import TEXT_TOKENS, latent_sizes, prompt_embeds, random_pipeline

from kernelworks import bench_model_distance as distance
from kernelworks.bench_model_record import EAGER, ModelRequest
from kernelworks.bench_model_work import (
    COMPILE_OPTIONS,
    COMPILED,
    Prepared,
    Work,
    as_wide,
    bytes_of,
    variants_of,
    widened,
)

NAMES = KERNELS
SEED = 0
PROMPT, NEGATIVE = "A red fox walks through fresh snow at dawn.", "worst quality, blurry"


@dataclass(frozen=True)
class Video:
    """What is made, in pixels and frames."""

    width: int
    height: int
    frames: int
    steps: int
    guidance: float = 3.0

    @property
    def arguments(self) -> dict[str, Any]:
        return {
            "width": self.width,
            "height": self.height,
            "num_frames": self.frames,
            "num_inference_steps": self.steps,
            "guidance_scale": self.guidance,
        }


SIZES = {"full": Video(704, 480, 49, 30), "tiny": Video(96, 64, 17, 4)}


def prepare(request: ModelRequest, kernels: Mapping[str, ModuleType]) -> Prepared:
    """The model with random weights, in every variant."""
    video, dtype = SIZES[request.size], getattr(torch, request.dtype)
    pipeline: Any = random_pipeline(request.size, request.device, dtype, SEED)
    pipeline.set_progress_bar_config(disable=True)
    texts = prompt_embeds(pipeline, PROMPT, NEGATIVE)
    inputs = inputs_of_a_step(pipeline, video, texts)
    injections: list[Any] = []
    models = variants_of(
        pipeline.transformer, request.variants, lambda model: injections.append(inject(model, kernels))
    )
    for name in COMPILED:
        if name in models:
            models[name].compile(**COMPILE_OPTIONS)
    truth = Truth(pipeline.transformer, inputs, dtype)
    tokens = latent_sizes(video.frames, video.height, video.width)
    return Prepared(
        works=(
            _step(models, inputs, truth, dtype, quick=request.quick),
            _pipeline(pipeline, models, video, texts, quick=request.quick),
        ),
        settings={
            **video.arguments,
            "batch of a step": 2,
            "latent tokens": tokens[0] * tokens[1] * tokens[2],
            "text tokens": TEXT_TOKENS,
            "compiled": "the transformer, whole",
            "compile": COMPILE_OPTIONS,
            "seed": SEED,
        },
        replaced=injections[0].replaced if injections else {},
        left=injections[0].left if injections else {},
        weight_bytes=bytes_of(pipeline.transformer) + bytes_of(pipeline.vae),
        forget_truth=truth.forget,
    )


def inputs_of_a_step(pipeline: Any, video: Video, texts: Mapping[str, Any]) -> dict[str, Any]:
    """What the pipeline itself gives the transformer in its first step, so that both compile to one graph."""
    given: list[dict[str, Any]] = []

    def keep(_module: Any, _args: Any, named: dict[str, Any]) -> None:
        given.append(named)

    def stop(running: Any, _step: int, _time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        running._interrupt = True
        return tensors

    hook = pipeline.transformer.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        generator = torch.Generator(pipeline.transformer.device).manual_seed(SEED)
        pipeline(
            **texts,
            **video.arguments,
            generator=generator,
            output_type="latent",
            callback_on_step_end=stop,
        )
    finally:
        hook.remove()
    return given[0]


class Truth:
    """The output of a step in a wider type, computed when it is first asked for."""

    def __init__(self, transformer: Any, inputs: Mapping[str, Any], dtype: torch.dtype) -> None:
        self._make: Callable[[], torch.Tensor] = lambda: widened(transformer)(
            **{name: as_wide(value, dtype) for name, value in inputs.items()}
        )[0]
        self._output: torch.Tensor | None = None

    def __call__(self) -> torch.Tensor:
        if self._output is None:
            self._output = self._make()
        return self._output

    def forget(self) -> None:
        self._output = None


def _step(
    models: Mapping[str, Any], inputs: Mapping[str, Any], truth: Truth, dtype: torch.dtype, *, quick: bool
) -> Work:
    def run(variant: str, units: int, begin: Callable[[], None]) -> Any:
        model = models[variant]
        begin()
        for _ in range(units):
            output = model(**inputs)[0]
        return output

    def judge(output: Any, eager: Any) -> Any:
        return distance.judged(output, truth(), eager, dtype)

    return Work("step", "step", 4, 4 if quick else 20, 2, run, judge)


def _pipeline(
    pipeline: Any, models: Mapping[str, Any], video: Video, texts: Mapping[str, Any], *, quick: bool
) -> Work:
    def run(variant: str, units: int, begin: Callable[[], None]) -> Any:
        pipeline.transformer = models[variant]
        generator = torch.Generator(models[EAGER].device).manual_seed(SEED)
        begin()
        for _ in range(units):
            (frames,) = pipeline(
                **texts, **video.arguments, generator=generator, output_type="pt", return_dict=False
            )
        return frames

    return Work("pipeline", "video", 1, 1 if quick else 5, 0, run, distance.beside_eager)
