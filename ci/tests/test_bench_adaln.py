# SPDX-License-Identifier: Apache-2.0
"""adaln's benchmark file: a wrong kernel does not pass in any kind of its work, and a right one does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from bench_records import ADALN, adaln

from kernelworks import bench_case, bench_trial, bench_verify
from kernelworks.bench_case import Case
from kernelworks.bench_record import Error, Request

FILE = ADALN / "benchmarks/benchmark_adaln.py"
OFFERED = bench_case.read(FILE)
SMOKE = {case.name: case for case in OFFERED.cases if case.suite == bench_case.SMOKE}
NORMS = [name for name in SMOKE if name != "gate"]


def checked(case: Case, call: Any, dtype: str, *, ours: bool = True) -> list[Error]:
    """As the measuring process does it, on a CPU."""
    request = Request("", 1, "cpu", str(FILE), (), (dtype,), None, (1,), 1)
    session = bench_trial.Session(request, adaln(), (), (1,))
    with torch.set_grad_enabled(case.grad):
        sets = bench_trial.inputs_of(case, request, getattr(torch, dtype), 2)
        return list(bench_trial.verified_on_cpu(session, case, call, sets, ours=ours))


def wrong(name: str, dtype: str = "bfloat16", **changes: Any) -> set[str]:
    """The outputs of the changed kernel that are not right."""
    case = SMOKE[name]
    return {error.output for error in checked(case, case.ours(adaln(**changes)), dtype) if error.complaint}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", SMOKE)
def test_a_right_kernel_and_the_expression_of_models_pass(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = SMOKE[name]
    monkeypatch.setattr(bench_verify, "CHUNK", case.shape[-1] * 9)  # no multiple of a sample's rows
    with torch.set_grad_enabled(case.grad):
        peer = case.peers["torch"]()
    for call, ours in ((case.ours(adaln()), True), (peer, False)):
        found = checked(case, call, dtype, ours=ours)
        assert [error.complaint for error in found] == [None] * len(case.outputs)
        assert [error.output for error in found] == list(case.outputs)


def test_the_truth_of_chosen_rows_is_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench_verify.SAMPLE, "cpu", 256 * 11)
    for name in ("rms", "gate", "fused layer", "Wan tables", "each token"):
        assert wrong(name) == set()


Function = Callable[..., Any]
Change = Callable[[torch.Tensor], torch.Tensor]


def given(place: int, change: Change) -> Callable[[Function], Function]:
    """The same function of other inputs: one of them is changed, or of a pair the second part."""

    def changed(right: Function) -> Function:
        def call(*inputs: Any, **choices: Any) -> Any:
            tensors = list(inputs)
            old = tensors[place]
            tensors[place] = (old[0], change(old[1])) if isinstance(old, tuple) else change(old)
            return right(*tensors, **choices)

        return call

    return changed


def another(modulator: torch.Tensor) -> torch.Tensor:
    """That of the other sample."""
    return modulator.flip(0)


def bend(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, whose gradient comes back one per cent larger."""
    wide = tensor.float() * 1.01
    return (wide + (tensor.float() - wide).detach()).to(tensor.dtype)


FLAWS: dict[str, Callable[[Function], Function]] = {
    "one per cent off": lambda right: lambda *inputs, **choices: 1.01 * right(*inputs, **choices),
    "the other norm": lambda right: (
        lambda *inputs, norm: right(*inputs, norm="rms" if norm == "layer" else "layer")
    ),
    "no shift": given(2, lambda shift: 0 * shift),
    "no one": given(1, lambda scale: scale - 1),
    "the scale of another": given(1, another),
    "the shift of another": given(2, another),
}


@pytest.mark.parametrize("flaw", FLAWS)
@pytest.mark.parametrize("name", NORMS)
def test_a_wrong_norm_is_found(name: str, flaw: str) -> None:
    assert "y" in wrong(name, ada_norm=FLAWS[flaw])


@pytest.mark.parametrize("name", ["gate", "fused rms", "train fused layer"])
def test_a_wrong_gate_is_found(name: str) -> None:
    assert "residual_out" in wrong(name, gate_residual=given(2, another))


@pytest.mark.parametrize("row", [0, 31])
def test_one_wrong_value_is_found(row: int) -> None:
    def planted(right: Function) -> Function:
        def call(*inputs: Any, **choices: Any) -> torch.Tensor:
            y = right(*inputs, **choices)
            y.view(-1, y.shape[-1])[row, 7] += 0.25
            return y

        return call

    assert wrong("rms", ada_norm=planted) == {"y"}


@pytest.mark.parametrize(("place", "output"), [(0, "dx"), (1, "dscale"), (2, "dshift")])
def test_a_wrong_gradient_is_found(place: int, output: str) -> None:
    assert wrong("train rms", ada_norm=given(place, bend)) == {output}


def test_a_gradient_of_one_sample_only_is_found() -> None:
    case = SMOKE["train rms"]
    right = case.ours(adaln())

    def call(*tensors: torch.Tensor) -> Any:
        y, dx, dscale, dshift = right(*tensors)
        return y, dx, dscale, dshift[:1].expand_as(dshift).clone()

    found = checked(case, call, "bfloat16")
    assert [error.output for error in found if error.complaint] == ["dshift"]


def test_modulators_are_slices_of_one_projection() -> None:
    generator = torch.Generator().manual_seed(0)
    for name, first in (("rms", 1), ("fused rms", 2), ("train fused layer", 2)):
        inputs = SMOKE[name].inputs((2, 16, 256), torch.bfloat16, "cpu", generator)
        for modulator in inputs[first : first + 2]:
            assert (modulator.shape, modulator.stride()) == ((2, 1, 256), (6 * 256, 6 * 256, 1))


def test_bytes_are_counted_once() -> None:
    samples, _, width = shape = (2, 16, 256)
    rows, each = math.prod(shape), samples * width
    wanted = {
        "rms": 2 * (2 * rows + 2 * each),
        "gate": 2 * (3 * rows + each),
        "fused layer": 2 * (4 * rows + 3 * each),
        "LTX tables": 2 * (2 * rows + 2 * each + 2 * width),
        "Wan tables": 2 * 2 * rows + 4 * (2 * each + 2 * width),
        "each token": 2 * 4 * rows,
        "train rms": 2 * (5 * rows + 5 * each),
        "train fused layer": 2 * (10 * rows + 8 * each),
    }
    assert {name: SMOKE[name].bytes(shape, 2) for name in wanted} == wanted


def test_every_suite_is_there() -> None:
    assert OFFERED.suites == ("rms", "layer", "gate", "fused", "tables", "train", "smoke")
    assert bench_case.peer_names(OFFERED.cases, None) == ("torch", "compile")
