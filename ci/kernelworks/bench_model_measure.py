# SPDX-License-Identifier: Apache-2.0
"""Runs prepared work: first all is judged, then timed in turns, and last looked at by the profiler.

In this order, as the truth's memory is given back before any peak is read, and as a profiler that was once
attached to a GPU may slow down what follows.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from kernelworks import bench_timing
from kernelworks.bench_model_groups import Event, profile_of, runs_compiled, runs_ours
from kernelworks.bench_model_record import EAGER, Distance, Measured, Profile, WorkResult
from kernelworks.bench_model_work import COMPILED, WITH_KERNELS, Prepared, Work

MILLI = 1e3
# Entries on a GPU's time line that are no work, and those that only frame it.
NO_WORK = (
    "Context Sync",
    "Stream Sync",
    "Event Sync",
    "Stream Wait",
    "## Call",
    "Torch-Compiled",
    "ProfilerStep",
)


@dataclass
class Run:
    """What has come of the measuring so far, by work and variant."""

    device: str
    variants: tuple[str, ...]
    say: Callable[[str], None] = print
    going: dict[str, list[str]] = field(default_factory=dict)  # a work to the variants that go on with it
    failures: dict[str, str] = field(default_factory=dict)  # by "variant at work"
    first: dict[tuple[str, str], float] = field(default_factory=dict)
    distances: dict[tuple[str, str], Distance] = field(default_factory=dict)
    samples: dict[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)
    peaks: dict[tuple[str, str], int | None] = field(default_factory=dict)
    profiles: dict[tuple[str, str], Profile] = field(default_factory=dict)

    def fail(self, variant: str, work: Work, reason: str) -> None:
        """Leave this variant out of what follows of this work."""
        self.failures[f"{variant} at {work.name}"] = reason
        self.going[work.name].remove(variant)
        self.say(f"{work.name}, {variant}: FAILED: {reason}")


def measure(prepared: Prepared, device: str, variants: tuple[str, ...]) -> Run:
    """Everything, of every variant that can be run and is right."""
    run = Run(device, variants, say=lambda line: print(line, flush=True))
    with torch.no_grad():
        for work in prepared.works:
            judge(work, run)
        prepared.forget_truth()
        for work in prepared.works:
            take_times(work, run)
        if device == "cuda":  # the first profile of a process pays for the tracing library
            with profile(activities=[ProfilerActivity.CUDA], acc_events=True):
                torch.zeros(1, device=device)
        for work in prepared.works:
            take_profiles(work, run)
    return run


def judge(work: Work, run: Run) -> None:
    """The first call of each variant, which compiles what compiles; without eager there is no judgement."""
    run.going[work.name] = list(run.variants)
    eager = None
    for variant in run.variants:
        earlier = [each for each in run.failures if each.startswith(f"{variant} at ")]
        if variant != EAGER and eager is None:
            run.fail(variant, work, "not run, as eager failed and there is nothing to compare with")
            continue
        if earlier:
            run.fail(variant, work, f"not run after {earlier[0]} failed")
            continue
        try:
            clock = Clock(run.device)
            output = work.run(variant, work.units, clock.begin)
            run.first[work.name, variant] = clock.ms()
            distance = work.judge(output, eager)
        except Exception as error:  # a variant that cannot run must not end the others, nor go unseen
            run.fail(variant, work, sentence(error))
            continue
        run.distances[work.name, variant] = distance
        if variant == EAGER:
            eager = output
        run.say(
            f"{work.name}, {variant}: first call {run.first[work.name, variant]:,.0f} ms, {told(distance)}"
        )
        if distance.complaint is not None:
            run.fail(variant, work, distance.complaint)


def take_times(work: Work, run: Run) -> None:
    """Samples in turn, after a call each that warms up and shows the peak of memory."""
    for variant in list(run.going[work.name]):
        try:
            run.peaks[work.name, variant] = peak_of(work, variant, run.device)
        except Exception as error:
            run.fail(variant, work, sentence(error))
    samplers = {variant: sampler(work, variant, run.device) for variant in run.going[work.name]}
    if not samplers:
        return
    gc.collect()
    gc.freeze()  # so that each sample's collection looks at the garbage of the one before, and at no more
    try:
        found = bench_timing.interleaved(samplers, work.samples)
    finally:
        gc.unfreeze()
    for variant, samples in found.items():
        run.samples[work.name, variant] = tuple(samples)
        run.say(f"{work.name}, {variant}: {statistics.median(samples):.3f} ms a {work.unit}")


def take_profiles(work: Work, run: Run) -> None:
    """One profiled call of each variant, which must show what makes it that variant."""
    if not work.profiled_units:
        return
    for variant in list(run.going[work.name]):
        found = profiled(work, variant, run.device)
        run.profiles[work.name, variant] = found
        run.say(
            f"{work.name}, {variant}: device busy {found.busy:.3f} ms a {work.unit}, {found.calls:.0f} calls"
        )
        if complaint := unlike(variant, found):
            run.fail(variant, work, complaint)


def unlike(variant: str, found: Profile) -> str | None:
    """What a variant runs that it should not, or does not run that it should: a fallback says nothing."""
    if not found.calls:
        return "the profiler sees nothing run on the device"
    if runs_ours(found) != (variant in WITH_KERNELS):
        return f"the profiler sees {'' if runs_ours(found) else 'none of '}our kernels"
    if runs_compiled(found) != (variant in COMPILED):
        return f"the profiler sees {'' if runs_compiled(found) else 'none of '}torch.compile's kernels"
    return None


class Clock:
    """Milliseconds since `begin`, everything that the device was given included."""

    def __init__(self, device: str) -> None:
        self.device, self.start = device, 0.0

    def begin(self) -> None:
        wait(self.device)
        self.start = time.perf_counter()

    def ms(self) -> float:
        wait(self.device)
        return (time.perf_counter() - self.start) * MILLI


def wait(device: str) -> None:
    """Until the device has done all that it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def sampler(work: Work, variant: str, device: str) -> Callable[[], float]:
    def sample() -> float:
        gc.collect()  # what lies in cycles holds memory of the device, and automatic collection is off
        clock = Clock(device)
        work.run(variant, work.units, clock.begin)
        return clock.ms() / work.units

    return sample


