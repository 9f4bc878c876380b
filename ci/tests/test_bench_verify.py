# SPDX-License-Identifier: Apache-2.0
"""A wrong kernel does not pass: scaled, NaN, stale, one value, the wrong dtype; and a right one does."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from bench_records import RMSNORM, rmsnorm

from kernelworks import bench_case, bench_trial, bench_verify
from kernelworks.bench_case import Case
from kernelworks.bench_record import Error, Request

FILE = RMSNORM / "benchmarks/benchmark_rmsnorm.py"
CASES = {case.label: case for case in bench_case.read(FILE).cases}
SMOKE = [case for case in CASES.values() if case.suite == bench_case.SMOKE]
DTYPES = ("float32", "float16", "bfloat16")


def checked(case: Case, dtype: str, kernel: Any) -> tuple[Error, ...]:
    """As the measuring process does it, on a CPU."""
    request = Request("", 1, "cpu", str(FILE), (), (dtype,), None, (1,), 1)
    session = bench_trial.Session(request, kernel, (), (1,))
    with torch.set_grad_enabled(case.grad):
        sets = bench_trial.inputs_of(case, request, getattr(torch, dtype), 2)
        return bench_trial.verified_on_cpu(session, case, case.ours(kernel), sets, ours=True)


def complaints(case: Case, dtype: str, change: Any) -> str:
    return "; ".join(error.complaint for error in checked(case, dtype, rmsnorm(change)) if error.complaint)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", SMOKE, ids=lambda case: case.label)
def test_a_right_result_passes_with_its_error(case: Case, dtype: str) -> None:
    found = checked(case, dtype, rmsnorm())
    assert [error.complaint for error in found] == [None] * len(case.outputs)
    assert [error.output for error in found] == list(case.outputs)
    assert all(0 < error.overall < error.relative or error.relative == 0 for error in found)
    if dtype != "float32":
        assert 0.4 < found[0].ulps <= 0.51


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", SMOKE, ids=lambda case: case.label)
def test_one_per_cent_off_is_wrong(case: Case, dtype: str) -> None:
    assert complaints(case, dtype, lambda y, calls: y * 1.01).startswith(("y is ", "q is "))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_is_wrong_wherever_it_is(dtype: str) -> None:
    def change(y: torch.Tensor, calls: int) -> torch.Tensor:
        y[..., 3, 1] = math.nan
        return y

    assert "y has 2 values of 65536 that are not finite" in complaints(
        CASES["LTX-Video 2x16x2048"], dtype, change
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_result_for_earlier_inputs_is_wrong(dtype: str) -> None:
    first: list[torch.Tensor] = []

    def change(y: torch.Tensor, calls: int) -> torch.Tensor:
        first.append(y)
        return first[0].clone()

    assert "y is " in complaints(CASES["LTX-Video 2x16x2048"], dtype, change)


def test_one_wrong_value_is_named() -> None:
    def change(y: torch.Tensor, calls: int) -> torch.Tensor:
        y[1, 15, 2047] = 100.0
        return y

    found = complaints(CASES["LTX-Video 2x16x2048"], "bfloat16", change)
    assert "100 instead of" in found
    assert found.endswith("at row 31, column 2047")


def test_the_wrong_dtype_is_wrong() -> None:
    kernel = rmsnorm()
    kernel.rms_norm = lambda x, weight, eps: x.float()
    (found,) = checked(CASES["qk-norm 256x64"], "bfloat16", kernel)
    assert found.complaint == ("y is torch.float32 of shape (256, 64), not torch.bfloat16 of shape (256, 64)")


def test_outputs_have_the_shapes_that_the_file_says() -> None:
    case = CASES["qk views 8x6144"]
    assert [error.complaint for error in checked(case, "bfloat16", rmsnorm())] == [None, None]
    kernel = rmsnorm()
    right = kernel.rms_norm
    kernel.rms_norm = lambda x, weight, eps: right(x, weight, eps).flatten(1)
    (found,) = checked(case, "bfloat16", kernel)
    assert found.complaint is not None
    assert found.complaint.endswith("of shape (8, 4096), not torch.bfloat16 of shape (8, 32, 128)")


def test_a_large_case_is_sampled_with_first_and_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench_verify.SAMPLE, "cpu", 64 * 10)
    (sample,) = bench_verify.row_chunks(CASES["qk-norm 256x64"], "cpu")
    assert isinstance(sample, torch.Tensor)
    assert (int(sample[0]), int(sample[-1]), len(sample)) == (0, 255, 10)
    # A sum over rows needs them all.
    chunks = list(bench_verify.row_chunks(CASES["train 16x1024"], "cpu"))
    assert chunks == [slice(0, 16)]


def test_chunks_cover_every_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_verify, "CHUNK", 64 * 100)
    assert list(bench_verify.row_chunks(CASES["qk-norm 256x64"], "cpu")) == [
        slice(0, 100),
        slice(100, 200),
        slice(200, 256),
    ]


def test_gradients_are_summed_over_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_verify, "CHUNK", 1024 * 5)
    assert [error.complaint for error in checked(CASES["train 16x1024"], "float32", rmsnorm())] == [None] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_an_ulp_is_the_distance_to_the_next_value(dtype: torch.dtype) -> None:
    values = torch.tensor([1.0, 1.5, 2.0, 3.0, 1000.0, 2.0**-10], dtype=dtype)
    following = torch.nextafter(values, torch.full_like(values, math.inf))
    assert torch.equal(bench_verify.ulp(values.double(), dtype), (following.double() - values.double()))
