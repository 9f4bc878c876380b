# SPDX-License-Identifier: Apache-2.0
"""Prepares one row: inputs, the calls that are there, each verified, and what times them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from kernelworks import bench_timing, bench_verify
from kernelworks.bench_record import OURS, Request

if TYPE_CHECKING:
    from kernelworks.bench_case import Call, Case, Peer, Tensors
    from kernelworks.bench_record import Error

    Samples = dict[str, tuple[float, ...]]

SEED = 0
SPACER = "spacer"
APART = "apart "  # before the name of who is timed with spacers


@dataclass
class Session:
    """The loaded kernel, and what is the same for every row."""

    request: Request
    kernel: ModuleType
    peers: tuple[str, ...]
    threads: tuple[int | None, ...]
    about: Mapping[str, Peer] = field(default_factory=dict)
    l2: int = 0
    copy_rates: dict[int | None, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def calls(self, case: Case, where: str, inputs: Tensors) -> dict[str, Call]:
        """Ours and each peer that is there, called once, which compiles what compiles."""
        found = {OURS: case.ours(self.kernel)}
        found[OURS](*inputs)
        for name in self.peers:
            if name not in case.peers:  # a peer of other cases
                continue
            devices = self.about[name].devices if name in self.about else (self.request.device,)
            if self.request.device not in devices:
                self.missing[name] = f"runs on {' and '.join(devices)} only"
                continue
            try:
                call = case.peers[name]()
                call(*inputs)
            except ImportError as error:
                self.missing[name] = str(error)
            except Exception as error:  # whatever a peer raises must not end the run, nor go unseen
                self.missing[f"{name} at {where}"] = f"{type(error).__name__}: {_first_line(error)}"
            else:
                found[name] = call
        return found


@dataclass(frozen=True)
class Trial:
    """A row that is verified, whatever came of it, and what times it."""

    errors: dict[str, tuple[Error, ...]]
    samplers: Callable[[], dict[str, Callable[[], float]]]  # not for what is wrong
    buffers: int
    calls: int | None = None
    apart: Callable[[], dict[str, Callable[[], float]]] = dict  # with another kernel after each call


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


def inputs_of(case: Case, request: Request, dtype: torch.dtype, sets: int) -> list[Tensors]:
    """So many sets of different inputs, the same in every run."""
    generator = torch.Generator(request.device).manual_seed(SEED)
    return [case.inputs(case.shape, dtype, request.device, generator) for _ in range(sets)]


def verified_on_cpu(
    session: Session, case: Case, call: Call, sets: list[Tensors], *, ours: bool
) -> tuple[Error, ...]:
    """The result for the last set, after a call on the first one whose result would be wrong for it."""
    bench_verify.poison(bench_verify.as_outputs(call(*sets[0])))
    outputs = bench_verify.as_outputs(call(*sets[-1]))
    return tuple(bench_verify.errors(case, session.kernel, sets[-1], outputs, ours=ours))


def verified_on_cuda(
    session: Session, case: Case, captured: bench_timing.Captured, sets: list[Tensors], *, ours: bool
) -> tuple[Error, ...]:
    """What a replay writes over NaN, for the first and the last set: the very graph that is timed."""
    outputs = [bench_verify.as_outputs(each) for each in captured.outputs]
    for each in outputs:
        bench_verify.poison(each)
    captured.graph.replay()
    torch.cuda.synchronize()
    compare = partial(bench_verify.errors, case, session.kernel, ours=ours)
    return (*compare(sets[0], outputs[0]), *compare(sets[-1], outputs[-1]))


def on_cpu(session: Session, case: Case, dtype: torch.dtype, where: str) -> Trial:
    """Everything verified, and ready to be timed call by call."""
    sets = inputs_of(case, session.request, dtype, 2)
    calls = session.calls(case, where, sets[0])
    errors = {
        who: verified_on_cpu(session, case, call, sets, ours=who == OURS) for who, call in calls.items()
    }
    return Trial(
        errors,
        lambda: {who: bench_timing.cpu_sampler(call, sets) for who, call in calls.items()},
        buffers=2,
    )


def on_cuda(session: Session, case: Case, dtype: torch.dtype, where: str) -> Trial:
    """Everything captured in graphs, which are verified and then timed."""
    moved = case.bytes(case.shape, dtype.itemsize)
    buffers = bench_timing.buffers_for(moved, session.l2)
    count = bench_timing.calls_for(moved, buffers)
    sets = inputs_of(case, session.request, dtype, buffers)
    errors, samplers = {}, {}
    spacer = bench_timing.spacer()
    apart = {SPACER: bench_timing.capture(spacer, [()], count).sample}
    for who, call in session.calls(case, where, sets[0]).items():
        try:
            captured = bench_timing.capture(call, sets, count)
            apart[who] = bench_timing.capture(call, sets, count, between=spacer).sample
        except Exception as error:  # a peer that synchronises, say
            if who == OURS:
                raise
            session.missing[f"{who} at {where}"] = f"not captured in a CUDA graph: {_first_line(error)}"
            continue
        errors[who] = verified_on_cuda(session, case, captured, sets, ours=who == OURS)
        samplers[who] = captured.sample
    return Trial(errors, lambda: samplers, buffers, count, lambda: apart)


def timed(trial: Trial, repeats: int, budget: float) -> tuple[Samples, Samples]:
    """The samples back to back and, on a GPU, apart; all interleaved."""
    plain, mixed = trial.samplers(), trial.apart()
    marked = {f"{APART}{who}": sampler for who, sampler in mixed.items()}
    found = bench_timing.interleaved({**plain, **marked}, repeats, budget)
    return (
        {who: tuple(found[who]) for who in plain},
        {
            who: bench_timing.apart(found[f"{APART}{who}"], found[f"{APART}{SPACER}"])
            for who in mixed
            if who in plain
        },
    )
