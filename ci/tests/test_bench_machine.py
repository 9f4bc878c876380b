# SPDX-License-Identifier: Apache-2.0
"""The machine, described."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch

from kernelworks import bench_machine
from kernelworks.errors import ToolchainError
from kernelworks.process import Completed


def test_a_cpu_has_no_gpu_but_a_name_and_versions() -> None:
    machine = bench_machine.describe("cpu")
    assert (machine.gpu, machine.driver, machine.clocks) == (None, None, {})
    assert machine.torch == torch.__version__
    assert machine.python == platform.python_version()
    assert machine.cores >= 1
    assert machine.cpu


def test_the_cpu_says_its_name(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nmodel name : Some CPU: fast\nmodel name : Other\n")
    assert bench_machine.cpu_model(info).startswith("Some CPU: fast (")
    assert bench_machine.cpu_model(tmp_path / "missing").endswith(")")


def test_the_driver_and_the_clocks_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        uuid = "1234"

    answers = ["580.1", "1980 MHz", "3201 MHz", "1980 MHz", "3201 MHz", "700 W", "700 W", "50"]
    seen: list[list[str]] = []

    def answer(argv: list[str]) -> Completed:
        seen.append(argv)
        return Completed(tuple(argv), 0, ", ".join(answers) + "\n", "")

    monkeypatch.setattr(torch.cuda, "get_device_properties", Properties)
    monkeypatch.setattr(bench_machine, "run", answer)
    found = bench_machine.nvidia_smi()
    assert (found["driver_version"], found["clocks.sm"], len(found)) == ("580.1", "1980 MHz", 8)
    assert "--id=GPU-1234" in seen[0]
    answers.pop()
    assert bench_machine.nvidia_smi() == {}

    def absent(argv: list[str]) -> Completed:
        raise ToolchainError("cannot start nvidia-smi")

    monkeypatch.setattr(bench_machine, "run", absent)
    assert bench_machine.nvidia_smi() == {}
