# SPDX-License-Identifier: Apache-2.0
"""`make release-rehearsal NAME=rmsnorm`: the steps of the release workflow, and nothing leaves this machine.

A clone of what is committed here is released, built, published to a Hub that lives as long as this
program, and loaded from there. Then comes a release that computes wrong results, twice: once publishing
itself finds it and takes it back, and once another machine does, after it was published, and it is rolled
back. Users get the first one before and after.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from examples.own_hub import LEFT_OUT, TOOL, data, environment, hub, run, say
from kernelworks import catalog, release_git, release_notes, toolchain
from kernelworks.catalog import Kernel
from kernelworks.errors import ReleaseError, ToolchainError, VerifyError

WHO = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "rehearsal"), ("EMAIL", "rehearsal@localhost"))
}
# Sound to every check that does not compute with it: all that stands between it and users is a test.
MISTAKE = """

# The rehearsal's mistake: results with the wrong sign.
import functools as _functools  # noqa: E402

import torch as _torch  # noqa: E402


def _negated(result):
    if isinstance(result, tuple):
        return tuple(_negated(each) for each in result)
    return -result if isinstance(result, _torch.Tensor) else result


def _wrong(function):
    @_functools.wraps(function)
    def wrong(*args, **kwargs):
        return _negated(function(*args, **kwargs))

    return wrong


for _name in __all__:
    if type(globals()[_name]).__name__ == "function":
        globals()[_name] = _wrong(globals()[_name])
"""
LOAD = """
import json, sys
from pathlib import Path
from kernels import get_kernel

