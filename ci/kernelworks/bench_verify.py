# SPDX-License-Identifier: Apache-2.0
"""Compares what is about to be timed with fp64, and says what is wrong with it.

Two bounds, because each alone lets something through: the largest error, which finds a single wrong value,
and the error of the whole relative to its size, which finds a result that is one per cent off in a dtype
where one per cent is little more than a unit in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import torch

from kernelworks.bench_case import Case
from kernelworks.bench_record import Error

# Largest error allowed, in ulps. Ours rounds once: half an ulp, and a little for the accumulation; a
# gradient, measured against the largest of its row, the same again. A peer may round between its steps.
OURS_ULPS = {"value": 1.0, "row": 2.0, "sum": 2.0}
PEER_ULPS = {"value": 3.0, "row": 8.0, "sum": 8.0}
# Error of the whole, relative, in eps of the dtype: one rounding leaves a quarter of an eps, or less.
OURS_OVERALL, PEER_OVERALL = 0.5, 0.75
# What fp32 accumulation may cost, relative: rows of up to 65,536 terms, and sums over up to 262,144 rows.
SLACK = {"value": 1e-5, "row": 1e-5, "sum": 1e-4}
CHUNK = 1 << 24  # elements that are held in fp64 at a time
SAMPLE = {"cpu": 1 << 22, "cuda": 1 << 40}  # elements compared; on a CPU more takes longer than the timing


def ulp(magnitude: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The spacing of `dtype` at these fp64 magnitudes; below the normal numbers, that of the smallest one."""
    finfo = torch.finfo(dtype)
    normal = magnitude.clamp_min(finfo.tiny)
    mantissa, _ = torch.frexp(normal)
    return normal / mantissa * (finfo.eps / 2)  # exact, as a power of two from pow() need not be


def as_outputs(result: Any) -> tuple[torch.Tensor, ...]:
    """The outputs of a call, always as a tuple, and without their gradients' history."""
    outputs = result if isinstance(result, tuple) else (result,)
    return tuple(output.detach() for output in outputs)


def poison(outputs: Sequence[torch.Tensor]) -> None:
    """Fill with NaN, so that an output that is not written cannot look right."""
    for output in outputs:
        output.detach().fill_(math.nan)


