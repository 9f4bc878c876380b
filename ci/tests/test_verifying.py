# SPDX-License-Identifier: Apache-2.0
"""Loading back what is published, and everything that may be wrong with it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hub_process import RunningHub
from publications import (
    OTHER_VARIANT,
    REPO,
    branches,
    change,
    here,
    kernelworks,
    published,
    variant,
    with_tests,
)
from repositories import CPU_VARIANT, edit

from kernelworks import verify_child, verifying
from kernelworks.errors import HubError, VerifyError
from kernelworks.hub import Hub
from kernelworks.verify_child import Job


def verify(root: Path, *words: str, env: dict[str, str]) -> tuple[int, str]:
    done = here(root, "verify", REPO, "--version", "1", *words, env=env)
    return done.code, done.output


@pytest.mark.slow
def test_a_version_is_loaded_back_and_its_short_tests_run(
    built: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    """Also for a user who has switched off telemetry, which breaks kernels 0.17 by itself."""
    published(built, env=env)
    switched = env | {"DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = kernelworks(with_tests(built), "verify", REPO, "--version", "1", env=switched)
    assert done.code == 0, done.output
    assert "variants: 1, each with its digest and metadata checked" in done.output
    assert "toy on cpu: 1 passed in" in done.output


@pytest.mark.slow
def test_where_no_variant_fits_that_is_an_error_unless_loading_was_not_asked_for(
    built: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    """L01: the loader's own list, with the reason against each variant."""
    variant(built).rename(variant(built, OTHER_VARIANT))
    published(built, env=env)
    code, output = verify(built, env=env)
    assert code == VerifyError.exit_code
    assert "nothing here loads on this machine" in output
    assert OTHER_VARIANT in output
    code, output = verify(built, "--no-load", env=env)
    assert code == 0, output


@pytest.mark.slow
def test_a_kernel_that_takes_its_process_down_is_told_from_a_hub_that_does(
    built: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    change(variant(built), __init__="import os\nos.abort()\n")
    published(built, env=env)
    code, output = verify(built, env=env)
    assert code == VerifyError.exit_code
    assert "the process that loaded it died by signal 6" in output


def test_tests_of_another_version_are_not_run(built: Path) -> None:
    root = with_tests(built)
    edit(root / "kernels/toy/build.toml", "version = 1", "version = 2")
    job = Job(REPO, "v1", "0" * 40, 1, True)
    said, findings = verifying._tests(root, job, verify_child.Outcome(), root)
    assert (said, findings) == ("not run: kernels/toy is at version 2", [])
    said, _ = verifying._tests(None, job, verify_child.Outcome(), root)
    assert said == "not run: there is no kernel toy in a repository here"
    shutil.rmtree(root / "kernels/toy/tests")
    said, _ = verifying._tests(root, replace(job, version=2), verify_child.Outcome(), root)
    assert said == "not run: kernels/toy has no tests"


def test_files_and_metadata_are_held_to_the_digest(
    built: Path, hub: RunningHub, env: dict[str, str], tmp_path: Path
) -> None:
    """L17: a byte, a missing file, one too many, another version, and no metadata at all."""
    published(built, env=env)
    tip = branches(hub)["v1"]
    tree = Hub(hub.endpoint).tree(REPO, tip)
    good = Hub(hub.endpoint).snapshot(REPO, tip, cache=tmp_path / "cache")

    def findings(version: int = 1, **more: object) -> list[str]:
        return list(verify_child.of_variant(good, CPU_VARIANT, {**tree, **more}, version))  # type: ignore[arg-type]

    assert findings() == []
    assert findings(2) == [f"{CPU_VARIANT}: is of version 1, on the branch of version 2"]
    assert findings(**{f"build/{CPU_VARIANT}/stray.py": None}) == [f"{CPU_VARIANT}: stray.py is in no digest"]
    folder = good / "build" / CPU_VARIANT
    ops = folder / "_ops.py"
    content = ops.read_bytes()
    ops.unlink()  # the snapshot links to the cache's own copy
    ops.write_bytes(content.replace(b"torch", b"Torch"))
    (finding,) = findings()
    assert finding.startswith(f"{CPU_VARIANT}: is not as its digest says: ")
    assert "_ops.py" in finding
    ops.unlink()
    assert "_ops.py" in findings()[0]
    (folder / "metadata.json").unlink()
    assert findings() == [f"{CPU_VARIANT}: there is no metadata.json that can be read"]


def test_a_branch_by_name_and_what_does_not_exist(
    built_once: Path, hub: RunningHub, env: dict[str, str], tmp_path: Path
) -> None:
    published(built_once, "--branch", "trial", env=env)
    done = here(built_once, "verify", REPO, "--branch", "trial", "--no-load", env=env)
    assert done.code == 0, done.output
    code, output = verify(built_once, env=env)
    assert (code, "has no branch v1; there is main, trial" in output) == (HubError.exit_code, True)
    done = here(built_once, "verify", REPO, "--branch", "main", "--no-load", env=env)
    assert (done.code, "main of kernelworks/toy holds no variant" in done.output) == (16, True)


def test_what_the_user_has_set_does_not_reach_the_fresh_process(hub: RunningHub, tmp_path: Path) -> None:
    """The last three break kernels 0.17 altogether."""
    inherited = dict.fromkeys(verifying.FORGOTTEN, "1") | {"PATH": "/bin", "HF_TOKEN": "other"}
    kept = verifying.environment(inherited, Hub(hub.endpoint, "kw_x"), tmp_path)
    assert kept == {
        "PATH": "/bin",
        "HF_HOME": str(tmp_path),
        "HF_ENDPOINT": hub.endpoint,
        "HF_TOKEN": "kw_x",
    }
