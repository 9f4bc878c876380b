# SPDX-License-Identifier: Apache-2.0
"""Frames into a file, and how two videos differ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from diffusers.utils.export_utils import export_to_gif, export_to_video
from PIL import Image

Frames = npt.NDArray[np.uint8]  # (frames, height, width, 3)


@dataclass(frozen=True)
class Difference:
    """Of one frame: peak signal to noise ratio in dB, None for the same frame; the largest step, of 255."""

    psnr: float | None
    largest: int

    def __str__(self) -> str:
        return f"{'the same' if self.psnr is None else f'{self.psnr:.1f} dB':>9} {self.largest:>8}"


def to_levels(frames: npt.NDArray[np.floating]) -> Frames:
    """Numbers from 0 to 1 as levels of 8 bits."""
    levels: Frames = np.round(np.clip(frames, 0, 1) * 255).astype(np.uint8)
    return levels


def write(frames: Frames, path: Path, frame_rate: int) -> None:
    """An .mp4, which needs imageio and imageio-ffmpeg, or a .gif."""
    images = [Image.fromarray(frame) for frame in frames]
    if path.suffix == ".gif":
        export_to_gif(images, str(path), fps=frame_rate)
    else:
        export_to_video(images, str(path), fps=frame_rate)


def differences(one: Frames, other: Frames) -> list[Difference]:
    """Frame by frame."""
    return [_difference(a, b) for a, b in zip(one.astype(np.int64), other.astype(np.int64), strict=True)]


def _difference(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> Difference:
    off = np.abs(one - other)
    mean_square = float(np.mean(off * off))
    return Difference(10 * math.log10(255**2 / mean_square) if mean_square else None, int(off.max()))
