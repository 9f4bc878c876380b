# SPDX-License-Identifier: Apache-2.0
"""Which built variant the Hub's loader takes on this machine, and why not the others.

Every use of `kernels.variants` is here, as it is no documented interface of that package.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernels.variants import (  # type: ignore[import-untyped]
    get_variants_local,
    parse_variant,
    resolve_variants,
)

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


def decisions(kernel: Kernel, backend: str | None = None) -> list[Decision]:
    """The loader's word on every variant, when asked for this backend or for none in particular."""
    folders = sorted(path.name for path in (kernel.directory / "build").glob("*") if path.is_dir())
    known = get_variants_local(kernel.directory / "build")
    accepted, trace = resolve_variants(known, backend)
    verdicts = {each.variant.variant_str: getattr(each, "reason", "") for each in trace}
    verdicts |= {
        each.variant_str: LOADED if place == 0 else f"{accepted[0].variant_str} is preferred"
        for place, each in enumerate(accepted)
    }
    return [Decision(name, verdicts.get(name, "not the name of a variant")) for name in folders]


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
