# SPDX-License-Identifier: Apache-2.0
"""Measuring goes on without who fails, and leaves nobody out in silence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernelworks import bench_model_measure
from kernelworks.bench_model_distance import judged
from kernelworks.bench_model_measure import (
    Run,
    gpu_events,
    judge,
    measure,
    results,
    take_profiles,
    take_times,
)
from kernelworks.bench_model_record import BOTH, COMPILE, EAGER, KERNELS, VARIANTS, Distance
from kernelworks.bench_model_work import Prepared, Work

X = torch.randn(32, 32, generator=torch.Generator().manual_seed(0))
OURS = torch.library.Library("_toy_cpu_0", "FRAGMENT")
OURS.define("twice(Tensor x) -> Tensor")
OURS.impl("twice", lambda x: x + x, "CPU")


def output_of(variant: str) -> torch.Tensor:
    """What makes a variant: ours is an operator named as kernels are, and what is compiled is compiled."""
    if variant == KERNELS:
        return torch.ops._toy_cpu_0.twice(X)
    if variant == COMPILE:
        return torch.compile(lambda x: 2 * x, backend="eager")(X)
    if variant == BOTH:
        return torch.compile(torch.ops._toy_cpu_0.twice.default, backend="eager")(X)
    return 2 * X


def work(
    name: str = "toy",
    run: Callable[[str], torch.Tensor] = output_of,
    calls: list[tuple[str, int]] | None = None,
    profiled_units: int = 1,
) -> Work:
    def run_units(variant: str, units: int, begin: Callable[[], None]) -> Any:
        begin()
        if calls is not None:
            calls.append((variant, units))
        for _ in range(units):
            output = run(variant)
        return output

    def judge(output: torch.Tensor, eager: torch.Tensor | None) -> Distance:
        return judged(output, 2 * X.double(), eager, torch.float32)

    return Work(name, "call", 2, 3, profiled_units, run_units, judge)


def prepared(*works: Work, forget: Callable[[], None] = lambda: None) -> Prepared:
    return Prepared(works, {}, {}, {}, 0, forget)


def test_everything_is_measured() -> None:
    calls: list[tuple[str, int]] = []
    all_ = prepared(work(calls=calls))
    run = measure(all_, "cpu", VARIANTS)
    assert run.failures == {}
    (found,) = results(all_, run)
    assert tuple(found.variants) == VARIANTS
    for measured in found.variants.values():
        assert len(measured.samples) == 3
        assert measured.first > 0
        assert measured.distance.truth == 0
        assert measured.peak_bytes is None
        assert measured.idle is None
        assert measured.profile is not None
        assert measured.profile.busy > 0
    assert "kernelworks toy" in found.variants[KERNELS].profile.groups
    assert "torch.compile" in found.variants[COMPILE].profile.groups
    # Judged one behind the other, warmed up, then in turns of which each starts with another; then profiled.
    assert calls[:8] == [(variant, 2) for variant in (*VARIANTS, *VARIANTS)]
    assert [variant for variant, _ in calls[8:20]] == [
        *(EAGER, KERNELS, COMPILE, BOTH),
        *(KERNELS, COMPILE, BOTH, EAGER),
        *(COMPILE, BOTH, EAGER, KERNELS),
    ]
    assert calls[20:] == [(variant, 1) for variant in VARIANTS]


def test_the_truth_is_forgotten_between_the_judgement_and_the_times() -> None:
    calls: list[tuple[str, int]] = []
    seen: list[int] = []
    measure(prepared(work(calls=calls), forget=lambda: seen.append(len(calls))), "cpu", (EAGER, KERNELS))
    assert seen == [2]


def test_a_wrong_variant_is_not_timed_and_the_others_are() -> None:
    def run(variant: str) -> torch.Tensor:
        return output_of(variant) * (1.001 if variant == KERNELS else 1)

    all_ = prepared(work("one", run), work("two"))
    found = measure(all_, "cpu", (EAGER, KERNELS, COMPILE))
    assert set(found.failures) == {"kernels at one", "kernels at two"}
    assert "from the truth where" in found.failures["kernels at one"]
    assert found.failures["kernels at two"] == "not run after kernels at one failed"
    assert [tuple(each.variants) for each in results(all_, found)] == [(EAGER, COMPILE)] * 2


def test_a_variant_that_cannot_run_keeps_what_it_did() -> None:
    def run(variant: str) -> torch.Tensor:
        if variant == COMPILE:
            raise RuntimeError("no compiler\nand a long story")
        return output_of(variant)

    all_ = prepared(work("one"), work("two", run))
    found = measure(all_, "cpu", (EAGER, COMPILE))
    assert found.failures == {"compile at two": "RuntimeError: no compiler"}
    assert [tuple(each.variants) for each in results(all_, found)] == [(EAGER, COMPILE), (EAGER,)]


def test_without_eager_nothing_is_judged() -> None:
    def run(variant: str) -> torch.Tensor:
        raise RuntimeError("out of memory") if variant == EAGER else AssertionError(variant)

    all_ = prepared(work(run=run))
    found = measure(all_, "cpu", (EAGER, KERNELS))
    assert found.failures["eager at toy"] == "RuntimeError: out of memory"
    assert "nothing to compare with" in found.failures["kernels at toy"]
    assert results(all_, found)[0].variants == {}


@pytest.mark.parametrize(
    ("variant", "runs", "said"),
    [
        (KERNELS, EAGER, "the profiler sees none of our kernels"),
        (EAGER, KERNELS, "the profiler sees our kernels"),
        (COMPILE, EAGER, "the profiler sees none of torch.compile's kernels"),
        (BOTH, KERNELS, "the profiler sees none of torch.compile's kernels"),
    ],
)
def test_a_fallback_is_seen(variant: str, runs: str, said: str) -> None:
    """A kernel that is not called, or a graph that is not compiled, gives the right numbers too."""
    one = work(run=lambda _: output_of(runs))
    run = Run("cpu", (EAGER, variant) if variant != EAGER else (EAGER,))
    with torch.no_grad():
        judge(one, run)
        take_times(one, run)
        take_profiles(one, run)
    assert run.failures[f"{variant} at toy"] == said


def test_a_profile_of_nothing_is_no_success() -> None:
    run = Run("cpu", (EAGER,))
    silent = work(run=lambda _: X)
    run.going["toy"] = [EAGER]
    take_profiles(silent, run)
    assert run.failures == {"eager at toy": "the profiler sees nothing run on the device"}


def test_work_need_not_be_profiled() -> None:
    all_ = prepared(work(profiled_units=0))
    (found,) = results(all_, measure(all_, "cpu", (EAGER,)))
    assert found.variants[EAGER].profile is None


def test_of_a_gpus_time_line_only_work_counts() -> None:
    """Entries as torch's profiler gives them."""

    class Entry:
        def __init__(self, name: str, device: Any, start: float, us: float, annotation: bool = False) -> None:
            self.name, self.device_type, self.is_user_annotation = name, device, annotation
            self.time_range = type("", (), {"start": start, "elapsed_us": lambda _self: us})()

    gpu, cpu = bench_model_measure.DeviceType.CUDA, bench_model_measure.DeviceType.CPU
    entries = [
        Entry("cudaLaunchKernel", cpu, 0, 5),
        Entry("nvjet_hsh", gpu, 3, 10),
        Entry("## Call CompiledFxGraph f ##", gpu, 3, 30),
        Entry("a range of somebody's", gpu, 3, 30, annotation=True),
        Entry("Context Sync", gpu, 13, 10),
        Entry("Memcpy DtoH (Device -> Pageable)", gpu, 14, 2),
    ]
    profiler = type("", (), {"events": lambda _self: entries})()
    assert [(event.name, event.start, event.duration) for event in gpu_events(profiler)] == [
        ("nvjet_hsh", 3, 10),
        ("Memcpy DtoH (Device -> Pageable)", 14, 2),
    ]
