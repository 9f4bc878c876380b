# SPDX-License-Identifier: Apache-2.0
"""What each kind of system gets of a release: the loader's own choice, told in a line for each result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from kernelworks import loader
from kernelworks.loader import Decision, System


@dataclass(frozen=True)
class Served:
    """What one system gets; `reason` says why, where that is nothing."""

    system: System
    variant: str | None
    reason: str

    @property
    def result(self) -> str:
        """In words."""
        return self.variant or f"nothing ({self.reason})"


def served(names: Sequence[str], systems: Sequence[System]) -> list[Served]:
    """The loader's choice for each system among the variants of these names."""
    result = []
    for system in systems:
        decisions = loader.simulate(names, system)
        chosen = chosen_of(decisions)
        result.append(Served(system, chosen, "" if chosen else _common_reason(decisions)))
    return result


def chosen_of(decisions: Sequence[Decision]) -> str | None:
    """The variant that loads."""
    return next((each.variant for each in decisions if each.is_loaded), None)


def _common_reason(decisions: Sequence[Decision]) -> str:
    reasons = {each.verdict for each in decisions}
    return reasons.pop() if len(reasons) == 1 else "none fits"


def choice_lines(system: System, decisions: Sequence[Decision]) -> Iterator[str]:
    """What one system gets, and why not the others."""
    yield f"  {system} gets {chosen_of(decisions) or 'nothing'}"
    for each in decisions:
        if not each.is_loaded:
            yield f"    not {each.variant}: {each.verdict}"


def lines(found: Sequence[Served]) -> Iterator[str]:
    """A line for each result, with all systems that get it; where they have no simple name, one for each."""

    def result(each: Served) -> str:
        return each.result

    for text, group in groupby(sorted(found, key=result), key=result):
        systems = [each.system for each in group]
        yield f"  {text}"
        for words in _summary(systems):
            yield f"    {words}"


def _summary(systems: Sequence[System]) -> list[str]:
    machines = sorted({system.machine for system in systems})
    builds = sorted({system.cuda or () for system in systems})
    torch = sorted({system.torch for system in systems})
    python = sorted({system.python for system in systems})
    if len(systems) != len(machines) * len(builds) * len(torch) * len(python):
        return [str(system) for system in systems]
    cuda = [_dotted(build) for build in builds if build]
    kinds = [*(["the CPU"] if () in builds else []), *([f"CUDA {', '.join(cuda)}"] if cuda else [])]
    return [f"torch {_span(torch)} for {' or '.join(kinds)}, {' or '.join(machines)}, Python {_span(python)}"]


def _span(versions: Sequence[tuple[int, int]]) -> str:
    low, high = _dotted(versions[0]), _dotted(versions[-1])
    return low if low == high else f"{low} to {high}"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
