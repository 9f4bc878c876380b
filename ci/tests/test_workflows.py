# SPDX-License-Identifier: Apache-2.0
"""The workflows of GitHub: pinned, with few rights, no foreign text in scripts, and commands that exist.

`make lint` has check-jsonschema and zizmor look at them; here is what those do not know.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from repositories import CPU_VARIANT, commit, edit, git

from kernelworks import catalog, cli, preflight
from kernelworks.cli import main

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FILES = [*WORKFLOWS, *sorted((ROOT / ".github/actions").glob("*/action.yml"))]
CHANGED = ROOT / "ci/changed_kernels.sh"
# What a variable of the workflows may hold, where a command is read as the tool reads it.
HOLDS = {"KERNEL": "rmsnorm", "kernel": "rmsnorm", "REPO_ID": "acme/rmsnorm", "VERSION": "1", "RELEASE": "4"}


def document(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text()))


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    return dict(document(path)["jobs"])


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in FILES:
        found = document(path)
        lists = [job["steps"] for job in found.get("jobs", {}).values()] or [found["runs"]["steps"]]
        yield from ((path.name, step) for each in lists for step in each)


SCRIPTS = [(name, step["run"]) for name, step in steps() if "run" in step]


def test_actions_are_pinned_to_commits_whose_version_is_said() -> None:
    pinned: dict[str, set[str]] = {}
    for path in FILES:
        for use in re.findall(r"uses: (.*)", path.read_text()):
            if use.startswith("./"):
                assert (ROOT / use / "action.yml").is_file()
                continue
            match = re.fullmatch(r"([\w-]+/[\w-]+)@([0-9a-f]{40}) # v\d+\.\d+\.\d+", use)
            assert match is not None, (path.name, use)
            pinned.setdefault(match[1], set()).add(match[2])
    assert "actions/checkout" in pinned
    assert {action: commits for action, commits in pinned.items() if len(commits) > 1} == {}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_job_has_its_own_few_rights(path: Path) -> None:
    assert document(path)["permissions"] == {}
    written = {}
    for name, job in jobs(path).items():
        rights = job["permissions"]
        assert rights.pop("contents") == "read", name
        written[name] = rights
        assert "timeout-minutes" in job, name
    expected = {"publish": {"id-token": "write", "attestations": "write"}}
    assert {name: rights for name, rights in written.items() if rights} == (
        expected if path.stem == "release" else {}
    )


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_failing_pipe_fails_the_step(path: Path) -> None:
    assert document(path)["defaults"] == {"run": {"shell": "bash"}}
    assert not any("shell" in step for job in jobs(path).values() for step in job["steps"])


def test_only_jobs_behind_an_environment_see_a_secret() -> None:
    for path in WORKFLOWS:
        for name, job in jobs(path).items():
            secrets = set(re.findall(r"secrets\.(\w+)", yaml.safe_dump(job)))
            assert secrets == ({"HF_TOKEN"} if "environment" in job else set()), (path.name, name)


def test_no_checkout_leaves_a_token_behind() -> None:
    found = [step["with"] for _, step in steps() if "actions/checkout@" in step.get("uses", "")]
    assert found
    assert all(each["persist-credentials"] is False for each in found)


def test_releases_of_one_kernel_wait_for_each_other() -> None:
    release = jobs(ROOT / ".github/workflows/release.yml")
    groups = {name: job["concurrency"]["group"] for name, job in release.items() if "concurrency" in job}
    assert groups == dict.fromkeys(("publish", "rollback"), "hub-${{ needs.tag.outputs.kernel }}")
    assert set(groups) == {name for name, job in release.items() if "environment" in job}


def test_tags_of_releases_start_it_and_others_do_not() -> None:
    (pattern,) = document(ROOT / ".github/workflows/release.yml")[True]["push"][
        "tags"
    ]  # YAML reads on as true
    assert pattern == "*-v[0-9]+.[0-9]+"  # as a regular expression of the same meaning:
    like = re.compile(r"[^/]*-v[0-9]+\.[0-9]+")  # the same, as a regular expression
    assert like.fullmatch("rmsnorm-v1.4")
    assert not any(map(like.fullmatch, ("v1.4", "rmsnorm-v1", "rmsnorm-v1.4-rc", "rmsnorm-1.4")))


@pytest.mark.parametrize(("name", "script"), SCRIPTS)
def test_scripts_hold_no_expression_and_are_sound_shell(name: str, script: str) -> None:
    """An expression is pasted in as text, so whoever names a branch could write commands."""
    assert "${{" not in script
    done = subprocess.run(
        [Path(sys.executable).with_name("shellcheck"), "--shell=bash", "-"],
        input=f"set -eo pipefail  # as GitHub has it for a shell that is named\n{script}",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{name}: {script}\n{done.stdout}"


def commands() -> Iterator[str]:
    """Each call of the tool in a script, up to what ends it."""
    for _, script in SCRIPTS:
        joined = script.replace("\\\n", " ")
        for match in re.finditer(r"\.venv/bin/kernelworks ([^\n|)>;]*)", joined):
            yield match[1].strip()


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_the_tool_knows_every_command(command: str) -> None:
    words = [
        re.sub(r"\$(\w+)", lambda match: HOLDS.get(match[1], "somewhere"), word)
        for word in shlex.split(command)
    ]
    cli.parse(words)  # exits where it knows no such thing


def test_make_knows_every_target() -> None:
    known = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)) | {".venv/.ready"}
    asked = {
        word
        for _, script in SCRIPTS
        for line in re.findall(r"^make (.*)$", script, re.MULTILINE)
        for word in shlex.split(line)
        if "=" not in word
    }
    assert {"lint", "tool", "nvcc", "release-rehearsal"} <= asked
    assert asked <= known


def changed(root: Path, *words: str) -> list[str]:
    done = subprocess.run([CHANGED, *words], cwd=root, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout))


def test_changed_kernels_are_those_with_another_tree(repository: Path) -> None:
    other = repository / "kernels/other"
    other.mkdir()
    (other / "build.toml").write_text("")
    commit(repository, "another kernel")
    assert changed(repository) == ["other", "toy"]
    assert changed(repository, "HEAD") == []
    assert changed(repository, "HEAD^1") == ["other"]
    edit(repository / "kernels/toy/build.toml", "version = 1", "version = 2")
    (repository / "README.md").write_text("changed")
    assert changed(repository, "HEAD") == [], "of commits, not of the working tree"
    commit(repository, "a change")
    assert changed(repository, "HEAD^1") == ["toy"]
    git(repository, "revert", "--no-edit", "HEAD")
    assert changed(repository, "HEAD~2") == []


def test_a_directory_with_another_name_is_no_kernel(repository: Path) -> None:
    folder = repository / "kernels/$(id)"
    folder.mkdir()
    (folder / "build.toml").write_text("")
    commit(repository, "a name that is a command")
    done = subprocess.run([CHANGED], cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "is not the name of a kernel" in done.stderr


def test_a_signature_beside_the_metadata_changes_nothing_else(
    built: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is made after the build, of the file that holds the digest, so it can be in no digest."""
    variant = catalog.load(built, "toy").directory / "build" / CPU_VARIANT
    before = (main(["check", "toy", "--root", str(built)]), capsys.readouterr().out)
    (variant / "metadata.json.sigstore").write_text("{}")
    after = (main(["check", "toy", "--root", str(built)]), capsys.readouterr().out)
    assert after == before
    sent = [file.path for file in preflight.variant(variant).files]
    assert f"build/{CPU_VARIANT}/metadata.json.sigstore" in sent, "where kernels verify-signature looks"
