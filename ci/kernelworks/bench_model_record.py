# SPDX-License-Identifier: Apache-2.0
"""What a run of `kernelworks bench-model` leaves behind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kernelworks.bench_record import FORMAT, Machine, rounded
from kernelworks.bench_stats import Spread, spread

KIND = "model"  # tells these records from those of `kernelworks bench`
EAGER, KERNELS, COMPILE, BOTH = "eager", "kernels", "compile", "kernels+compile"
VARIANTS = (EAGER, KERNELS, COMPILE, BOTH)
FLOOR = ("matmul", "convolution", "attention")  # groups of device time that these kernels leave alone


@dataclass(frozen=True)
class Agreement:
    """Whether the same tokens were chosen."""

    positions: int
    same: int  # positions where the truth, given the same tokens before, would choose the same
    diverges: int | None  # the first new token that is not eager's, counted from 1; None if none is


@dataclass(frozen=True)
class Distance:
    """How far an output is from others: the norm of the difference over the norm of the other."""

    truth: float | None  # from the same weights in a wider type; None where that was not computed
    eager: float | None  # from eager in the same type; None for eager itself
    allowed: float | None  # what the first may be at most, and None where nothing is refused
    agreement: Agreement | None = field(default=None)
    complaint: str | None = field(default=None)  # what is wrong, or None


@dataclass(frozen=True)
class Share:
    """What one kernel (on a CPU, one operator) had of the device's time."""

    name: str
    group: str
    ms: float  # a unit of the work
    calls: float  # a unit of the work


@dataclass(frozen=True)
class Profile:
    """Where the device's time went, for one unit of the work."""

    on_gpu: bool  # a GPU's time line; otherwise the own time of operators, which run on the host
    busy: float  # ms during which at least one kernel ran
    total: float  # ms of all kernels added up; more than busy where they overlap
    calls: float  # how many kernels ran
    groups: Mapping[str, float]  # group to ms; together they are busy
    top: tuple[Share, ...]  # the largest, in order

    @property
    def floor(self) -> float:
        """Milliseconds of matrix products and attention, which stay whatever is done around them."""
        return sum(self.groups.get(name, 0.0) for name in FLOOR)


@dataclass(frozen=True)
class Measured:
    """One variant at one piece of work."""

    first: float  # ms of the first call, all units: what compiles does so here
    samples: tuple[float, ...]  # ms a unit, by the clock
    distance: Distance
    peak_bytes: int | None  # of GPU memory, weights included, while it ran
    profile: Profile | None

    @property
    def time(self) -> Spread:
        return spread(self.samples)

    @property
    def idle(self) -> float | None:
        """Milliseconds of the clock in which no kernel ran: for want of the host, or as one was launched."""
        if self.profile is None or not self.profile.on_gpu:
            return None
        return max(0.0, self.time.median - self.profile.busy)


@dataclass(frozen=True)
class WorkResult:
    """One thing that users wait for, in every variant that did it right."""

    name: str
    unit: str  # what a time is for: a step, a token
    units: int  # in one sample
    variants: Mapping[str, Measured]

    def ratio(self, variant: str, beside: str) -> float | None:
        """The time of `beside` over that of `variant`: above 1, `variant` is faster."""
        if variant == beside or variant not in self.variants or beside not in self.variants:
            return None
        return self.variants[beside].time.median / self.variants[variant].time.median


@dataclass(frozen=True)
class ModelRequest:
    """What the command asks of the process that measures."""

    model: str
    size: str
    device: str
    dtype: str
    variants: tuple[str, ...]
    quick: bool
    repos: Mapping[str, str]  # a kernel's name to its repository
    version: int


@dataclass(frozen=True)
class ModelResult:
    """What that process found."""

    machine: Machine
    builds: Mapping[str, Mapping[str, Any]]  # of each kernel: the variant that was loaded, and its commit
    packages: Mapping[str, str]
    settings: Mapping[str, Any]
    replaced: Mapping[str, int]  # what of the kernels is called, and how often in one pass
    left: Mapping[str, int]
    weight_bytes: int
    works: tuple[WorkResult, ...]
    failures: Mapping[str, str]  # a variant at a piece of work to what went wrong


@dataclass(frozen=True)
class ModelRecord:
    """One run."""

    model: str
    size: str
    device: str
    dtype: str
    commit: str | None
    dirty: bool
    command: str
    date: str
    machine: Machine
    builds: Mapping[str, Mapping[str, Any]]
    packages: Mapping[str, str]
    settings: Mapping[str, Any]
    replaced: Mapping[str, int]
    left: Mapping[str, int]
    weight_bytes: int
    works: tuple[WorkResult, ...]
    failures: Mapping[str, str]

    @property
    def correct(self) -> bool:
        """Whether every variant that was asked for did all work, and did it right."""
        return bool(self.works) and not self.failures

    @property
    def variants(self) -> tuple[str, ...]:
        """Those of which there is a time, in the usual order."""
        return tuple(name for name in VARIANTS if any(name in work.variants for work in self.works))

    def to_json(self) -> str:
        """Everything, and the derived figures too, so that a reader need not work them out again."""
        document: dict[str, Any] = {
            "kind": KIND,
            "format": FORMAT,
            "correct": self.correct,
            **asdict(self),
        }
        for entry, work in zip(document["works"], self.works, strict=True):
            for name, measured in work.variants.items():
                entry["variants"][name] |= {
                    "time": asdict(measured.time),
                    "vs_eager": work.ratio(name, EAGER),
                    "vs_compile": work.ratio(name, COMPILE),
                    "idle": measured.idle,
                    "floor": None if measured.profile is None else measured.profile.floor,
                }
        return json.dumps(rounded(document), indent=1, allow_nan=False) + "\n"
