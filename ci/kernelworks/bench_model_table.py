# SPDX-License-Identifier: Apache-2.0
"""A model's record as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kernelworks.bench_model_groups import in_order
from kernelworks.bench_model_record import (
    COMPILE,
    EAGER,
    ModelRecord,
    Profile,
    WorkResult,
)
from kernelworks.bench_table import NOTHING, columns, ratio, short

NAMES = {"ltx": "LTX-Video", "qwen3": "Qwen3"}


def lines(record: ModelRecord) -> Iterator[str]:
    """The whole report."""
    yield from header(record)
    for work in record.works:
        if not work.variants:
            continue
        yield ""
        yield f"{work.name}, ms a {work.unit}"
        yield from columns(times(work))
        if any(measured.profile for measured in work.variants.values()):
            yield ""
            yield f"{work.name}: where the device's time went, ms a {work.unit}"
            yield from columns(shares(work))
            yield from largest(work)
    yield from failed(record)


def header(record: ModelRecord) -> Iterator[str]:
    """The conditions that hold for everything."""
    machine = record.machine
    versions = [f"torch {machine.torch}"]
    if machine.gpu:
        versions += [f"CUDA {machine.cuda}", f"driver {machine.driver or 'unknown'}"]
    versions += [f"{name} {number}" for name, number in record.packages.items()]
    commit = (record.commit or "unknown")[:12] + (" + changes" if record.dirty else "")
    weights = f"{record.weight_bytes / 1e9:.2f} GB of random weights"
    yield f"{NAMES[record.model]}, {record.size} size, {record.dtype}, {weights}, at commit {commit}"
    yield f"{machine.gpu or machine.cpu}, {', '.join(versions)}"
    yield ", ".join(f"{name} {_said(value)}" for name, value in record.settings.items())
    for name, build in record.builds.items():
        built = (build.get("commit") or "unknown")[:12] + (" + changes" if build.get("dirty") else "")
        yield f"{name}: {build.get('variant')}, {build.get('profile')} build of commit {built}"
    if record.replaced:
        calls = ", ".join(f"{count} {name}" for name, count in record.replaced.items())
        yield f"with kernels, calls in one pass: {calls}" + "".join(
            f"; left to torch: {count} {what}" for what, count in record.left.items()
        )
    yield "all variants in one process on the same weights; times are medians of samples taken in turns"
    if record.device == "cuda":
        yield "device: when at least one kernel ran, by the profiler; where two overlap, the first one's"
    else:
        yield "device: each operator's own time, by the profiler, whose cost is in it; no time is idle here"
    yield "from truth, from eager: the norm of the difference over the norm, of the first call's output"


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{name} {_said(each)}" for name, each in value.items()) + ")"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def times(work: WorkResult) -> list[list[str]]:
    """A row for each variant, under headings; columns of which nothing is known are left out."""
    measured = work.variants.values()
    profiled = any(each.profile for each in measured)
    peaks = any(each.peak_bytes for each in measured)
    tokens = any(each.distance.agreement for each in measured)
    heading = ["variant", f"ms a {work.unit}", "p10-p90", "n", "vs eager", "vs compile"]
    heading += ["device", "idle", "floor", "calls"] if profiled else []
    heading += ["peak GB"] if peaks else []
    heading += ["first call s", "from truth", "from eager"]
    heading += ["tokens as truth", "as eager until"] if tokens else []
    return [heading, *(_cells(work, name, profiled, peaks, tokens) for name in work.variants)]


def _cells(work: WorkResult, name: str, profiled: bool, peaks: bool, tokens: bool) -> list[str]:
    measured = work.variants[name]
    time, profile, distance = measured.time, measured.profile, measured.distance
    idle = short(measured.idle) if measured.idle is not None else NOTHING
    busy = [short(profile.busy), idle, short(profile.floor), f"{profile.calls:.0f}"] if profile else []
    agreement = distance.agreement
    until = NOTHING
    if agreement and name != EAGER:
        until = "the end" if agreement.diverges is None else f"token {agreement.diverges}"
    return [
        name,
        short(time.median),
        f"{short(time.p10)}-{short(time.p90)}",
        str(len(measured.samples)),
        ratio(work.ratio(name, EAGER)),
        ratio(work.ratio(name, COMPILE)),
        *((busy or [NOTHING] * 4) if profiled else []),
        *([f"{(measured.peak_bytes or 0) / 1e9:.2f}"] if peaks else []),
        f"{measured.first / 1e3:.1f}",
        _distance(distance.truth),
        _distance(distance.eager),
        *([f"{agreement.same} of {agreement.positions}" if agreement else NOTHING, until] if tokens else []),
    ]


def _distance(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1e}"


def shares(work: WorkResult) -> list[list[str]]:
    """Milliseconds of each group, a column for each variant, and what is left to the clock."""
    profiles = {name: each.profile for name, each in work.variants.items() if each.profile is not None}
    groups = in_order({group for profile in profiles.values() for group in profile.groups})
    rows = [["group", *profiles]]
    rows += [
        [group, *(_part(profile, group) for profile in profiles.values())]
        for group in groups
        if any(profile.groups.get(group, 0.0) >= 5e-4 for profile in profiles.values())
    ]
    rows.append(["device", *(short(profile.busy) for profile in profiles.values())])
    rows.append(["clock", *(short(work.variants[name].time.median) for name in profiles)])
    return rows


def _part(profile: Profile, group: str) -> str:
    return f"{profile.groups[group]:.3f}" if group in profile.groups else NOTHING


def largest(work: WorkResult, count: int = 8) -> Iterator[str]:
    """What has most of the time beside products and attention, by name: there is where to look next."""
    for name, measured in work.variants.items():
        if measured.profile is None:
            continue
        rest = [share for share in measured.profile.top if share.group not in ("matmul", "attention")]
        yield f"{name}, largest beside matmul and attention:"
        yield from (
            f"  {share.ms:8.3f} ms  {share.calls:6.1f} x  {share.group}: {share.name:.120}"
            for share in rest[:count]
        )


def failed(record: ModelRecord) -> Iterator[str]:
    """Who failed, and why."""
    for who, reason in record.failures.items():
        yield f"FAILED: {who}: {reason}"
