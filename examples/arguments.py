# SPDX-License-Identifier: Apache-2.0
"""What the command lines of the examples have in common."""

from __future__ import annotations

import argparse
from typing import NoReturn

import torch

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class Refusal(Exception):
    """What cannot be done, as a sentence for the person who asked for it."""


class Parser(argparse.ArgumentParser):
    """Refuses where argparse would end the process."""

    def error(self, message: str) -> NoReturn:
        raise Refusal(message)


def device_of(name: str | None) -> torch.device:
    """The device of that name, or a GPU if there is one.

    Raises:
        Refusal: there is none, or no kernel for it.
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise Refusal(f"--device is {name!r}, wanted cuda, cuda:N or cpu") from None
    if device.type not in ("cpu", "cuda"):
        raise Refusal(f"--device is {name!r}, and there are kernels for cuda and cpu")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise Refusal("--device is cuda, and torch sees no GPU here")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise Refusal(f"--device is {name!r}, and torch sees {torch.cuda.device_count()} GPUs here")
    return device


def dtype_of(name: str | None, device: torch.device) -> torch.dtype:
    """The dtype of that name, or what is usual on the device."""
    return DTYPES[name or ("float32" if device.type == "cpu" else "bfloat16")]


def judge_seed(seed: int) -> None:
    """
    Raises:
        Refusal: torch's generators take no such seed.
    """
    if not 0 <= seed < 2**63:
        raise Refusal(f"--seed is {seed}, wanted a number from 0 to 2**63 - 1")
