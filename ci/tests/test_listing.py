# SPDX-License-Identifier: Apache-2.0
"""The table of kernels and builds, for a pipe and for a terminal."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from repositories import CPU_VARIANT, git
from rich.console import Console

from kernelworks import catalog, listing, loader


def lines(root: Path, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    assert listing.run(argparse.Namespace(root=root, names=[])) == 0
    return [line.split("  ") for line in capsys.readouterr().out.splitlines()]


def test_a_kernel_without_a_build_says_how_to_get_one(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, row = lines(repository, capsys)
    assert header[0] == "kernel"
    assert row[0].strip() == "toy"
    assert row[-1].strip() == "run kernelworks build toy"


def test_a_build_is_shown_with_its_origin(built_once: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = listing.rows(catalog.load(built_once, "toy"))
    assert (row.kernel, row.version, row.variant) == ("toy", "1", CPU_VARIANT)
    assert (row.profile, row.archs) == ("dev", "-")
    assert row.commit == git(built_once, "rev-parse", "HEAD")[:12]
    assert CPU_VARIANT in "".join(lines(built_once, capsys)[1])


def test_archs_and_changes_are_shown(built: Path) -> None:
    path = built / "kernels/toy/build" / CPU_VARIANT / "metadata.json"
    metadata = json.loads(path.read_text())
    metadata["backend"] = {"type": "cuda", "archs": ["8.0", "9.0+PTX"]}
    metadata["provenance"]["kernel"]["dirty"] = True
    path.write_text(json.dumps(metadata))
    (row,) = listing.rows(catalog.load(built, "toy"))
    assert row.archs == "8.0 9.0+PTX"
    assert row.commit.endswith(" + changes")


def test_a_directory_without_metadata_is_no_reason_to_fail(repository: Path) -> None:
    (repository / "kernels/toy/build" / CPU_VARIANT).mkdir(parents=True)
    (row,) = listing.rows(catalog.load(repository, "toy"))
    assert (row.version, row.profile, row.commit) == ("-", "-", "-")


def test_columns_are_aligned_and_never_wrapped() -> None:
    row = listing.Row("k", "1", "v" * 300, "dev", "-", "-", loader.LOADED)
    header, line = listing.plain([row])
    assert header.index("here") == line.index(loader.LOADED)


@pytest.mark.parametrize("width", [200, 60])
def test_a_terminal_gets_every_name_whole(width: int) -> None:
    row = listing.Row("toy", "1", CPU_VARIANT, "dev", "-", "-", loader.LOADED)
    console = Console(width=width, force_terminal=True)
    with console.capture() as captured:
        listing.show([row], console)
    assert CPU_VARIANT in captured.get()
    assert ("─" in captured.get()) == (width == 200)
