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
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from kernels import get_kernel  # type: ignore[attr-defined]

from kernelworks import bench_case, bench_machine, bench_timing, bench_trial, official
from kernelworks.bench_record import HostCost, Measurement, Request, Result
from kernelworks.errors import KernelworksError

if TYPE_CHECKING:
    from kernelworks.bench_case import Case


def forget_compiled() -> None:
    """Else dynamo gives up on the ninth shape, and what should be compiled runs eagerly, unseen."""
    if "torch._dynamo" in sys.modules:  # seconds to import, for nothing where nothing is compiled
        torch.compiler.reset()


def measure(session: bench_trial.Session, case: Case, dtype_name: str, threads: int | None) -> Measurement:
    """One row: verified, and only when all of it is right, timed."""
    dtype = getattr(torch, dtype_name)
    forget_compiled()
    on_gpu = threads is None
    prepare = bench_trial.on_cuda if on_gpu else bench_trial.on_cpu
    budget = math.inf if on_gpu else bench_timing.CPU_BUDGET
    trial = prepare(session, case, dtype, f"{case.label} {dtype_name}")
    right = not any(error.complaint for each in trial.errors.values() for error in each)
    samples, apart = bench_trial.timed(trial, session.request.repeats, budget) if right else ({}, {})
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
        samples=samples,
        apart=apart,
    )


def rows(session: bench_trial.Session, cases: tuple[Case, ...]) -> Iterator[Measurement]:
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


def host_costs(session: bench_trial.Session, cases: tuple[Case, ...]) -> Iterator[HostCost]:
    """What calls cost the host."""
    dtype_name = session.request.dtypes[0]
    for case in cases:
        forget_compiled()
        (inputs,) = bench_trial.inputs_of(case, session.request, getattr(torch, dtype_name), 1)
        with torch.no_grad():
            calls = session.calls(case, f"{case.label} {dtype_name}", inputs)
            samplers = bench_timing.host_samplers(calls, inputs)
            samples = bench_timing.interleaved(samplers, bench_timing.HOST_SAMPLES)
        yield HostCost(case.name, case.shape, dtype_name, {who: tuple(each) for who, each in samples.items()})


def execute(request: Request) -> Result:
    """Load, verify and time all that is asked for."""
    offered = bench_case.read(Path(request.file))
    cases = bench_case.select(offered, request.suites, request.shapes)
    kernel = get_kernel(request.repo_id, version=request.version, backend=request.device)
    session = bench_trial.Session(
        request,
        kernel,
        bench_case.peer_names(cases, request.peers),
        threads_of(request, bench_machine.cores()),
        offered.peers,
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
        notes={name: peer.note for name, peer in offered.peers.items() if peer.note is not None},
        rounding={name: peer.rounding for name, peer in offered.peers.items() if peer.rounding is not None},
        packages={
            name: bench_machine.installed(offered.peers[name].packages)
            for name in session.peers
            if name in offered.peers and name not in session.missing
        },
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
