# SPDX-License-Identifier: Apache-2.0
"""What a benchmark run leaves behind: every sample and error, and all that is needed to run it again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kernelworks.bench_stats import Spread, geometric_mean, spread

OURS = "ours"
FORMAT = 1  # of the JSON; a reader refuses a number that it does not know
LAUNCH_BOUND_US = 4.0  # a kernel this short is mostly launch latency
LAUNCH_LATENCY_US = 2.0  # what an empty kernel takes in a graph, about


def best_of(times: Mapping[str, Spread]) -> str | None:
    """The fastest of the others."""
    peers = {who: time.median for who, time in times.items() if who != OURS}
    return min(peers, key=peers.__getitem__) if peers else None


def ratio_of(times: Mapping[str, Spread]) -> float | None:
    """The time of the fastest of the others over ours."""
    best = best_of(times)
    return None if best is None else times[best].median / times[OURS].median


@dataclass(frozen=True)
class Error:
    """How far one output is from fp64. Infinite where the output is not finite."""

    output: str
    ulps: float  # largest, in units in the last place of the output's dtype
    relative: float  # largest, relative to what the output's kind says
    absolute: float  # largest
    overall: float  # of all together: the norm of the error over the norm of the truth
    rows: int  # how many rows were compared
    complaint: str | None = None  # what is wrong, or None


@dataclass(frozen=True)
class Measurement:
    """One row: a case, in one dtype, with one number of threads."""

    suite: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    threads: int | None  # None on a GPU
    bytes: int  # each input read once, each output written once
    copy_rate: float  # bytes a second, of the same run
    buffers: int  # sets of inputs and outputs, taken in turn
    calls: int | None  # in one CUDA graph
    errors: Mapping[str, tuple[Error, ...]]  # of ours and of each peer, against fp64
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # microseconds per call
    apart: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # the same, among other kernels

    @property
    def complaints(self) -> list[str]:
        """What is wrong, and with whom; nothing was timed then."""
        return [
            f"{who}: {error.complaint}"
            for who, each in self.errors.items()
            for error in each
            if error.complaint
        ]

    @property
    def label(self) -> str:
        threads = "" if self.threads is None else f", threads {self.threads}"
        return f"{self.name} {'x'.join(map(str, self.shape))} {self.dtype}{threads}"

    @property
    def times(self) -> dict[str, Spread]:
        return {who: spread(samples) for who, samples in self.samples.items()}

    @property
    def ours(self) -> float:
        return self.times[OURS].median

    @property
    def times_apart(self) -> dict[str, Spread]:
        return {who: spread(samples) for who, samples in self.apart.items()}

    @property
    def best_peer(self) -> str | None:
        return best_of(self.times)

    @property
    def ratio(self) -> float | None:
        """The best peer's time over ours: above one, ours is faster."""
        return ratio_of(self.times)

    @property
    def ratio_apart(self) -> float | None:
        return ratio_of(self.times_apart)

    @property
    def floor(self) -> float:
        """Microseconds that memory needs for these bytes, at the copy rate of the same run."""
        return self.bytes / self.copy_rate * 1e6

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.bytes / self.ours * 1e6

    @property
    def launch_bound(self) -> bool:
        """Whether this says more about launching than about the kernel."""
        if self.threads is not None:
            return False
        return self.ours < LAUNCH_BOUND_US or self.floor < LAUNCH_LATENCY_US

    @property
    def above_memory(self) -> bool:
        """Whether memory alone cannot explain the rate, so that a cache must have helped."""
        return self.rate > 1.03 * self.copy_rate


@dataclass(frozen=True)
class HostCost:
    """What one eager call without gradients costs the host, on a small input that it does not wait for."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    samples: Mapping[str, tuple[float, ...]]  # microseconds per call

    @property
    def times(self) -> dict[str, Spread]:
        return {who: spread(samples) for who, samples in self.samples.items()}


@dataclass(frozen=True)
class Machine:
    """Where it ran, and with which versions."""

    gpu: str | None
    driver: str | None
    clocks: Mapping[str, str]  # as nvidia-smi says right after work: name of the query to value with unit
    l2_bytes: int | None
    cpu: str
    cores: int
    python: str
    torch: str
    cuda: str | None
    triton: str | None
    system: str


@dataclass(frozen=True)
class Request:
    """What the command asks of this process."""

    repo_id: str
    version: int
    device: str
    file: str
    suites: tuple[str, ...]
    dtypes: tuple[str, ...]
    peers: tuple[str, ...] | None
    threads: tuple[int, ...]  # empty for the default
    repeats: int
    shapes: tuple[str, ...] = field(default=())  # of those cases; empty for all


@dataclass(frozen=True)
class Result:
    """What this process found."""

    machine: Machine
    build: Mapping[str, Any]
    measurements: tuple[Measurement, ...]
    host: tuple[HostCost, ...]
    missing: Mapping[str, str]
    notes: Mapping[str, str]
    rounding: Mapping[str, str]
    packages: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Record:
    """One run."""

    kernel: str
    version: int
    device: str
    commit: str | None
    dirty: bool
    command: str
    date: str
    build: Mapping[str, Any]  # the variant that was loaded: its name, profile, commit, whether dirty
    machine: Machine
    suites: tuple[str, ...]
    repeats: int
    measurements: tuple[Measurement, ...]
    host: tuple[HostCost, ...]
    missing: Mapping[str, str]  # a peer, or a peer at one row, to why it did not run
    notes: Mapping[str, str]
    rounding: Mapping[str, str] = field(default_factory=dict)  # a peer to how it rounds otherwise
    packages: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of a peer: name to version

    @property
    def correct(self) -> bool:
        """Whether every row was right, and there is one."""
        return bool(self.measurements) and not any(row.complaints for row in self.measurements)

    @property
    def counted(self) -> list[Measurement]:
        """The rows that a speed-up may be claimed from."""
        return [row for row in self.measurements if row.ratio is not None and not row.launch_bound]

    @property
    def mean_ratio(self) -> float | None:
        ratios = [row.ratio for row in self.counted if row.ratio is not None]
        return geometric_mean(ratios) if ratios else None

    def to_json(self) -> str:
        """Everything, and the derived figures too, so that a reader need not work them out again."""
        document: dict[str, Any] = {"format": FORMAT, "correct": self.correct, **asdict(self)}
        for entry, row in zip(document["measurements"], self.measurements, strict=True):
            if self.correct:
                entry.update(
                    {
                        "times": {who: asdict(time) for who, time in row.times.items()},
                        "best_peer": row.best_peer,
                        "ratio": row.ratio,
                        "times_apart": {who: asdict(time) for who, time in row.times_apart.items()},
                        "ratio_apart": row.ratio_apart,
                        "floor": row.floor,
                        "gb_per_second": row.rate / 1e9,
                        "share_of_copy": row.rate / row.copy_rate,
                        "launch_bound": row.launch_bound,
                        "above_memory": row.above_memory,
                    }
                )
        if self.correct:
            document["mean_ratio"] = self.mean_ratio
        return json.dumps(rounded(document), indent=1, allow_nan=False) + "\n"


def rounded(value: Any) -> Any:
    """Numbers as a person would write them; JSON has no infinity, so that one is a word."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(each) for each in value]
    return value
