# SPDX-License-Identifier: Apache-2.0
"""Another forward for one module, and its own back: parameters, class, hooks and name stay what they are.

The forward is bound on the instance, as kernelize does it. Where accelerate or diffusers have hooked it
before, what their hooks call in the end is exchanged: they go on working, and come and go in any order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import torch
from torch import nn

Forward = Callable[..., Any]


@dataclass(frozen=True)
class Swap:
    """A module, the forward of its class, and the one with kernels."""

    module: nn.Module
    own: Forward
    ours: Forward


@dataclass(frozen=True)
class Injection:
    """What of a model runs on kernels.

    Attributes:
        replaced: how often each function of the kernels is called in one pass of the model.
        left: how many modules were left alone, by what they are.
    """

    replaced: dict[str, int]
    left: dict[str, int]
    swaps: tuple[Swap, ...] = field(repr=False)

    def undo(self) -> None:
        """Every module runs the forward of its class again; a second time changes nothing."""
        for swap in self.swaps:
            if runs(swap.module, swap.ours):
                rebind(swap.module, swap.ours, swap.own)

    def __str__(self) -> str:
        parts = [", ".join(f"{count} {name}" for name, count in self.replaced.items())]
        parts += [f"left to torch: {count} {what}" for what, count in self.left.items()]
        return "calls in one pass: " + "; ".join(parts)


def is_kind(module: Any, kind: type[nn.Module]) -> bool:
    """Of that class, or of one below it that has the same forward."""
    return isinstance(module, kind) and type(module).forward is kind.forward


def same_arguments(module: nn.Module, ours: Forward) -> bool:
    """Another release of a library may have other arguments, and then other work to do with them."""
    own, new = (list(inspect.signature(f).parameters) for f in (type(module).forward, ours))
    return own == new


def is_plain(module: nn.Module, forward: Forward | None = None) -> bool:
    """Whether a call does what the forward of its class (or the one given) does, and nothing else.

    Only then may a kernel do that module's work without calling it.
    """
    if (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    ):
        return False
    own = module.__dict__
    if "_hf_hook" in own or "_diffusers_hook" in own:  # of accelerate, of diffusers
        return False
    bound = own.get("forward")
    if bound is None or forward is None:
        return bound is None
    # Where torch 2.11 compiles, no function is the other; inject has looked before.
    return torch.compiler.is_compiling() or getattr(bound, "__func__", None) is forward


def runs(module: nn.Module, forward: Forward) -> bool:
    """Whether a call ends in this forward, through whatever hooks."""
    if "forward" not in module.__dict__:
        return type(module).forward is forward
    return any(True for _ in _places(module, forward))


def rebind(module: nn.Module, old: Forward, new: Forward) -> None:
    """Have a module that runs ``old`` run ``new``; one of both may be the forward of its class."""
    own = type(module).forward
    if "forward" not in module.__dict__:
        module.forward = MethodType(new, module)
        return
    for owner, name in list(_places(module, old)):
        if owner is module and name == "forward" and new is own:
            del module.forward
        else:
            setattr(owner, name, MethodType(new, module))


def _places(module: nn.Module, forward: Forward) -> Iterator[tuple[object, str]]:
    """Where this forward is bound: on the module, or behind the hooks of accelerate and of diffusers."""
    registry = getattr(module, "_diffusers_hook", None)
    owners = [(module, ("forward", "_old_forward"))]
    owners += [(each, ("forward", "original_forward")) for each in getattr(registry, "_fn_refs", ())]
    for owner, names in owners:
        for name in names:
            if getattr(owner.__dict__.get(name), "__func__", None) is forward:
                yield owner, name
