# SPDX-License-Identifier: Apache-2.0
"""`kernelworks prefetch`: fills the cache so that a kernel loads with HF_HUB_OFFLINE=1 and no network.

After a plain get_kernel it does not, with kernels 0.17: that downloads by commit, so the cache does not know
which commit the version is; and it keeps the listing of the whole repository with the files of one variant,
which counts as an incomplete download as soon as there is no network.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import constants

from kernelworks import releases, verifying
from kernelworks.errors import HubConflictError, HubError, VerifyError
from kernelworks.hub import Hub
from kernelworks.hub_data import variants_in
from kernelworks.loader import fitting
from kernelworks.verify_child import of_variant


def prefetch(hub: Hub, repo_id: str, version: int, variants: Sequence[str] | None = None) -> Path:
    """Download a version, or these variants of it, and return the snapshot's directory.

    It is asked for by the name of the branch, so that the cache notes which commit the version is.
    """
    branch = releases.branch_of(version)
    commit = verifying.tip_of(hub, repo_id, branch)
    there = names(hub, repo_id, commit)
    wanted = there if variants is None else list(variants)
    for name in wanted:
        if name not in there:
            raise HubError(f"{repo_id} {branch} has no variant {name}; there is {', '.join(there) or 'none'}")
    patterns = None if variants is None else [f"build/{name}/*" for name in wanted]
    snapshot = hub.snapshot(repo_id, branch, patterns=patterns, cache=cache())
    if patterns is not None:
        _forget_listing(snapshot)
    if snapshot.name != commit:
        raise HubConflictError(f"{repo_id} {branch} moved while it was downloaded; run this again")
    wrong = [line for name in wanted for line in of_variant(snapshot, name, {}, version)]
    if wrong:
        raise VerifyError(f"{repo_id} {branch} is not sound, do not use what is in the cache: {wrong[0]}")
    return snapshot


def names(hub: Hub, repo_id: str, commit: str) -> list[str]:
    """The variants of a commit."""
    return variants_in(hub.tree(repo_id, commit, "build"))


def cache() -> Path:
    """Where `kernels` looks: KERNELS_CACHE, or the cache of huggingface_hub."""
    return Path(os.environ.get("KERNELS_CACHE") or constants.HF_HUB_CACHE)


def _forget_listing(snapshot: Path) -> None:
    """Without the listing of the whole commit, the part that is here counts as complete.

    An online load writes the listing again; after one, prefetch again, or prefetch all variants.
    """
    (snapshot.parent.parent / "trees" / f"{snapshot.name}.json").unlink(missing_ok=True)


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `kernelworks prefetch`."""
    parser = subparsers.add_parser(
        "prefetch", help="fill the cache for machines without a network", description=__doc__
    )
    parser.add_argument("repo_id", metavar="ORG/NAME", help="the repository on the Hub")
    parser.add_argument("--version", type=int, required=True, help="the version, as get_kernel takes it")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--variant", action="append", help="this variant alone; may be given several times")
    part.add_argument("--this-machine", action="store_true", help="the variant that this machine loads")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prefetch, and say where it is and how it is used."""
    hub, repo_id = Hub(), arguments.repo_id
    variants = arguments.variant
    if arguments.this_machine:
        branch = releases.branch_of(arguments.version)
        there = names(hub, repo_id, verifying.tip_of(hub, repo_id, branch))
        found = fitting(there)
        if found is None:
            raise HubError(f"{repo_id} {branch} has no variant for this machine; there is {', '.join(there)}")
        variants = [found]
    snapshot = prefetch(hub, repo_id, arguments.version, variants)
    have = sorted(path.name for path in (snapshot / "build").iterdir() if path.is_dir())
    print(f"{repo_id} v{arguments.version} at {snapshot.name[:12]} is in {cache()}")
    for name in have:
        print(f"  {name}")
    print("with HF_HUB_OFFLINE=1 it loads from there, also after the directory was copied to another machine")
    return 0
