# SPDX-License-Identifier: Apache-2.0
"""The process that measures: it loads the kernel as a user does, verifies each row, then times it.

`python -m kernelworks.bench_child REQUEST RESULT`, in an environment where LOCAL_KERNELS names the build.
"""

from __future__ import annotations

import gc
import json
import math
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from kernels import get_kernel  # type: ignore[attr-defined]

from kernelworks import bench_case, bench_machine, bench_timing, bench_verify, official
from kernelworks.bench_record import OURS, HostCost, Measurement, Request, Result
from kernelworks.errors import KernelworksError

if TYPE_CHECKING:
    from kernelworks.bench_case import Call, Case, Tensors
    from kernelworks.bench_record import Error

SEED = 0


@dataclass
class Session:
    """The loaded kernel, and what is the same for every row."""

    request: Request
    kernel: ModuleType
    peers: tuple[str, ...]
    threads: tuple[int | None, ...]
    l2: int = 0
    copy_rates: dict[int | None, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def calls(self, case: Case, where: str, inputs: Tensors) -> dict[str, Call]:
        """Ours and each peer that is there, called once, which compiles what compiles."""
        found = {OURS: case.ours(self.kernel)}
        found[OURS](*inputs)
        for name in self.peers:
            if name not in case.peers:
                self.missing[f"{name} for {case.name}"] = "the benchmark file has no such peer"
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
    for who, call in session.calls(case, where, sets[0]).items():
        try:
            captured = bench_timing.capture(call, sets, count)
        except Exception as error:  # a peer that synchronises, say
            if who == OURS:
                raise
            session.missing[f"{who} at {where}"] = f"not captured in a CUDA graph: {_first_line(error)}"
            continue
        errors[who] = verified_on_cuda(session, case, captured, sets, ours=who == OURS)
        samplers[who] = captured.sample
    return Trial(errors, lambda: samplers, buffers, count)


def forget_compiled() -> None:
    """Else dynamo gives up on the ninth shape, and what should be compiled runs eagerly, unseen."""
    if "torch._dynamo" in sys.modules:  # seconds to import, for nothing where nothing is compiled
        torch.compiler.reset()


def measure(session: Session, case: Case, dtype_name: str, threads: int | None) -> Measurement:
    """One row: verified, and only when all of it is right, timed."""
    dtype = getattr(torch, dtype_name)
    forget_compiled()
    prepare, budget = (on_cpu, bench_timing.CPU_BUDGET) if threads is not None else (on_cuda, math.inf)
    trial = prepare(session, case, dtype, f"{case.label} {dtype_name}")
    right = not any(error.complaint for each in trial.errors.values() for error in each)
    samples = bench_timing.interleaved(trial.samplers(), session.request.repeats, budget) if right else {}
    return Measurement(
        suite=case.suite,
        name=case.name,
        shape=case.shape,
        dtype=dtype_name,
        threads=threads,
        bytes=case.bytes(case.shape, dtype.itemsize),
        copy_rate=session.copy_rates[threads],
        buffers=trial.buffers,
        calls=trial.calls,
        errors=trial.errors,
        samples={who: tuple(each) for who, each in samples.items()},
    )


def rows(session: Session, cases: tuple[Case, ...]) -> Iterator[Measurement]:
    """Every row, up to the first that is wrong."""
    request = session.request
    plan = [
        (case, dtype, threads) for case in cases for dtype in request.dtypes for threads in session.threads
    ]
    for number, (case, dtype, threads) in enumerate(plan, 1):
        if threads is not None:
            torch.set_num_threads(threads)
        with torch.set_grad_enabled(case.grad):
            row = measure(session, case, dtype, threads)
        time = f"ours {row.ours:.2f} us" if row.samples else "WRONG"
        print(f"[{number}/{len(plan)}] {row.label}: {time}", flush=True)
        yield row
        if row.complaints:
            return
        gc.collect()
        if request.device == "cuda":
            torch.cuda.empty_cache()


def host_costs(session: Session, cases: tuple[Case, ...]) -> Iterator[HostCost]:
    """What calls cost the host."""
    dtype_name = session.request.dtypes[0]
    for case in cases:
        forget_compiled()
        (inputs,) = inputs_of(case, session.request, getattr(torch, dtype_name), 1)
        with torch.no_grad():
            calls = session.calls(case, f"{case.label} {dtype_name}", inputs)
            samplers = bench_timing.host_samplers(calls, inputs)
            samples = bench_timing.interleaved(samplers, bench_timing.HOST_SAMPLES)
        yield HostCost(case.name, case.shape, dtype_name, {who: tuple(each) for who, each in samples.items()})


def execute(request: Request) -> Result:
    """Load, verify and time all that is asked for."""
    offered = bench_case.read(Path(request.file))
    cases = bench_case.select(offered, request.suites)
    kernel = get_kernel(request.repo_id, version=request.version, backend=request.device)
    session = Session(
        request,
        kernel,
        bench_case.peer_names(cases, request.peers),
        threads_of(request, bench_machine.cores()),
    )
    for threads in session.threads:
        if threads is not None:
            torch.set_num_threads(threads)
        session.copy_rates[threads] = bench_timing.copy_rate(request.device)
    if request.device == "cuda":
        session.l2 = torch.cuda.get_device_properties().L2_cache_size
    measurements = tuple(rows(session, cases))
    machine = bench_machine.describe(request.device)  # now, while the clocks are still those of work
    wrong = tuple(row for row in measurements if row.complaints)
    host = () if wrong else tuple(host_costs(session, offered.host[request.device]))
    return Result(
        machine=machine,
        build=build_of(kernel),
        measurements=wrong or measurements,
        host=host,
        missing=session.missing,
        notes=offered.notes,
    )


def threads_of(request: Request, cores: int) -> tuple[int | None, ...]:
    """As asked; by default one thread, then all. A GPU knows no such number."""
    if request.device == "cuda":
        return (None,)
    return tuple(dict.fromkeys(request.threads or (1, cores)))


def build_of(kernel: ModuleType) -> dict[str, Any]:
    """Which variant was loaded, and from which commit it was built."""
    assert kernel.__file__ is not None
    folder = Path(kernel.__file__).parent
    metadata = official.metadata_of(folder) or {}
    origin = (metadata.get("provenance") or {}).get("kernel") or {}
    return {
        "variant": folder.name,
        "profile": (metadata.get("kernelworks") or {}).get("profile"),
        "commit": origin.get("commit"),
        "dirty": origin.get("dirty"),
    }


def main(request: str, result: str) -> int:
    """Read what is asked, and leave what was found; an error is a sentence, as in the command itself."""
    asked = json.loads(Path(request).read_text())
    asked = {name: tuple(value) if isinstance(value, list) else value for name, value in asked.items()}
    try:
        found = execute(Request(**asked))
    except KernelworksError as error:
        print(f"error: {error}", flush=True)
        return error.exit_code
    Path(result).write_bytes(pickle.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
