# SPDX-License-Identifier: Apache-2.0
"""What changed between two states of a kernel's API, and which of it breaks a caller of the earlier one.

The Hub's rule: within a version a kernel never breaks. What is asked for by version 1 today must take every
call that it took before, on every torch that it ran with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kernelworks.release_api import Api, Parameter, Signature


@dataclass(frozen=True)
class Change:
    """One difference, as a clause."""

    what: str
    breaks: bool


def changes(old: Api, new: Api) -> list[Change]:
    """Every difference, those that break a caller first."""
    found = [*_of_names(old, new), *_of_sets(old, new)]
    if new.torch != old.torch:
        before, now = (".".join(map(str, each.torch)) for each in (old, new))
        found.append(Change(f"torch {before} was the oldest, and is {now}", breaks=new.torch > old.torch))
    return sorted(found, key=lambda change: not change.breaks)


def _of_names(old: Api, new: Api) -> Iterator[Change]:
    for name, before in old.names.items():
        if name not in new.names:
            yield Change(f"{name} is gone", breaks=True)
            continue
        now = new.names[name]
        if before is not None and now is None:
            yield Change(f"{name} could be called, and is something else", breaks=True)
        elif before is not None and now is not None:
            for what, breaks in _of_signatures(before, now):
                yield Change(f"{name}: {what}", breaks)
    for name in new.names:
        if name not in old.names:
            yield Change(f"{name} is new", breaks=False)


def _of_sets(old: Api, new: Api) -> Iterator[Change]:
    for what, before, now in (
        ("dtype", old.dtypes, new.dtypes),
        ("backend", old.backends, new.backends),
    ):
        yield from (Change(f"the {what} {each} is gone", breaks=True) for each in sorted(before - now))
        yield from (Change(f"the {what} {each} is new", breaks=False) for each in sorted(now - before))
    for each in sorted(new.depends - old.depends):
        yield Change(f"the Python package {each} must be installed", breaks=True)


def _of_signatures(old: Signature, new: Signature) -> Iterator[tuple[str, bool]]:
    by_name = {parameter.name: parameter for parameter in new.parameters}
    places, new_places = _by_place(old), _by_place(new)
    for place, parameter in enumerate(places):
        there = new_places[place] if place < len(new_places) else None
        renamed = there is not None and there.kind == parameter.kind == "positional only"
        if there is None and _takes_any(new, "*"):
            continue
        if there is None or (there.name != parameter.name and not renamed):
            instead = f", and is {there.name}" if there else ", and is not taken there"
            yield f"argument {place + 1} was {parameter.name}{instead}", True
    for parameter in old.parameters:
        if parameter.kind in ("*", "**"):
            if not _takes_any(new, parameter.kind):
                yield f"{parameter.kind}{parameter.name} is not taken", True
            continue
        now = by_name.get(parameter.name)
        if now is None or now.kind == "positional only":
            if parameter.kind != "positional only" and not _takes_any(new, "**"):
                yield f"{parameter.name} is not taken by name", True
        elif parameter.default is not None and now.default is None:
            yield f"{parameter.name} was optional, and is required", True
        elif parameter.default not in (None, now.default):
            yield f"{parameter.name} was {parameter.default} by default, and is {now.default}", True
    known = {parameter.name for parameter in (*old.parameters, *new_places[: len(places)])}
    for parameter in new.parameters:
        if parameter.name not in known and parameter.kind not in ("*", "**"):
            yield (
                f"{parameter.name} is new{'' if parameter.default else ' and required'}",
                not parameter.default,
            )
    if old.returns is not None and new.returns is not None and old.returns != new.returns:
        yield f"returned {old.returns}, and returns {new.returns}", True


def _by_place(signature: Signature) -> list[Parameter]:
    return [parameter for parameter in signature.parameters if parameter.kind.startswith("positional")]


def _takes_any(signature: Signature, kind: str) -> bool:
    return any(parameter.kind == kind for parameter in signature.parameters)