def row_chunks(case: Case, device: str) -> Iterator[torch.Tensor | slice]:
    """The rows to compare, as much of them at a time as fits: all, or an even sample with first and last."""
    width = case.shape[-1]
    rows = math.prod(case.shape[:-1])
    step = max(1, CHUNK // width)
    wanted = max(2, SAMPLE[device] // width)
    # A sum over rows cannot be compared without all of them.
    if "sum" in case.outputs.values() or rows <= wanted:
        yield from (slice(first, min(first + step, rows)) for first in range(0, rows, step))
    else:
        sample = torch.linspace(0, rows - 1, wanted, dtype=torch.float64, device=device).round().long()
        yield from torch.split(sample, step)


def errors(
    case: Case,
    kernel: ModuleType,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    *,
    ours: bool,
) -> list[Error]:
    """Compare each output of one call with the truth."""
    if wrong := _wrong_form(case, inputs, outputs):
        return [Error("outputs", math.inf, math.inf, math.inf, math.inf, 0, wrong)]
    tallies = [_Tally(name, kind) for name, kind in case.outputs.items()]
    actual = [
        output if tally.kind == "sum" else output.reshape(math.prod(case.shape[:-1]), -1)
        for tally, output in zip(tallies, outputs, strict=True)
    ]
    sums: dict[str, torch.Tensor] = {}
    rows = 0
    for chunk in row_chunks(case, inputs[0].device.type):
        truths = case.truth(kernel, chunk, *inputs)
        rows += len(range(chunk.start, chunk.stop)) if isinstance(chunk, slice) else len(chunk)
        for tally, output, truth in zip(tallies, actual, truths, strict=True):
            if tally.kind == "sum":
                sums[tally.name] = sums[tally.name] + truth if tally.name in sums else truth
            else:
                chosen = output[chunk]
                tally.add(chosen, truth.double().reshape(chosen.shape), chunk)
    for tally, output in zip(tallies, actual, strict=True):
        if tally.kind == "sum":
            tally.add(output, sums[tally.name], None)
    return [tally.error(output, rows, ours=ours) for tally, output in zip(tallies, actual, strict=True)]


def _wrong_form(case: Case, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> str | None:
    if len(outputs) != len(case.outputs):
        return f"{len(outputs)} outputs instead of {len(case.outputs)}"
    for output, name, wanted in zip(outputs, case.outputs, case.wanted_shapes, strict=True):
        if tuple(output.shape) != wanted or output.dtype != inputs[0].dtype:
            return (
                f"{name} is {output.dtype} of shape {tuple(output.shape)}, "
                f"not {inputs[0].dtype} of shape {wanted}"
            )
    return None


class _Tally:
    """Gathers the error of one output over the chunks."""

    def __init__(self, name: str, kind: str) -> None:
        self.name, self.kind = name, kind
        self.ulps = self.relative = self.absolute = self.error_squared = self.truth_squared = 0.0
        self.worst = ""

    def add(self, actual: torch.Tensor, truth: torch.Tensor, chunk: torch.Tensor | slice | None) -> None:
        error = (actual.double() - truth).abs()
        magnitude = truth.abs()
        if self.kind != "value":
            magnitude = magnitude.amax(-1, keepdim=True).expand_as(truth)
        counted = (error / ulp(magnitude, actual.dtype)).nan_to_num(nan=math.inf)
        place = int(counted.argmax())
        largest = float(counted.flatten()[place])
        if largest >= self.ulps:
            row, column = divmod(place, actual.shape[-1])
            where = "" if chunk is None else f"row {_row(chunk, row)}, "
            got, wanted = float(actual.flatten()[place]), float(truth.flatten()[place])
            self.worst = f"{got:.6g} instead of {wanted:.6g} at {where}column {column}"
        self.ulps = max(self.ulps, largest)
        relative = error / magnitude.clamp_min(torch.finfo(actual.dtype).tiny)
        self.relative = max(self.relative, _finite_or_inf(relative.max()))
        self.absolute = max(self.absolute, _finite_or_inf(error.max()))
        self.error_squared += _finite_or_inf(error.square().sum())
        self.truth_squared += float(truth.square().sum())

    def error(self, output: torch.Tensor, rows: int, *, ours: bool) -> Error:
        overall = math.sqrt(self.error_squared / max(self.truth_squared, 1e-300))
        finfo = torch.finfo(output.dtype)
        allowed_ulps = (OURS_ULPS if ours else PEER_ULPS)[self.kind] + SLACK[self.kind] / finfo.eps
        allowed = (OURS_OVERALL if ours else PEER_OVERALL) * finfo.eps + SLACK[self.kind]
        complaint = None
        if not bool(torch.isfinite(output).all()):
            count = int((~torch.isfinite(output)).sum())
            complaint = f"{self.name} has {count} values of {output.numel()} that are not finite"
        elif self.ulps > allowed_ulps or overall > allowed:
            complaint = (
                f"{self.name} is {self.ulps:.3g} ulp from fp64 where {allowed_ulps:.3g} is allowed, "
                f"and {overall:.2e} of its size where {allowed:.2e} is; {self.worst}"
            )
        return Error(self.name, self.ulps, self.relative, self.absolute, overall, rows, complaint)


def _row(chunk: torch.Tensor | slice, row: int) -> int:
    return int(chunk.start) + row if isinstance(chunk, slice) else int(chunk[row])


def _finite_or_inf(value: torch.Tensor) -> float:
    number = float(value)
    return number if math.isfinite(number) else math.inf
