# SPDX-License-Identifier: Apache-2.0
"""What a kernel (on a CPU, an operator) is for, by its name, and a profile made of many of them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernelworks.bench_model_record import Profile, Share

OURS = "kernelworks "  # before the name of one of our kernels
COMPILED, OTHER = "torch.compile", "other"
TOP = 20  # how many single kernels a profile names
NAME = 300  # characters of a name that a profile keeps
# What torch wraps around the functor that computes.
OUTER = ("gpu_kernel", "BinaryFunctor", "AUnaryFunctor", "BUnaryFunctor")
# The first that fits is the group; ours, whose names say what they are, come before all.
OUR_KERNEL = re.compile(r"\bkernelworks::(?P<cuda>\w+)::|^_(?P<cpu>[a-z0-9]+)_cpu_\w*::")
GROUPS = tuple(
    (group, re.compile(pattern, re.IGNORECASE))
    for group, pattern in (
        # What torch.compile fuses is named after what stood there and beside it: attention, products, all.
        # Its templates (tem) are products or attention themselves.
        (COMPILED, r"^triton_(?!tem)|CompiledFxGraph|Torch-Compiled Region|CompiledFunction|^cpp_fused"),
        # Attention before products, as cutlass has both.
        ("attention", r"flash|fmha|sdpa|scaled_dot_product|attention|\battn"),
        ("convolution", r"conv(?!er)|fprop|dgrad|wgrad|winograd"),
        (
            "matmul",
            r"nvjet|gemm|gemv|cutlass|cublas|splitk|triton_tem|"
            r"^aten::(mm|addmm|bmm|baddbmm|matmul|linear|addmv|mv|dot)$|mkldnn_linear|mkl_linear|dot_kernel",
        ),
        (
            "copies",
            r"memcpy|memset|CatArrayBatchedCopy|copy_kernel|nchwToNhwc|nhwcToNchw|FillFunctor|"
            r"^aten::(copy_|cat|stack|clone|contiguous|to|_to_copy|index_copy_|fill_|zero_|repeat)$",
        ),
        (
            "norms and sums",
            r"norm(?!al)|reduce_kernel|softmax|welford|RowwiseMoments|^aten::(mean|sum|var|var_mean|amax|argmax|max)$",
        ),
        (
            "elementwise",
            r"elementwise|unrolled|pointwise|^aten::(add|sub|mul|div|neg|pow|rsqrt|sqrt|exp|sin|cos|tanh|gelu|"
            r"silu|sigmoid|where|addcmul|clamp|rsub|reciprocal)_?$",
        ),
    )
)
ORDER = (
    "matmul",
    "convolution",
    "attention",
    OURS,
    COMPILED,
    "norms and sums",
    "elementwise",
    "copies",
    OTHER,
)


@dataclass(frozen=True)
class Event:
    """One run of a kernel; times in microseconds, from any common start."""

    name: str
    start: float
    duration: float
    calls: int = 1  # of an operator on a CPU, whose runs are added up


def group_of(name: str) -> str:
    """The group that a kernel of this name belongs to."""
    ours = OUR_KERNEL.search(name)
    if ours is not None:
        return OURS + (ours["cuda"] or ours["cpu"])
    return next((group for group, pattern in GROUPS if pattern.search(name)), OTHER)


def in_order(groups: Iterable[str]) -> list[str]:
    """Groups as tables and plots have them: what stays first, ours next."""

    def place(group: str) -> tuple[int, str]:
        known = OURS if group.startswith(OURS) else group
        return (ORDER.index(known) if known in ORDER else len(ORDER), group)

    return sorted(groups, key=place)


def profile_of(events: Sequence[Event], units: int, *, on_gpu: bool) -> Profile:
    """What the events of `units` units of work come to, a unit.

    Where kernels overlap (one may start while that before it drains) the time is the earlier one's, so that
    the groups add up to the time in which the device was busy.
    """
    own: defaultdict[str, float] = defaultdict(float)
    calls: Counter[str] = Counter()
    reached = float("-inf")
    for event in sorted(events, key=lambda event: event.start):
        end = event.start + event.duration
        own[event.name] += max(0.0, end - max(event.start, reached))
        calls[event.name] += event.calls
        reached = max(reached, end)
    per_unit = 1e-3 / units
    groups: defaultdict[str, float] = defaultdict(float)
    for name, microseconds in own.items():
        groups[group_of(name)] += microseconds
    return Profile(
        on_gpu=on_gpu,
        busy=sum(own.values()) * per_unit,
        total=sum(event.duration for event in events) * per_unit,
        calls=sum(calls.values()) / units,
        groups={name: groups[name] * per_unit for name in in_order(groups)},
        top=tuple(
            Share(short_name(name), group_of(name), microseconds * per_unit, calls[name] / units)
            for name, microseconds in sorted(own.items(), key=lambda entry: -entry[1])[:TOP]
        ),
    )


def short_name(name: str) -> str:
    """Without what only a linker wants: a kernel's template arguments can take pages."""
    name = re.sub(r"\(anonymous namespace\)::", "", name.removeprefix("void "))
    return name if len(name) <= NAME else f"{name[: NAME - 3]}..."


def runs_ours(profile: Profile) -> bool:
    """Whether any of our kernels ran."""
    return any(group.startswith(OURS) for group in profile.groups)


def runs_compiled(profile: Profile) -> bool:
    """Whether anything ran that torch.compile made."""
    return COMPILED in profile.groups


def brief_name(name: str) -> str:
    """For a table: the kernel without its template's arguments, but for what torch's loops compute."""
    base, _, arguments = name.partition("<")
    base = base.split("::")[-1] if base.startswith("at::native::") else base
    inner = re.findall(r"\b(\w+_kernel_cuda|\w+KernelImpl|\w+_impl|\w*Functor\w*|\w+Ops)\b", arguments)
    inner = [each for each in inner if not each.startswith(OUTER)]
    said = f"{base} {inner[0]}" if inner else base.split("(")[0]
    return said if len(said) <= 72 else f"{said[:69]}..."
