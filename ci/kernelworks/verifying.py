# SPDX-License-Identifier: Apache-2.0
"""`kernelworks verify`: loads a published version back, as a stranger does: fresh process, empty cache."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kernelworks import catalog, releases, testing
from kernelworks.catalog import Kernel
from kernelworks.errors import HubError, RepositoryError, VerifyError
from kernelworks.hub import Hub
from kernelworks.process import run as run_process
from kernelworks.process import stream
from kernelworks.verify_child import LOADING, Job, Outcome

# What must not reach the fresh process: another cache, other kernels, and switches that make kernels 0.17
# send a header that its HTTP client refuses.
FORGOTTEN = (
    *("LOCAL_KERNELS", "KERNELS_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE"),
    *("HF_TOKEN_PATH", "HF_XET_CACHE", "HF_HUB_DISABLE_TELEMETRY", "DISABLE_TELEMETRY", "DO_NOT_TRACK"),
)
MARK = "kernels_ci"  # the short tests, which a Hub's own builds run too


@dataclass(frozen=True)
class Verification:
    """What was verified, and what is wrong with it."""

    repo_id: str
    branch: str
    commit: str
    variants: tuple[str, ...]
    loaded: str | None
    tests: str  # how they went, or why they were not run
    findings: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"  downloaded  variants: {len(self.variants)}, each with its digest and metadata checked"
        yield f"  loaded      {self.loaded or 'nothing'}"
        yield f"  tests       {self.tests}"
        for finding in self.findings:
            yield f"  wrong       {finding}"


def verify(
    hub: Hub, repo_id: str, branch: str, commit: str, *, root: Path | None, load: bool = True
) -> Verification:
    """Verify what a branch serves; with `root`, the tests of the kernel of that name in it run too."""
    print(f"verify {repo_id} {branch} at {commit[:12]}, in a fresh process with an empty cache", flush=True)
    job = Job(repo_id, branch, commit, releases.version_of(branch), load)
    with tempfile.TemporaryDirectory(prefix="kernelworks-verify-") as folder:
        outcome = _in_fresh_process(hub, job, Path(folder))
        findings = list(outcome.findings)
        if load and outcome.not_loaded is not None:
            findings.append(f"nothing here loads on this machine: {outcome.not_loaded}")
        tests = "not run: nothing was loaded"
        if outcome.loaded and not findings:
            tests, failed = _tests(root, job, outcome, Path(folder))
            findings += failed
    return Verification(repo_id, branch, commit, outcome.variants, outcome.loaded, tests, tuple(findings))


def _in_fresh_process(hub: Hub, job: Job, folder: Path) -> Outcome:
    path = folder / "outcome.json"
    done = run_process(
        [sys.executable, "-m", "kernelworks.verify_child", json.dumps(asdict(job)), str(path)],
        cwd=folder,
        env=environment(os.environ, hub, folder / "home"),
    )
    outcome = Outcome(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else Outcome()
    outcome = replace(outcome, variants=tuple(outcome.variants), findings=tuple(outcome.findings))
    if done.returncode == 0:
        return outcome
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1].removeprefix("error: ")
    if outcome.step == LOADING:
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        return replace(outcome, findings=(f"the process that loaded it died by {how}: {last}",))
    raise HubError(f"verifying {job.repo_id} {job.branch} got no further than {outcome.step}: {last}")


def environment(inherited: Mapping[str, str], hub: Hub, home: Path) -> dict[str, str]:
    """An empty cache and this Hub; the token goes by the environment, so that no command line shows it."""
    kept = {name: value for name, value in inherited.items() if name not in FORGOTTEN}
    token = {"HF_TOKEN": hub.token} if hub.token else {}
    return {**kept, "HF_HOME": str(home), "HF_ENDPOINT": hub.endpoint, **token}


def _tests(root: Path | None, job: Job, outcome: Outcome, folder: Path) -> tuple[str, list[str]]:
    """Run the kernel's short tests on what was downloaded, in the place of this repository's own build."""
    kernel = kernel_of(root, job.repo_id)
    if root is None or kernel is None:
        return f"not run: there is no kernel {job.repo_id.split('/')[1]} in a repository here", []
    if job.version not in (None, kernel.version):
        return f"not run: kernels/{kernel.name} is at version {kernel.version}", []
    if not any((kernel.directory / "tests").glob("test_*.py")):
        return f"not run: kernels/{kernel.name} has no tests", []
    published = replace(kernel, directory=Path(str(outcome.snapshot)))
    junit, device, said = folder / "tests.xml", str(outcome.backend), list[str]()
    code = stream(
        testing.command(root, kernel, device, junit, ["-q", "-m", MARK]),
        on_line=said.append,
        cwd=folder,
        env=testing.environment(published, {k: v for k, v in os.environ.items() if k not in FORGOTTEN}),
    )
    report = testing.read_report(junit, kernel.name, device, code)
    if code == 5:  # pytest found none: a kernel may have no short tests
        return f"not run: none of kernels/{kernel.name}/tests is marked {MARK}", []
    if code == 0:
        return str(report), []
    print("\n".join(said), file=sys.stderr)
    return str(report), [f"its tests fail: {report}"]


def kernel_of(root: Path | None, repo_id: str) -> Kernel | None:
    """The kernel of this repository that is published under this name, if there is one."""
    name = repo_id.partition("/")[2]
    return catalog.load(root, name) if root is not None and name in catalog.names(root) else None


def root_if_any(argument: Path | None) -> Path | None:
    """The repository around us, which verifying can do without."""
    try:
        return catalog.root_of(argument)
    except RepositoryError:
        if argument is not None:
            raise
        return None


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `kernelworks verify`."""
    parser = subparsers.add_parser(
        "verify",
        help="load a published version back, with an empty cache, and test it",
        description=__doc__,
        epilog="Loading runs the code of that repository with your rights, and with your token in reach; "
        "--no-load only downloads and checks.",
    )
    parser.add_argument("repo_id", metavar="ORG/NAME", help="the repository on the Hub")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--version", type=int, help="the version, as get_kernel takes it")
    which.add_argument("--branch", help="a branch that serves no version")
    parser.add_argument(
        "--no-load", action="store_true", help="download and check only; run nothing of it on this machine"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print what was verified; an error when anything is wrong."""
    hub = Hub()
    branch = arguments.branch or releases.branch_of(arguments.version)
    tip = tip_of(hub, arguments.repo_id, branch)
    root = root_if_any(arguments.root)
    result = verify(hub, arguments.repo_id, branch, tip, root=root, load=not arguments.no_load)
    print("\n".join(result.lines()))
    require(result)
    return 0


def require(result: Verification) -> None:
    """An error with the first thing that is wrong."""
    if not result.is_good:
        more = f" (and {len(result.findings) - 1} more)" if len(result.findings) > 1 else ""
        raise VerifyError(f"{result.repo_id} {result.branch} is not sound: {result.findings[0]}{more}")


def tip_of(hub: Hub, repo_id: str, branch: str) -> str:
    """The commit that a branch is at; what there is instead is said."""
    refs = hub.refs(repo_id)
    if refs is None:
        raise HubError(f"{hub.endpoint} has no kernel {repo_id}, or none that this token may see")
    if branch not in refs.branches:
        there = ", ".join(sorted(refs.branches)) or "none"
        raise HubError(f"{repo_id} has no branch {branch}; there is {there}")
    return refs.branches[branch]
