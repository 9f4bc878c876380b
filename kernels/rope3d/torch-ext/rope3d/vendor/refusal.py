# SPDX-License-Identifier: Apache-2.0
"""Turns a refused call into the TypeError or ValueError that says why.

Nothing here runs in a call that works: the op checks its tensors in C++, and only when it (or torch's
dispatcher) has refused does anyone look closer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch

# What a wrong argument can raise on its way to the op: the op's own and the dispatcher's refusals are
# RuntimeErrors, a thing that is no tensor lacks attributes, an unknown choice is no key.
REFUSED = (RuntimeError, AttributeError, KeyError, TypeError)


def refusal(
    op: str,
    error: Exception,
    *,
    tensors: Mapping[str, object],
    optional: Collection[str] = (),
    pairs: Collection[str] = (),
    numbers: Mapping[str, object],
    choices: Mapping[str, tuple[object, Collection[str]]],
) -> Exception:
    """The exception to raise in place of ``error``; ``error`` itself when no argument is to blame.

    Args:
        op: the function that was called.
        tensors, numbers: what it was given, by the names of its arguments.
        optional: which of the tensors may be None.
        pairs: which of them may be a tuple of two, called ``name[0]`` and ``name[1]``.
        choices: a string of several, and what is known.
    """
    text = str(error)
    for kind in (TypeError, ValueError):
        if text.startswith(f"{kind.__name__}: "):
            return kind(text.removeprefix(f"{kind.__name__}: "))
    given = dict(_given(tensors, optional, pairs))
    for name, value in given.items():
        if not isinstance(value, torch.Tensor):
            wanted = "a torch.Tensor or a tuple of two" if name in pairs else "a torch.Tensor"
            return TypeError(f"{op}: {name} is a {type(value).__name__}, wanted {wanted}")
        if value.layout != torch.strided or value.is_quantized:
            found = value.dtype if value.is_quantized else value.layout
            return TypeError(f"{op}: {name} is a {found} tensor, wanted a dense (strided) one")
    for name, number in numbers.items():
        if not isinstance(number, (int, float, torch.SymFloat, torch.SymInt)):
            return TypeError(f"{op}: {name} is a {type(number).__name__}, wanted a number")
    for name, (choice, known) in choices.items():
        if not isinstance(choice, str) or choice not in known:
            return ValueError(f"{op}: {name} is {choice!r}, wanted {' or '.join(map(repr, known))}")
    if isinstance(error, NotImplementedError):
        places = [f"{name} is on {v.device}" for name, v in given.items() if isinstance(v, torch.Tensor)]
        return ValueError(f"{op}: {', '.join(places)}, and this build of the kernel has no code for that")
    return error


def _given(
    tensors: Mapping[str, object], optional: Collection[str], pairs: Collection[str]
) -> Iterator[tuple[str, object]]:
    for name, value in tensors.items():
        if name in pairs and isinstance(value, tuple) and len(value) == 2:
            yield from ((f"{name}[{i}]", part) for i, part in enumerate(value))
        elif value is not None or name not in optional:
            yield name, value
