# SPDX-License-Identifier: Apache-2.0
"""`kernelworks rollback`: makes a version's branch hold an earlier release again, by a new commit."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from kernelworks import receipt as receipts
from kernelworks import releases, restoring, verifying
from kernelworks.errors import HubError
from kernelworks.hub import Hub
from kernelworks.hub_data import Refs
from kernelworks.receipt import BranchReceipt, Receipt
from kernelworks.releases import Release


def roll_back(
    hub: Hub, repo_id: str, version: int, wanted: str | None, *, root: Path | None, load: bool = True
) -> Receipt:
    """Restore the release and verify it. What fails then is reported, and the branch stays where it was put.

    A person chose this release over the one that was there; going back to that one would be worse.
    """
    branch = releases.branch_of(version)
    tip = verifying.tip_of(hub, repo_id, branch)
    refs = hub.refs(repo_id) or Refs({}, {})
    known = releases.of_version(refs, version, hub.commits(repo_id, branch))
    target = target_of(hub, repo_id, version, known, wanted, tip)
    print(f"{repo_id} {branch}: back to {target.tag}, of source {target.source}", flush=True)
    new = restoring.restore(
        hub,
        repo_id,
        branch,
        tip,
        target.commit,
        title=f"{repo_id.partition('/')[2]}: back to {target.tag}",
        description=f"Restores: {target.tag}\n" + releases.description(target.source, target.variants),
    )
    before = BranchReceipt(branch, tip, new)
    if new == tip:
        print(f"nothing to do: {branch} has the content of {target.tag} already")
        return _receipt(hub, repo_id, version, target, before, receipts.NOTHING, None)
    print(f"committed {new[:12]} to {branch}", flush=True)
    result = verifying.verify(hub, repo_id, branch, new, root=root, load=load)
    print("\n".join(result.lines()), flush=True)
    verifying.require(result)
    return _receipt(hub, repo_id, version, target, before, receipts.RESTORED, result)


def target_of(
    hub: Hub, repo_id: str, version: int, known: Sequence[Release], wanted: str | None, tip: str
) -> Release:
    """The release asked for, or the one before that which the branch has the content of."""
    there = ", ".join(release.tag for release in known) or "none"
    if wanted is not None:
        for release in known:
            if wanted in (release.tag, str(release.number)):
                return release
        raise HubError(f"--to {wanted}: {repo_id} has no such release of version {version}; there is {there}")
    current = current_of(hub, repo_id, known, tip)
    if current is None:
        raise HubError(
            f"{repo_id} v{version} has the content of no release; name one with --to: there is {there}"
        )
    earlier = [release for release in known if release.number < current.number]
    if not earlier:
        raise HubError(f"{repo_id} v{version} is at {current.tag}, and there is no release before it")
    return earlier[-1]


def current_of(hub: Hub, repo_id: str, known: Sequence[Release], tip: str) -> Release | None:
    """The newest release whose content the branch has: by its commit, otherwise file by file."""
    if (release := releases.at(known, tip)) is not None:
        return release
    now = hub.tree(repo_id, tip)
    return next(
        (each for each in reversed(known) if restoring.is_equal(now, hub.tree(repo_id, each.commit))), None
    )


def _receipt(
    hub: Hub,
    repo_id: str,
    version: int,
    target: Release,
    branch: BranchReceipt,
    status: str,
    result: verifying.Verification | None,
) -> Receipt:
    return Receipt(
        status=status,
        endpoint=hub.endpoint,
        repo_id=repo_id,
        version=version,
        release=target.tag,
        sources=(target.source,),
        variants=target.variants,
        branches=(branch,),
        verified=asdict(result) if result else None,
    )


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `kernelworks rollback`."""
    parser = subparsers.add_parser(
        "rollback", help="make a published version hold an earlier release again", description=__doc__
    )
    parser.add_argument("repo_id", metavar="ORG/NAME", help="the repository on the Hub")
    parser.add_argument("--version", type=int, required=True, help="the version, as get_kernel takes it")
    parser.add_argument(
        "--to", metavar="RELEASE", help="v<version>.<N>, or N (default: the release before the current one)"
    )
    parser.add_argument("--no-load", action="store_true", help="verify without loading on this machine")
    parser.add_argument("--receipt", type=Path, metavar="OUT", help="also write a receipt there (JSON)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Roll back, verify, and write the receipt where one is wanted."""
    done = roll_back(
        Hub(),
        arguments.repo_id,
        arguments.version,
        arguments.to,
        root=verifying.root_if_any(arguments.root),
        load=not arguments.no_load,
    )
    if arguments.receipt is not None:
        print(f"receipt: {receipts.write(done, arguments.receipt)}")
    return 0
