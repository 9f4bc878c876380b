# SPDX-License-Identifier: Apache-2.0
"""What the command line asks for, read and judged before anything is loaded."""

from __future__ import annotations

import argparse
import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from examples.arguments import DTYPES, Parser, Refusal, device_of, dtype_of, judge_seed
from examples.ltx_video.model import FRAMES, PIXELS

MODEL = "Lightricks/LTX-Video"
# width, height, frames, steps where none are given
SIZES = {"full": (704, 480, 97, 40), "tiny": (96, 64, 17, 4)}
FORMATS = {".mp4": ("imageio", "imageio_ffmpeg"), ".gif": ()}


@dataclass(frozen=True)
class Settings:
    """One video. Sizes are in pixels; ``size`` is None for weights from the Hub, else that of random ones."""

    model: str
    size: str | None
    prompt: str
    negative_prompt: str
    width: int
    height: int
    frames: int
    frame_rate: int
    steps: int
    guidance: float
    seed: int
    device: torch.device
    dtype: torch.dtype
    kernels: bool
    compile: bool
    compare: bool
    output: Path

    @property
    def record(self) -> Path:
        return self.output.with_suffix(".json")


def parse(argv: Sequence[str] | None = None) -> Settings:
    """The settings.

    Raises:
        Refusal: an argument is not known, or asks for what cannot be.
    """
    given = _parser().parse_args(argv)
    if given.size is not None and not given.random_weights:
        raise Refusal("--size is for --random-weights; the size of others is their own")
    size = (given.size or "full") if given.random_weights else None
    width, height, frames, steps = (
        ours if theirs is None else theirs
        for theirs, ours in zip(
            (given.width, given.height, given.frames, given.steps), SIZES[size or "full"], strict=True
        )
    )
    device = device_of(given.device)
    settings = Settings(
        model=given.model,
        size=size,
        prompt=given.prompt,
        negative_prompt=given.negative_prompt,
        width=width,
        height=height,
        frames=frames,
        frame_rate=given.frame_rate,
        steps=steps,
        guidance=given.guidance,
        seed=given.seed,
        device=device,
        dtype=dtype_of(given.dtype, device),
        kernels=given.kernels,
        compile=given.compile,
        compare=given.compare,
        output=given.output,
    )
    _judge(settings)
    return settings


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m examples.ltx_video.generate",
        description="Text to video with LTX-Video, on the kernels of this repository.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    weights = parser.add_argument_group("weights")
    weights.add_argument("--model", default=MODEL, help="a repository on the Hub, or a folder")
    weights.add_argument("--random-weights", action="store_true", help="none are downloaded; shows noise")
    weights.add_argument("--size", choices=SIZES, help="of random weights: LTX-Video's own, or a toy's")
    video = parser.add_argument_group("video")
    video.add_argument("--prompt", default="A red fox walks through fresh snow at dawn.", help="what to show")
    video.add_argument("--negative-prompt", default="worst quality, blurry", help="what not to show")
    video.add_argument("--width", type=int, help=f"pixels, a multiple of {PIXELS}")
    video.add_argument("--height", type=int, help=f"pixels, a multiple of {PIXELS}")
    video.add_argument("--frames", type=int, help=f"one more than a multiple of {FRAMES}")
    video.add_argument("--frame-rate", type=int, default=25, help="frames in a second")
    video.add_argument("--steps", type=int, help="passes of the transformer")
    video.add_argument("--guidance", type=float, default=3.0, help="1 for none, at half the work")
    video.add_argument("--seed", type=int, default=0, help="of the noise, and of random weights")
    video.add_argument("--output", type=Path, default="ltx_video.mp4", help="an .mp4 or a .gif")
    run = parser.add_argument_group("how it runs")
    run.add_argument("--device", help="cuda, cuda:1, cpu; a GPU if there is one")
    run.add_argument("--dtype", choices=DTYPES, help="bfloat16, and float32 on the CPU")
    run.add_argument("--kernels", action=argparse.BooleanOptionalAction, default=True, help="use the kernels")
    run.add_argument("--compile", action="store_true", help="torch.compile for the transformer")
    run.add_argument("--compare", action="store_true", help="without kernels too, and how frames differ")
    return parser


def _judge(settings: Settings) -> None:
    for name in ("width", "height"):
        value = getattr(settings, name)
        if value < PIXELS or value % PIXELS:
            raise Refusal(f"--{name} is {value}, wanted a multiple of {PIXELS}")
    if settings.frames < 1 or settings.frames % FRAMES != 1:
        raise Refusal(f"--frames is {settings.frames}, wanted one more than a multiple of {FRAMES}")
    if settings.steps < 2:  # the schedule is stretched between its first step and its last
        raise Refusal(f"--steps is {settings.steps}, wanted 2 or more")
    if settings.frame_rate < 1:
        raise Refusal(f"--frame-rate is {settings.frame_rate}, wanted 1 or more")
    if not (math.isfinite(settings.guidance) and settings.guidance >= 1):
        raise Refusal(f"--guidance is {settings.guidance}, wanted 1 or more")
    judge_seed(settings.seed)
    if settings.compare and not settings.kernels:
        raise Refusal("--compare runs without kernels and with them, so --no-kernels does not go with it")
    _judge_output(settings.output)


def _judge_output(output: Path) -> None:
    if output.suffix not in FORMATS:
        raise Refusal(f"--output is {str(output)!r}, wanted a name that ends in {' or '.join(FORMATS)}")
    if not output.absolute().parent.is_dir():
        raise Refusal(f"--output is {str(output)!r}, and there is no folder {str(output.parent)!r}")
    missing = [name for name in FORMATS[output.suffix] if importlib.util.find_spec(name) is None]
    if missing:
        raise Refusal(
            f"writing {output.suffix} needs what is not installed: pip install imageio imageio-ffmpeg, "
            "or name a .gif as --output"
        )
