# SPDX-License-Identifier: Apache-2.0
"""LTX-Video, tiny, as it is measured: the variants are what their names say, on the same weights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("diffusers")

import example_models

from kernelworks import bench_model, bench_model_ltx, bench_model_measure, bench_model_work
from kernelworks.bench_model_record import BOTH, EAGER, KERNELS, VARIANTS, ModelRequest

WANTED = (EAGER, KERNELS, BOTH)  # what is compiled without kernels takes as long again, and shows no more
REQUEST = ModelRequest("ltx", "tiny", "cpu", "bfloat16", WANTED, quick=True, repos={}, version=1)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Graphs are traced and not compiled further, which takes minutes; one thread."""
    monkeypatch.setitem(bench_model_work.COMPILE_OPTIONS, "backend", "eager")
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    with example_models.OneThread():
        yield


def test_the_kernels_are_those_of_the_example() -> None:
    assert set(bench_model.KERNELS_OF["ltx"]) == set(bench_model_ltx.NAMES)


def test_variants_do_all_work_right() -> None:
    kernels = example_models.load(bench_model_ltx.NAMES)
    prepared = bench_model_ltx.prepare(REQUEST, kernels)
    assert prepared.settings["latent tokens"] == 18
    assert prepared.replaced["rms_norm_rope3d"] == 2
    run = bench_model_measure.measure(prepared, "cpu", WANTED)
    assert run.failures == {}  # and so each shows what makes it that variant
    step, pipeline = bench_model_measure.results(prepared, run)
    assert tuple(step.variants) == tuple(pipeline.variants) == WANTED
    for name in (KERNELS, BOTH):
        far = step.variants[name].distance
        assert far.truth is not None
        assert far.truth > 0
        assert pipeline.variants[name].distance.truth is None
        # Thirty steps of a model that nobody trained may add up; four do not go far.
        assert (pipeline.variants[name].distance.eager or 0) < 0.1
    assert step.variants[EAGER].distance.eager is None
    # The pipeline gives the transformer what the step gave it, or it would compile again.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_variants_share_weights_and_nothing_else() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    put_in = []
    found = bench_model_work.variants_of(model, VARIANTS, put_in.append)
    assert found[EAGER] is model
    assert tuple(found) == VARIANTS
    assert len(put_in) == 1
    assert len({id(each) for each in found.values()}) == 4
    for other in found.values():
        for mine, its in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
            assert mine.data_ptr() == its.data_ptr()
    found[KERNELS].register_forward_hook(lambda *_: None)
    assert not model._forward_hooks


def test_the_truth_is_wider_and_of_the_same_weights() -> None:
    model = torch.nn.Linear(4, 4).bfloat16()
    wide = bench_model_work.widened(model)
    assert wide.weight.dtype == torch.float32
    assert torch.equal(wide.weight, model.weight.float())
    assert model.weight.dtype == torch.bfloat16
    assert bench_model_work.widened(torch.nn.Linear(4, 4)).weight.dtype == torch.float64
    assert bench_model_work.as_wide(torch.ones(1, dtype=torch.int64), torch.bfloat16).dtype == torch.int64
