# SPDX-License-Identifier: Apache-2.0
"""Qwen3, tiny, as it is measured: the variants are what their names say, and choose the same tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("transformers")

import example_models

from kernelworks import bench_model, bench_model_measure, bench_model_qwen3, bench_model_work
from kernelworks.bench_model_record import BOTH, EAGER, KERNELS, ModelRequest

WANTED = (EAGER, KERNELS, BOTH)  # what is compiled without kernels takes as long again, and shows no more
REQUEST = ModelRequest("qwen3", "tiny", "cpu", "float32", WANTED, quick=True, repos={}, version=1)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Graphs are traced and not compiled further, which takes minutes; one thread."""
    monkeypatch.setitem(bench_model_work.COMPILE_OPTIONS, "backend", "eager")
    torch.compiler.reset()
    with example_models.OneThread():
        yield


def test_the_kernels_are_those_of_the_example() -> None:
    assert set(bench_model.KERNELS_OF["qwen3"]) == set(bench_model_qwen3.NAMES)


def test_variants_do_all_work_right() -> None:
    kernels = example_models.load(bench_model_qwen3.NAMES)
    prepared = bench_model_qwen3.prepare(REQUEST, kernels)
    assert prepared.replaced == {"add_rms_norm": 8, "rms_norm": 1, "rms_norm_rope3d": 4}
    run = bench_model_measure.measure(prepared, "cpu", WANTED)
    assert run.failures == {}  # and so each shows what makes it that variant
    prefill, decode = bench_model_measure.results(prepared, run)
    assert tuple(prefill.variants) == tuple(decode.variants) == WANTED
    for name, measured in decode.variants.items():
        far = measured.distance
        assert far.truth is not None
        assert 0 < far.truth < 1e-5
        assert far.agreement is not None
        assert (far.agreement.same, far.agreement.positions, far.agreement.diverges) == (8, 8, None)
        # A token's step is profiled without the reading of the prompt.
        shown = measured.profile
        assert shown is not None
        assert shown.groups.keys() >= ({"kernelworks rope3d"} if name in (KERNELS, BOTH) else {"matmul"})
    rotated = [share for share in decode.variants[KERNELS].profile.top if "rms_norm_rope3d" in share.name]
    assert [share.calls for share in rotated] == [4]
    assert decode.units == 7


def test_a_kernel_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One norm in nine whose weights are not read."""
    kernels = example_models.load(bench_model_qwen3.NAMES)
    request = ModelRequest(
        "qwen3", "tiny", "cpu", "float32", (EAGER, KERNELS), quick=True, repos={}, version=1
    )
    inject = bench_model_qwen3.inject

    def wrong(model: torch.nn.Module, given: object) -> object:
        done = inject(model, given)
        norm = model.model.norm
        norm.weight = torch.nn.Parameter(torch.ones_like(norm.weight))
        return done

    monkeypatch.setattr(bench_model_qwen3, "inject", wrong)
    run = bench_model_measure.measure(bench_model_qwen3.prepare(request, kernels), "cpu", request.variants)
    assert "from the truth where" in run.failures["kernels at prefill"]
    assert ("prefill", KERNELS) not in run.samples
    assert ("prefill", EAGER) in run.samples
