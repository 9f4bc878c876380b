# SPDX-License-Identifier: Apache-2.0
"""`kernelworks matrix`: the variants that a release must have, where each of them is, and who gets which."""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from kernelworks import catalog, loader, matrix, matrix_systems, official, releases
from kernelworks.catalog import Kernel
from kernelworks.errors import HubError, PublishError
from kernelworks.hub import Hub
from kernelworks.hub_data import variants_in
from kernelworks.loader import Decision, System
from kernelworks.matrix_systems import Served

NOWHERE = "-"


@dataclass(frozen=True)
class Place:
    """One variant of the matrix, and where it is found."""

    variant: str
    here: str | None  # the profile and the commit of the build in this tree
    on_hub: bool | None  # None: not known


@dataclass(frozen=True)
class Matrix:
    """What a release of one kernel must have, beside what there is."""

    kernel: str
    version: int
    repo_id: str
    hub: str | None  # the address that was asked
    complaint: str | None  # why it is not known what is there
    variants: tuple[Place, ...]

    @property
    def names(self) -> list[str]:
        """Of the variants."""
        return [place.variant for place in self.variants]


def matrix_of(kernel: Kernel, hub: Hub | None, repo_id: str) -> Matrix:
    """Look at this tree, and ask the Hub if there is one to ask."""
    published: frozenset[str] | None = None
    complaint: str | None = None
    if hub is not None:
        try:
            published = published_on(hub, repo_id, kernel.version)
        except HubError as error:
            complaint = str(error)
    places = tuple(
        Place(name, built_here(kernel, name), None if published is None else name in published)
        for name in matrix.complete(kernel)
    )
    endpoint = hub.endpoint if hub else None
    return Matrix(kernel.name, kernel.version, repo_id, endpoint, complaint, places)


def published_on(hub: Hub, repo_id: str, version: int) -> frozenset[str]:
    """The variants on the branch of a version; none where there is no such repository or branch."""
    refs = hub.refs(repo_id)
    tip = refs.branches.get(releases.branch_of(version)) if refs else None
    return frozenset(variants_in(hub.tree(repo_id, tip))) if tip else frozenset()


def built_here(kernel: Kernel, variant: str) -> str | None:
    """`release, 0123456789ab`: the profile and the commit of a build, or None where there is none."""
    metadata = official.metadata_of(kernel.directory / "build" / variant)
    if metadata is None:
        return None
    profile = (metadata.get("kernelworks") or {}).get("profile", "by kernel-builder")
    origin = (metadata.get("provenance") or {}).get("kernel") or {}
    commit = origin.get("commit")
    return f"{profile}, {str(commit)[:12] if commit else 'commit unknown'}"


