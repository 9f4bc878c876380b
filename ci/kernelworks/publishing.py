# SPDX-License-Identifier: Apache-2.0
"""`kernelworks publish`: puts a build on a Hub, loads it back, and takes it off again if that fails."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from kernelworks import catalog, preflight, publish_plan, releases, restoring, verifying
from kernelworks import receipt as receipts
from kernelworks.catalog import Kernel
from kernelworks.errors import HubError, KernelworksError, PublishError, VerifyError
from kernelworks.hub import Hub
from kernelworks.hub_data import Landed, Refs, RemoteFile
from kernelworks.preflight import Wish
from kernelworks.publish_plan import ADD, DELETE, MAIN, REPLACE, BranchPlan, Parcel, Plan, Remote
from kernelworks.receipt import BranchReceipt, Receipt
from kernelworks.verifying import Verification


def publish(
    root: Path, kernel: Kernel, wish: Wish, hub: Hub, *, dry_run: bool = False, load: bool = True
) -> Receipt | None:
    """Plan, print the plan, act on it. A dry run ends with the plan, and has only read."""
    parcel = preflight.parcel(root, kernel, wish, public=hub.is_public)
    preflight.rights(hub, parcel.repo_id, pull_request=wish.pull_request)
    plan = plan_of(hub, parcel, wish)
    preflight.binaries(root, plan)
    print("\n".join(publish_plan.lines(plan)), flush=True)
    if dry_run:
        return None
    if plan.is_nothing:
        print(f"nothing to do: {parcel.repo_id} has all of it")
        return _receipt(receipts.NOTHING, plan)
    if wish.pull_request:
        return _propose(hub, plan)
    makes_branch = plan.build.parent is None
    return _act(hub, _prepare(hub, plan, wish), root, load=load, made_branch=makes_branch)


def plan_of(hub: Hub, parcel: Parcel, wish: Wish) -> Plan:
    """The plan for what the Hub has at this moment."""
    remote = look(hub, parcel.repo_id, parcel.branch)
    return publish_plan.make(parcel, remote, endpoint=hub.endpoint, private=wish.private, number=wish.release)


def look(hub: Hub, repo_id: str, branch: str) -> Remote:
    """What the Hub has: its branches, and the files of two of them."""
    refs = hub.refs(repo_id)
    if refs is None:
        preflight.repository_type(hub, repo_id)
        return Remote(None, {}, {}, is_fresh=True)
    main_tip, tip = refs.branches.get(MAIN), refs.branches.get(branch)
    main = hub.tree(repo_id, main_tip) if main_tip else {}
    if tip is None:
        return Remote(refs, main, main, is_fresh=True)
    files = hub.tree(repo_id, tip)
    return Remote(refs, files, main, is_fresh=_is_fresh(hub, repo_id, branch, refs, files))


def _is_fresh(hub: Hub, repo_id: str, branch: str, refs: Refs, files: Mapping[str, RemoteFile]) -> bool:
    """Whether the branch was made and nothing came to be published to it: it still is where main was.

    With variants on it, it is not: older repositories have theirs on main, and clients load them from a
    branch that was made of it.
    """
    if any(path.startswith("build/") for path in files):
        return False
    version = releases.version_of(branch)
    if version is not None and releases.of_version(refs, version):
        return False
    tip, main_tip = refs.branches[branch], refs.branches.get(MAIN)
    if main_tip is None or tip == main_tip:
        return main_tip is not None
    return tip in {commit.id for commit in hub.commits(repo_id, main_tip)}


def _prepare(hub: Hub, plan: Plan, wish: Wish) -> Plan:
    """Make the repository and the branch where they are missing, and plan anew on what is there then."""
    parcel = plan.parcel
    if plan.build.parent is not None:
        return plan
    if plan.creates_repository:
        hub.create_repository(parcel.repo_id, private=wish.private)
    refs = hub.refs(parcel.repo_id)
    if refs is None or MAIN not in refs.branches:
        raise HubError(f"{parcel.repo_id} on {hub.endpoint} has no branch main, where {parcel.branch} starts")
    hub.create_branch(parcel.repo_id, parcel.branch, refs.branches[MAIN])
    return plan_of(hub, parcel, wish)


def _act(hub: Hub, plan: Plan, root: Path, *, load: bool, made_branch: bool) -> Receipt:
    """The build, as clients follow that branch; the proof; then tag and card, which are for people."""
    parcel, commit = plan.parcel, plan.build.parent
    assert commit is not None
    if plan.build.changes:
        commit = _commit(hub, plan, plan.build).commit
        print(f"committed {commit[:12]} to {parcel.branch}", flush=True)
    result = None
    if not plan.is_released:
        try:
            result = verifying.verify(hub, parcel.repo_id, parcel.branch, commit, root=root, load=load)
            print("\n".join(result.lines()), flush=True)
            verifying.require(result)
        except (KernelworksError, KeyboardInterrupt) as error:
            said = str(error) or "interrupted while verifying"
            raise VerifyError(f"{said}; {_undo(hub, plan, commit, made_branch)}") from error
    return _finish(hub, plan, commit, result)


def _undo(hub: Hub, plan: Plan, commit: str, made_branch: bool) -> str:
    """Take back what did not pass, and say how: a branch that we made goes, another gets its content back."""
    repo_id, branch = plan.parcel.repo_id, plan.parcel.branch
    earlier = plan.last.commit if plan.last else None
    before = plan.build.parent if plan.build.changes else earlier
    try:
        refs = hub.refs(repo_id)
        if refs is None or refs.branches.get(branch) != commit:
            return f"nothing is rolled back, as somebody else moved {branch} in the meantime"
        if made_branch:
            hub.delete_branch(repo_id, branch)
            return f"rolled back: the branch {branch}, which was new, is deleted again"
        if before is None:
            return f"{branch} stays as it is, because there is no earlier release to go back to"
        name = plan.parcel.kernel.name
        new = restoring.restore(
            hub,
            repo_id,
            branch,
            commit,
            before,
            title=f"{name}: back to {before[:12]}",
            description=f"Restores: {before}\nReason: what followed did not pass its verification",
            whole=True,
        )
        return f"rolled back: {branch} has the content of {before[:12]} again, by commit {new[:12]}"
    except KernelworksError as error:
        version = plan.parcel.kernel.version
        return (
            f"rolling back failed too ({error}), so {branch} is at {commit[:12]}, which did not pass: "
            f"run `kernelworks rollback {repo_id} --version {version}`"
        )


def _finish(hub: Hub, plan: Plan, commit: str, result: Verification | None) -> Receipt:
    repo_id = plan.parcel.repo_id
    branches = [_branch_receipt(plan.build, commit)]
    try:
        if plan.release is not None and not plan.is_released:
            hub.create_tag(repo_id, plan.release, commit)
        if plan.card.changes:
            branches.append(_branch_receipt(plan.card, _commit(hub, plan, plan.card).commit))
    except HubError as error:
        raise type(error)(
            f"{error}; the build itself is published and verified: run this again for its tag and card"
        ) from error
    name = plan.release or plan.parcel.branch
    print(f"published {name} of {repo_id} on {hub.endpoint}", flush=True)
    return _receipt(receipts.PUBLISHED, plan, tuple(branches), result)


def _propose(hub: Hub, plan: Plan) -> Receipt:
    """Pull requests instead of commits; they need branches to ask for."""
    branches, links = [], []
    for branch in (plan.build, plan.card):
        if branch.changes and branch.parent is None:
            raise PublishError(
                f"{plan.parcel.repo_id} has no branch {branch.branch}, which a pull request needs; "
                "ask its owner to make it, or publish without --create-pr"
            )
    for branch in (plan.build, plan.card):
        if branch.changes:
            landed = _commit(hub, plan, branch, pull_request=True)
            print(f"pull request for {branch.branch}: {landed.pull_request}")
            links.append(str(landed.pull_request))
            branches.append(_branch_receipt(branch, landed.commit))
    return _receipt(receipts.PULL_REQUEST, plan, tuple(branches), links=tuple(links))


def _commit(hub: Hub, plan: Plan, branch: BranchPlan, *, pull_request: bool = False) -> Landed:
    assert branch.parent is not None
    is_card = branch is plan.card
    return hub.commit(
        plan.parcel.repo_id,
        branch.branch,
        [change.edit() for change in branch.changes],
        parent=branch.parent,
        title=f"{plan.parcel.kernel.name}: the card of {plan.release}" if is_card else plan.title,
        description="" if is_card else plan.description,
        pull_request=pull_request,
    )


def _branch_receipt(branch: BranchPlan, commit: str) -> BranchReceipt:
    added, replaced, deleted = (
        tuple(change.path for change in branch.changes if change.action == action)
        for action in (ADD, REPLACE, DELETE)
    )
    return BranchReceipt(branch.branch, branch.parent, commit, added, replaced, deleted, branch.sent)


def _receipt(
    status: str,
    plan: Plan,
    branches: tuple[BranchReceipt, ...] = (),
    result: Verification | None = None,
    links: tuple[str, ...] = (),
) -> Receipt:
    return Receipt(
        status=status,
        endpoint=plan.endpoint,
        repo_id=plan.parcel.repo_id,
        version=plan.parcel.kernel.version,
        release=plan.release,
        sources=plan.parcel.sources,
        variants=tuple(variant.name for variant in plan.parcel.variants),
        branches=branches or (BranchReceipt(plan.build.branch, plan.build.parent, plan.build.parent),),
        pull_requests=links,
        verified=asdict(result) if result else None,
    )


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `kernelworks publish`."""
    parser = subparsers.add_parser(
        "publish",
        help="put a kernel's build on a Hub, and load it back",
        description=__doc__,
        epilog="The Hub is HF_ENDPOINT (default: https://huggingface.co), the token HF_TOKEN or a login.",
    )
    parser.add_argument("name", metavar="NAME", help="the kernel")
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="DIR", help="variants from here (result/)"
    )
    parser.add_argument(
        "--repo-id", metavar="ORG/NAME", help="the repository (default: build.toml's repo-id)"
    )
    parser.add_argument("--branch", help="the branch (default: build.toml's, or v<version>)")
    parser.add_argument("--release", type=int, metavar="N", help="the number N of the tag v<version>.N")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and send nothing")
    parser.add_argument(
        "--create-pr", action="store_true", help="open a pull request instead; no tag is made"
    )
    parser.add_argument("--private", action="store_true", help="create the repository as a private one")
    parser.add_argument("--allow-dev", action="store_true", help="dev builds on huggingface.co too")
    parser.add_argument("--allow-dirty", action="store_true", help="builds of uncommitted or unknown sources")
    parser.add_argument("--no-load", action="store_true", help="verify without loading on this machine")
    parser.add_argument("--receipt", type=Path, metavar="OUT", help="where the receipt goes (JSON)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Publish one kernel and write the receipt."""
    root = catalog.root_of(arguments.root)
    kernel = catalog.load(root, arguments.name)
    wish = Wish(
        repo_id=arguments.repo_id,
        branch=arguments.branch,
        source=arguments.source,
        release=arguments.release,
        private=arguments.private,
        allow_dev=arguments.allow_dev,
        allow_dirty=arguments.allow_dirty,
        pull_request=arguments.create_pr,
    )
    done = publish(root, kernel, wish, Hub(), dry_run=arguments.dry_run, load=not arguments.no_load)
    # The receipt of what was done stays, when it is asked for again and there is nothing to do.
    if done is not None and (arguments.receipt or done.status != receipts.NOTHING):
        try:
            path = receipts.write(done, arguments.receipt or receipts.default_path(kernel, done))
        except PublishError as error:  # nothing is incomplete but the receipt
            print(f"warning: {error}", file=sys.stderr)
        else:
            print(f"receipt: {path}")
    return 0