repo_id, version = sys.argv[1], int(sys.argv[2])
module = get_kernel(repo_id, version=version, trust_remote_code=[repo_id])
folder = Path(module.__file__).parent
identity = json.loads((folder / "metadata.json").read_text())["id"]
print(json.dumps([folder.parent.parent.name, folder.name, identity]))
"""


@dataclass(frozen=True)
class Stage:
    """Where the rehearsal takes place."""

    root: Path  # the clone
    folder: Path
    endpoint: str
    kernel: Kernel

    def kernelworks(self, *words: str) -> None:
        """Run the tool in the clone; a failure ends all."""
        print(f"$ kernelworks {' '.join(words)}", flush=True)
        run((*TOOL, *words, "--root", str(self.root)), environment(self.folder, self.endpoint) | WHO)

    def fails(self, *words: str) -> None:
        """Run what must find the mistake, by a test; that it does not is the worst that can come out here."""
        print(f"$ kernelworks {' '.join(words)}", flush=True)
        done = subprocess.run(
            (*TOOL, *words, "--root", str(self.root)),
            env=environment(self.folder, self.endpoint) | WHO | {"PYTEST_ADDOPTS": "--maxfail=1"},
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if not line.startswith(LEFT_OUT)]
        print("\n".join((*lines, (done.stderr.splitlines() or [""])[-1])), flush=True)
        if done.returncode == 0:
            raise SystemExit(f"error: the release computes wrong results, and {words[0]} was content")
        if done.returncode != VerifyError.exit_code:
            raise SystemExit(done.returncode)


@contextmanager
def staged(root: Path, name: str) -> Iterator[Stage]:
    """A clone of what is committed, on a branch main, and a Hub."""
    with tempfile.TemporaryDirectory(prefix="kernelworks-rehearsal-") as place:
        folder = Path(place)
        clone = folder / "repository"
        git(root, "clone", "--quiet", "--no-checkout", str(root), str(clone))
        git(clone, "checkout", "--quiet", "-B", "main", git(root, "rev-parse", "HEAD"))
        kernel = catalog.load(clone, name)
        with hub(folder) as endpoint:
            yield Stage(clone, folder, endpoint, kernel)


def git(root: Path, *words: str) -> str:
    """Run git and return what it prints; one sentence where it fails."""
    done = subprocess.run(
        ["git", *words], cwd=root, env={**os.environ, **WHO}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"error: git {words[0]} failed: {done.stderr.strip()}")
    return done.stdout.strip()


def note(stage: Stage, what: str) -> None:
    """A section of the changelog for the next release, where there is none, and a line in it."""
    changelog = stage.kernel.directory / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    section = release_notes.newest(text, "CHANGELOG.md")
    if section.date is None:
        return
    start = section.span[0]
    heading = f"## {section.version}.{section.number + 1} (not yet published)"
    changelog.write_text(f"{text[:start]}{heading}\n\n- {what}\n\n{text[start:]}", encoding="utf-8")
    git(stage.root, "commit", "--quiet", "--all", "--message", f"{stage.kernel.name}: {what}")


def released(stage: Stage) -> release_git.Tag:
    """Commit and tag a release, and have the tag checked, as the workflow that it starts does first."""
    stage.kernelworks("release", stage.kernel.name)
    tag = release_git.tags_of(stage.root, stage.kernel.name)[-1]
    stage.kernelworks("release", stage.kernel.name, "--check-tag", str(tag))
    return tag


def build(stage: Stage, archs: Sequence[str], *, cuda: bool) -> None:
    """Every variant that can be made here; with a choice of architectures the CUDA one is no release."""
    stage.kernelworks("build", stage.kernel.name, "--profile", "release", "--backend", "cpu")
    if cuda:
        how = ("--arch", *archs) if archs else ("--profile", "release")
        stage.kernelworks("build", stage.kernel.name, "--backend", "cuda", *how)
    stage.kernelworks("check", stage.kernel.name)


def loaded(stage: Stage, version: int) -> tuple[str, str, str]:
    """What a user gets, in a fresh process with an empty cache: commit, variant, the id of the build."""
    with tempfile.TemporaryDirectory(dir=stage.folder) as home:
        done = subprocess.run(
            [sys.executable, "-c", LOAD, stage.kernel.repo_id, str(version)],
            env={**environment(stage.folder, stage.endpoint), "HF_HOME": home},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise SystemExit(f"error: get_kernel failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    commit, variant, identity = json.loads(done.stdout.splitlines()[-1])
    print(f"get_kernel({stage.kernel.repo_id!r}, version={version}) gives {variant}, {identity}")
    return commit, variant, identity


def rehearse(stage: Stage, archs: Sequence[str], *, cuda: bool) -> None:
    """All steps, in the order of .github/workflows/release.yml."""
    name, repo_id = stage.kernel.name, stage.kernel.repo_id
    say(f"a release of {name} is tagged, and the tag checked")
    note(stage, "a rehearsal.")
    first = released(stage)
    version = str(first.version)
    say("build")
    build(stage, archs, cuda=cuda)
    say(f"publish to {stage.endpoint}, and verify from a fresh process")
    stage.kernelworks("publish", name, "--release", str(first.number))
    owner = repo_id.partition("/")[0]
    run((*TOOL, "hub", "org", owner, *data(stage.folder), "--trusted"), environment(stage.folder))
    stage.kernelworks("verify", repo_id, "--version", version)
    good = loaded(stage, first.version)

    say("a release that computes wrong results, which nothing but a test can see")
    package = stage.kernel.package / "__init__.py"
    package.write_text(package.read_text(encoding="utf-8") + MISTAKE, encoding="utf-8")
    note(stage, "a mistake.")
    second = released(stage)
    build(stage, archs, cuda=cuda)
    say("publishing it fails, and takes it back")
    stage.fails("publish", name, "--release", str(second.number))
    same(loaded(stage, first.version), good)

    say("published all the same, by a machine that cannot load it; another finds out")
    stage.kernelworks("publish", name, "--release", str(second.number), "--no-load")
    stage.fails("verify", repo_id, "--version", version)
    say("roll back")
    stage.kernelworks("rollback", repo_id, "--version", version)
    stage.kernelworks("status", repo_id)
    same(loaded(stage, first.version), good)


def same(found: tuple[str, str, str], good: tuple[str, str, str]) -> None:
    """The build that users had first; the commit that holds it may be a later one."""
    if found[1:] != good[1:]:
        raise SystemExit(f"error: users get {found[2]}, and not {good[2]}, which was there before")
    print("that is the first one again")


def has_nvcc() -> bool:
    """Whether there is something to compile CUDA with."""
    try:
        toolchain.cuda_toolkit()
    except ToolchainError as error:
        print(f"no CUDA variant: {error}")
        return False
    return True


def main() -> int:
    """The exit code of the first step that does not go as it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", metavar="NAME", help="the kernel")
    parser.add_argument("--root", type=Path, help="the repository (default: the one around us)")
    parser.add_argument("--arch", nargs="*", default=[], help="build the CUDA variant for these alone")
    parser.add_argument("--cpu-only", action="store_true", help="leave the CUDA variant out")
    arguments = parser.parse_args()
    root = catalog.root_of(arguments.root)
    if git(root, "status", "--porcelain", "--untracked-files=no"):
        print("what is changed and not committed takes no part in this")
    with staged(root, arguments.name) as stage:
        cuda = "cuda" in stage.kernel.backends and not arguments.cpu_only and has_nvcc()
        try:
            rehearse(stage, arguments.arch, cuda=cuda)
        except ReleaseError as error:
            raise SystemExit(f"error: {error}") from error
    print("\nall right: released, found to be wrong, taken back, rolled back")
    return 0


if __name__ == "__main__":
    sys.exit(main())