def lines(found: Matrix) -> Iterator[str]:
    """The table for people."""
    yield f"{found.kernel} version {found.version}: {len(found.variants)} variants make a release"
    width = max(map(len, found.names), default=0)
    here = max((len(place.here or NOWHERE) for place in found.variants), default=0)
    for place in found.variants:
        there = "" if place.on_hub is None else "on the Hub" if place.on_hub else "not on the Hub"
        yield f"  {place.variant:<{width}}  {place.here or NOWHERE:<{here}}  {there}".rstrip()
    if found.hub is None:
        yield f"  the Hub was not asked for {found.repo_id}"
    elif found.complaint is not None:
        yield f"  what is on the Hub is not known: {found.complaint}"
    else:
        yield f"  the Hub: {found.repo_id} on {found.hub}"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `kernelworks matrix`."""
    parser = subparsers.add_parser(
        "matrix",
        help="show the variants of a release, where they are, and who gets which",
        description=__doc__,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="kernels (default: all)")
    parser.add_argument("--repo-id", metavar="ORG/NAME", help="look there (default: the kernel's own)")
    parser.add_argument("--no-hub", action="store_true", help="look at this tree only")
    parser.add_argument(
        "--complete", action="store_true", help="fail unless every variant is built here as a release"
    )
    parser.add_argument(
        "--systems", action="store_true", help="what each kind of system gets of a complete release"
    )
    parser.add_argument("--torch", type=_torch, metavar="2.12", help="what this torch gets")
    parser.add_argument("--cuda", type=_cuda, metavar="13.0", help="that torch was built for; or: none")
    parser.add_argument("--platform", choices=matrix.MACHINES, help="the kind of machine it runs on")
    parser.add_argument("--python", type=_python, metavar="3.12", help="its Python; 3.13t: free-threaded")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the matrix of each kernel."""
    kernels = catalog.load_all(catalog.root_of(arguments.root), arguments.names)
    if arguments.repo_id is not None and len(kernels) != 1:
        raise PublishError(f"--repo-id {arguments.repo_id}: name the one kernel that is looked for there")
    hub = None if arguments.no_hub else Hub()
    system = described(arguments)
    documents, incomplete = [], []
    for kernel in kernels:
        found = matrix_of(kernel, hub, arguments.repo_id or kernel.repo_id)
        decisions = loader.simulate(found.names, system) if system else []
        grid = matrix_systems.served(found.names, matrix.used_systems()) if arguments.systems else []
        if arguments.json:
            documents.append(_document(found, system, decisions, grid))
        else:
            print("\n".join(_text(found, system, decisions, grid)))
        incomplete += lacking(found)
    if arguments.json:
        print(json.dumps(documents, indent=2))
    if arguments.complete and incomplete:
        raise PublishError(f"no complete release is built here; missing: {', '.join(incomplete)}")
    return 0


def lacking(found: Matrix) -> list[str]:
    """The variants that are not built here in the release profile, with the kernel's name."""
    return [
        f"{found.kernel} {place.variant}"
        for place in found.variants
        if not (place.here or "").startswith("release,")
    ]


def described(arguments: argparse.Namespace) -> System | None:
    """The system that the options describe, or None; the rest is as here, torch the newest of the matrix."""
    given = (arguments.torch, arguments.cuda, arguments.platform, arguments.python)
    if all(value is None for value in given):
        return None
    system = System(
        torch=arguments.torch or _torch(matrix.TORCH),
        cuda=arguments.cuda or None,
        machine=arguments.platform or platform.machine(),
        python=sys.version_info[:2],
    )
    if arguments.python is None:
        return system
    python, free_threaded = arguments.python
    return replace(system, python=python, free_threaded=free_threaded)


def _text(
    found: Matrix, system: System | None, decisions: Sequence[Decision], grid: Sequence[Served]
) -> Iterator[str]:
    yield from lines(found)
    if system:
        yield from matrix_systems.choice_lines(system, decisions)
    yield from matrix_systems.lines(grid)


def _document(
    found: Matrix, system: System | None, decisions: Sequence[Decision], grid: Sequence[Served]
) -> dict[str, object]:
    document = {**asdict(found), "builder": matrix.BUILDER, "torch": matrix.TORCH}
    if system:
        document["system"] = {**asdict(system), "decisions": [asdict(each) for each in decisions]}
    if grid:
        document["systems"] = [
            {**asdict(each.system), "gets": each.variant, "reason": each.reason} for each in grid
        ]
    return document


def _torch(text: str) -> tuple[int, int]:
    """`2.12`, or `2.12.1+cu130` as torch.__version__ says it."""
    return _version(text, r"(\d+)\.(\d+)(?:[.+].*)?", "a version such as 2.12")


def _cuda(text: str) -> tuple[int, int] | tuple[()]:
    return () if text == "none" else _version(text, r"(\d+)\.(\d+)", "a version such as 13.0, or none")


def _python(text: str) -> tuple[tuple[int, int], bool]:
    version = _version(text.removesuffix("t"), r"(\d+)\.(\d+)(?:\.\d+)?", "a version such as 3.12 or 3.13t")
    return version, text.endswith("t")


def _version(text: str, pattern: str, wanted: str) -> tuple[int, int]:
    match = re.fullmatch(pattern, text)
    if match is None:
        raise argparse.ArgumentTypeError(f"must be {wanted}, not {text!r}")
    return int(match[1]), int(match[2])
