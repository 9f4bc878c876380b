# SPDX-License-Identifier: Apache-2.0
"""What a kernel's benchmark file offers: its cases, and the peers that run beside the kernel."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kernelworks.catalog import BACKENDS, Kernel
from kernelworks.errors import RepositoryError

if TYPE_CHECKING:
    import torch

    Tensors = tuple[torch.Tensor, ...]
    Call = Callable[..., Any]  # the inputs to a tensor, or to a tuple of them

EVERYTHING = "all"
SMOKE = "smoke"  # tiny shapes that show that the benchmark works; not part of "all"
KINDS = ("value", "row", "sum")


@dataclass(frozen=True)
class Case:
    """One shape of one piece of work. The benchmark file says what each entry means for its kernel."""

    suite: str
    name: str
    shape: tuple[int, ...]
    inputs: Callable[..., Tensors]  # (shape, dtype, device, generator) to the tensors of one call
    ours: Callable[[ModuleType], Call]  # the loaded kernel to what is timed
    peers: Mapping[str, Callable[[], Call]]  # ImportError means missing
    truth: Callable[..., Tensors]  # (kernel, rows, *inputs) to the outputs in fp64, for these rows
    outputs: Mapping[str, str]  # the name of each output to its kind
    bytes: Callable[[tuple[int, ...], int], int]  # (shape, size of an element): each input and output once
    grad: bool = field(default=False)  # whether gradients are on while it runs
    output_shapes: Callable[[tuple[int, ...]], Sequence[tuple[int, ...]]] | None = field(default=None)

    @property
    def written_shape(self) -> str:
        return "x".join(map(str, self.shape))

    @property
    def label(self) -> str:
        return f"{self.name} {self.written_shape}"

    @property
    def wanted_shapes(self) -> tuple[tuple[int, ...], ...]:
        """What shape each output has: the case's, a sum over its rows, or what the file says."""
        if self.output_shapes is not None:
            return tuple(self.output_shapes(self.shape))
        return tuple(self.shape[-1:] if kind == "sum" else self.shape for kind in self.outputs.values())


@dataclass(frozen=True)
class Peer:
    """What must be known of a peer beside its calls."""

    note: str | None = field(default=None)  # how it differs, for the reader of the table
    rounding: str | None = field(default=None)  # how it rounds, where that is not as ours
    packages: tuple[str, ...] = field(default=())  # whose versions the record holds
    devices: tuple[str, ...] = field(default=BACKENDS)  # where it runs


@dataclass(frozen=True)
class CaseFile:
    """A whole benchmark file."""

    cases: tuple[Case, ...]
    peers: Mapping[str, Peer]  # those of which there is something to say
    host: Mapping[str, tuple[Case, ...]]  # by device: small ones, whose cost to the host is measured

    @property
    def suites(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(case.suite for case in self.cases))


def path_of(kernel: Kernel) -> Path:
    """A kernel's benchmark, where `kernels benchmark` finds it too."""
    path = kernel.directory / "benchmarks" / f"benchmark_{kernel.python_name}.py"
    if not path.is_file():
        raise RepositoryError(f"{path} does not exist, so there is nothing to measure; write it first")
    return path


def read(path: Path) -> CaseFile:
    """Import the file and check what it holds."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    entries = getattr(module, "CASES", ())
    if not entries:
        raise RepositoryError(f"{path}: CASES is missing or empty; it is a list of dicts, one for each shape")
    host = {
        device: _cases(
            path,
            [
                {**work, "suite": "host", "name": name, "shapes": shapes[device]}
                for name, (work, shapes) in getattr(module, "HOST", {}).items()
            ],
        )
        for device in BACKENDS
    }
    return CaseFile(
        cases=_cases(path, entries),
        peers={name: _peer(about) for name, about in getattr(module, "PEERS", {}).items()},
        host=host,
    )


def _peer(about: Mapping[str, Any]) -> Peer:
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in about.items()
    }
    return Peer(**values)


def _cases(path: Path, entries: Iterable[Mapping[str, Any]]) -> tuple[Case, ...]:
    """One case for each of the shapes, written as "4x1024x2048 1x128x4096", of each entry."""
    known = ["shapes" if each.name == "shape" else each.name for each in fields(Case)]
    needed = {"shapes", *(each.name for each in fields(Case) if each.default is MISSING)} - {"shape"}
    for index, entry in enumerate(entries):
        where = f"{path}: CASES[{index}]"
        if missing := sorted(needed - set(entry)):
            raise RepositoryError(f"{where} has no {', '.join(missing)}")
        if unknown := sorted(set(entry) - set(known)):
            raise RepositoryError(f"{where} has {', '.join(unknown)}, which is none of {', '.join(known)}")
        if strange := sorted(set(entry["outputs"].values()) - set(KINDS)):
            raise RepositoryError(f"{where}: outputs are {', '.join(KINDS)}, not {', '.join(strange)}")
    return tuple(
        Case(shape=tuple(map(int, shape.split("x"))), **_without(entry, "shapes"))
        for entry in entries
        for shape in entry["shapes"].split()
    )


def _without(entry: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != name}


def select(offered: CaseFile, suites: Sequence[str], shapes: Sequence[str] = ()) -> tuple[Case, ...]:
    """The cases of these suites and shapes; "all" is every suite but the smoke test, no shape is all."""
    for suite in suites:
        if suite not in (EVERYTHING, *offered.suites):
            raise RepositoryError(
                f"no suite {suite!r}; there is {', '.join(offered.suites)} and {EVERYTHING}"
            )
    found = tuple(
        case
        for case in offered.cases
        if case.suite in suites or (EVERYTHING in suites and case.suite != SMOKE)
    )
    there = dict.fromkeys(case.written_shape for case in found)
    if strange := [shape for shape in shapes if shape not in there]:
        raise RepositoryError(f"no case has the shape {strange[0]}; there is {', '.join(there)}")
    return tuple(case for case in found if not shapes or case.written_shape in shapes)


def peer_names(cases: Iterable[Case], wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The peers to run, in order: those asked for, or all that the file has."""
    offered = dict.fromkeys(name for case in cases for name in case.peers)
    return tuple(dict.fromkeys(wanted)) if wanted is not None else tuple(offered)
