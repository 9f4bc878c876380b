# SPDX-License-Identifier: Apache-2.0
"""Turns a refused call into the TypeError or ValueError that says why.

Nothing here runs in a call that works: the op checks its tensors in C++, and only when it (or torch's
dispatcher) has refused does anyone look closer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

# What a wrong argument can raise on its way to the op: the op's own and the dispatcher's refusals are
# RuntimeErrors, a thing that is no tensor lacks attributes, an unknown choice is no key.
REFUSED = (RuntimeError, AttributeError, KeyError, TypeError)


def refusal(
    op: str,
    error: Exception,
    *,
    tensors: Mapping[str, object],
    numbers: Mapping[str, object],
    choices: Mapping[str, tuple[object, Collection[str]]],
) -> Exception:
    """The exception to raise in place of ``error``; ``error`` itself when no argument is to blame."""
    text = str(error)
    for kind in (TypeError, ValueError):
        if text.startswith(f"{kind.__name__}: "):
            return kind(text.removeprefix(f"{kind.__name__}: "))
    for name, value in tensors.items():
        if value is None and name == "weight":
            continue
        if not isinstance(value, torch.Tensor):
            return TypeError(f"{op}: {name} is a {type(value).__name__}, wanted a torch.Tensor")
        if value.layout != torch.strided or value.is_quantized:
            given = value.dtype if value.is_quantized else value.layout
            return TypeError(f"{op}: {name} is a {given} tensor, wanted a dense (strided) one")
    for name, number in numbers.items():
        if not isinstance(number, (int, float, torch.SymFloat, torch.SymInt)):
            return TypeError(f"{op}: {name} is a {type(number).__name__}, wanted a number")
    for name, (choice, known) in choices.items():
        if not isinstance(choice, str) or choice not in known:
            return ValueError(f"{op}: {name} is {choice!r}, wanted {' or '.join(map(repr, known))}")
    if isinstance(error, NotImplementedError):
        places = [f"{name} is on {v.device}" for name, v in tensors.items() if isinstance(v, torch.Tensor)]
        return ValueError(f"{op}: {', '.join(places)}, and this build of the kernel has no code for that")
    return error
