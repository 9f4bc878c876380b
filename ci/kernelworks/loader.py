# SPDX-License-Identifier: Apache-2.0
"""Which variant the Hub's loader takes, here or on a system that is only described, and why not the others.

Every use of `kernels.variants` and `kernels.backends` is here: they are no documented interface.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from kernels.backends import CPU, CUDA  # type: ignore[import-untyped]
from kernels.variants import (  # type: ignore[import-untyped]
    _resolve_variant_for_system,
    get_variants_local,
    parse_variant,
    resolve_variants,
)
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from kernelworks.catalog import Kernel

LOADED = "loads"


@dataclass(frozen=True)
class Decision:
    """What the loader does with one directory under build/."""

    variant: str
    verdict: str  # LOADED for the one it takes, otherwise the reason why it does not

    @property
    def is_loaded(self) -> bool:
        return self.verdict == LOADED


@dataclass(frozen=True)
class System:
    """What decides on the choice; versions are (major, minor)."""

    torch: tuple[int, int]
    cuda: tuple[int, int] | None  # what torch was built for; None: the CPU
    machine: str  # x86_64, aarch64
    python: tuple[int, int]
    free_threaded: bool = False  # a Python without its lock

    def __str__(self) -> str:
        build = f"CUDA {_dotted(self.cuda)}" if self.cuda else "the CPU"
        python = f"Python {_dotted(self.python)}{'t' if self.free_threaded else ''}"
        return f"torch {_dotted(self.torch)} for {build}, {self.machine}, {python}"


def decisions(kernel: Kernel, backend: str | None = None) -> list[Decision]:
    """The loader's word on every variant, when asked for this backend or for none in particular."""
    folders = sorted(path.name for path in (kernel.directory / "build").glob("*") if path.is_dir())
    known = get_variants_local(kernel.directory / "build")
    return _told(folders, *resolve_variants(known, backend))


def fitting(names: Iterable[str]) -> str | None:
    """The one among variants of these names that this machine loads; other names are passed over."""
    known = []
    for name in names:
        try:
            known.append(parse_variant(name))
        except ValueError:
            continue
    accepted, _ = resolve_variants(known, None)
    return accepted[0].variant_str if accepted else None


def sees_gpu() -> bool:
    """Whether tensors can live on a CUDA GPU here, which takes a torch built for it besides the driver."""
    import torch  # here, because it takes seconds and most commands need none of it

    return torch.version.cuda is not None and torch.cuda.is_available()


def loads(kernel: Kernel, backend: str | None = None) -> bool:
    """Whether anything was built that this machine can load."""
    return any(decision.is_loaded for decision in decisions(kernel, backend))


def simulate(names: Iterable[str], system: System) -> list[Decision]:
    """The loader's word on variants of these names on a system that need not be at hand.

    Of Python the loader asks nothing: whether it runs there at all, its own metadata say.
    """
    known = [parse_variant(name) for name in names]
    obstacle = _obstacle(system)
    if obstacle is not None:
        return [Decision(each.variant_str, obstacle) for each in known]
    accepted, trace = _resolve_variant_for_system(
        known,
        CPU() if system.cuda is None else CUDA(Version(_dotted(system.cuda))),
        system.machine,
        "linux",
        Version(_dotted(system.torch)),
        torch_cxx11_abi=True,  # as every torch for Linux since 2.7
        tvm_ffi_version=None,
    )
    return _told([each.variant_str for each in known], accepted, trace)


def _obstacle(system: System) -> str | None:
    wanted, python = str(metadata.metadata("kernels")["Requires-Python"]), _dotted(system.python)
    if python not in SpecifierSet(wanted):
        return f"kernels {metadata.version('kernels')} needs Python {wanted}, and that is {python}"
    if system.free_threaded and system.python < (3, 15):
        return f"free-threaded Python {python} has no stable ABI; 3.15 is the first that has"
    return None


def _told(names: Iterable[str], accepted: list[Any], trace: list[Any]) -> list[Decision]:
    verdicts = {each.variant.variant_str: getattr(each, "reason", "") for each in trace}
    verdicts |= {
        each.variant_str: LOADED if place == 0 else f"{accepted[0].variant_str} is preferred"
        for place, each in enumerate(accepted)
    }
    return [Decision(name, verdicts.get(name, "not the name of a variant")) for name in names]


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
