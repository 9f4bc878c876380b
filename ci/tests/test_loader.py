# SPDX-License-Identifier: Apache-2.0
"""What the Hub's loader would do on this machine, asked of the loader itself."""

from __future__ import annotations

from pathlib import Path

from repositories import CPU_VARIANT

from kernelworks import catalog, loader


def test_each_variant_has_a_verdict(repository: Path) -> None:
    foreign, future = "torch-stable-abi211-cpu-s390x-linux", "torch-stable-abi299-cpu-x86_64-linux"
    for name in (CPU_VARIANT, foreign, future, "notes"):
        (repository / "kernels/toy/build" / name).mkdir(parents=True)
    kernel = catalog.load(repository, "toy")
    verdicts = {each.variant: each.verdict for each in loader.decisions(kernel, "cpu")}
    assert verdicts[CPU_VARIANT] == loader.LOADED
    assert verdicts[foreign].startswith("CPU (s390x) does not match system CPU")
    assert verdicts[future].startswith("Torch stable ABI version (2.99) is too new")
    assert verdicts["notes"] == "not the name of a variant"


def test_the_second_best_says_which_is_better(repository: Path) -> None:
    older = CPU_VARIANT.replace("211", "210")
    for name in (CPU_VARIANT, older):
        (repository / "kernels/toy/build" / name).mkdir(parents=True)
    decisions = loader.decisions(catalog.load(repository, "toy"), "cpu")
    assert {each.variant: each.verdict for each in decisions} == {
        CPU_VARIANT: loader.LOADED,
        older: f"{CPU_VARIANT} is preferred",
    }


def test_without_a_build_nothing_loads(repository: Path) -> None:
    assert not loader.loads(catalog.load(repository, "toy"), "cpu")