def peak_of(work: Work, variant: str, device: str) -> int | None:
    """Run once; the most GPU memory that was taken at a time, weights included."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    work.run(variant, work.units, lambda: None)
    wait(device)
    return torch.cuda.max_memory_allocated() if device == "cuda" else None


def profiled(work: Work, variant: str, device: str) -> Profile:
    """On a GPU the time line of its kernels; on a CPU each operator's own time, with the profiler's cost."""
    on_gpu = device == "cuda"
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    profiler = profile(activities=[activity], acc_events=True)  # of its one cycle, and without a warning

    def begin() -> None:
        wait(device)
        profiler.start()

    work.run(variant, work.profiled_units, begin)
    wait(device)
    profiler.stop()
    events = gpu_events(profiler) if on_gpu else cpu_events(profiler)
    return profile_of(events, work.profiled_units, on_gpu=on_gpu)


def gpu_events(profiler: Any) -> list[Event]:
    return [
        Event(event.name, event.time_range.start, event.time_range.elapsed_us())
        for event in profiler.events()
        if event.device_type == DeviceType.CUDA
        and not getattr(event, "is_user_annotation", False)
        and not event.name.startswith(NO_WORK)
    ]


def cpu_events(profiler: Any) -> list[Event]:
    """One for each operator, one behind the other, as there is no time line that could overlap."""
    events, start = [], 0.0
    for average in profiler.key_averages():
        own = float(average.self_cpu_time_total)
        events.append(Event(average.key, start, own, average.count))
        start += own
    return events


def results(prepared: Prepared, run: Run) -> tuple[WorkResult, ...]:
    """What was found of each work, for the variants that got to their times."""
    return tuple(
        WorkResult(
            work.name,
            work.unit,
            work.units,
            {
                variant: Measured(
                    first=run.first[at, variant],
                    samples=samples,
                    distance=run.distances[at, variant],
                    peak_bytes=run.peaks.get((at, variant)),
                    profile=run.profiles.get((at, variant)),
                )
                for (at, variant), samples in run.samples.items()
                if at == work.name
            },
        )
        for work in prepared.works
    )


def told(distance: Distance) -> str:
    """In words, for who watches."""
    said = [f"{distance.truth:.2e} from the truth"] if distance.truth is not None else []
    said += [f"{distance.eager:.2e} from eager"] if distance.eager is not None else []
    tokens = distance.agreement
    if tokens is not None:
        said.append(f"chooses as the truth at {tokens.same} of {tokens.positions} tokens")
    return ", ".join(said) or "finite"


def sentence(error: Exception) -> str:
    """The kind of the error, and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
