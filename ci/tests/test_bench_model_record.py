# SPDX-License-Identifier: Apache-2.0
"""A model's record works out what it says, and survives being written and read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_model_records import measured, model_record, profile, tokens, work
from bench_records import measurement, record

from kernelworks import bench_read
from kernelworks.bench_model_record import BOTH, COMPILE, EAGER, KERNELS
from kernelworks.errors import RepositoryError


def test_ratios_are_of_medians_and_above_one_when_faster() -> None:
    step = work()
    assert step.ratio(KERNELS, EAGER) == 2.0
    assert step.ratio(BOTH, COMPILE) == pytest.approx(40 / 24)
    assert step.ratio(EAGER, EAGER) is None
    assert tokens().ratio(KERNELS, COMPILE) is None


def test_what_stays_and_what_waits() -> None:
    step = work().variants[EAGER]
    assert step.profile is not None
    assert step.profile.floor == 25.0
    assert step.idle == 5.0  # 60 by the clock, 55 on the device
    assert measured(50.0, profile(matmul=25.0, copies=30.0)).idle == 0.0  # never less than nothing
    assert measured(50.0).idle is None


def test_one_failure_is_no_correct_record() -> None:
    assert model_record().correct
    assert not model_record(failures={"compile at step": "RuntimeError: no"}).correct
    assert not model_record(work(variants={}), failures={"eager at step": "no"}).correct


def test_a_record_survives(tmp_path: Path) -> None:
    written = model_record(work(), tokens(), failures={"compile at decode": "RuntimeError: no"})
    path = tmp_path / "record.json"
    path.write_text(written.to_json())
    assert bench_read.is_model(path)
    assert bench_read.read_model(path) == written
    (step, decode) = json.loads(path.read_text())["works"]
    assert step["variants"]["kernels"]["vs_eager"] == 2.0
    assert step["variants"]["kernels+compile"]["vs_compile"] == pytest.approx(1.66667)
    assert step["variants"]["eager"]["floor"] == 25.0
    assert decode["variants"]["kernels"]["distance"]["agreement"]["diverges"] == 9


def test_the_two_kinds_are_not_taken_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(model_record().to_json())
    with pytest.raises(RepositoryError, match="is the record of a model"):
        bench_read.read(path)
    path.write_text(record(measurement()).to_json())
    assert not bench_read.is_model(path)
    with pytest.raises(RepositoryError, match="is not the record of a model"):
        bench_read.read_model(path)
