# SPDX-License-Identifier: Apache-2.0
"""Where tokens are and how fast pairs turn; the grid that videos have in common; shards of a sequence."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Rotary(NamedTuple):
    """Where tokens are and how fast pairs turn: the arguments of ``rope3d``."""

    coords: torch.Tensor
    inv_freq: torch.Tensor
    axis: torch.Tensor | None
    interleaved: bool

    @property
    def angles(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        return self.coords, self.inv_freq, self.axis

    def shard(self, offset: int, length: int) -> Rotary:
        """The same for tokens ``[offset, offset + length)``, as a rank of a parallel sequence has them."""
        tokens = self.coords.shape[-2]
        check_shard("shard", tokens, offset, length)
        return self._replace(coords=self.coords.narrow(-2, offset, length))


def grid(
    frames: int,
    height: int,
    width: int,
    *,
    tokens: int | None = None,
    offset: int = 0,
    length: int | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """``(length, 3)`` of frame, row and column of each token, frames slowest: float32.

    Args:
        tokens: how many there are in all; refused unless it is frames * height * width.
        offset, length: the tokens of a shard; None for all that follow offset.
    """
    count = frames * height * width
    if tokens is not None and tokens != count:
        raise ValueError(
            f"grid: {frames} frames of {height} by {width} are {count} tokens, and there are {tokens}"
        )
    length = count - offset if length is None else length
    check_shard("grid", count, offset, length)
    index = torch.arange(offset, offset + length, device=device)
    places = (index // (height * width), index // width % height, index % width)
    return torch.stack(places, -1).to(torch.float32)


def check_shard(name: str, tokens: int, offset: int, length: int) -> None:
    if offset < 0 or length < 0 or offset + length > tokens:
        raise ValueError(
            f"{name}: tokens {offset} to {offset + length} were asked for, and there are {tokens}"
        )
