# SPDX-License-Identifier: Apache-2.0
"""`kernelworks matrix`, with a Hub, without one, and for systems that are only described."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hub_process import RunningHub
from publications import REPO, here, published
from repositories import CPU_VARIANT, git

from kernelworks import catalog, matrix, matrix_view
from kernelworks.cli import main
from kernelworks.errors import HubUnavailableError, PublishError
from kernelworks.hub import Hub


def document(root: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["matrix", "toy", "--json", "--root", str(root), *words]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    return dict(found)


def test_what_is_built_here(built_once: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commit = git(built_once, "rev-parse", "HEAD")
    found = document(built_once, capsys, "--no-hub")
    assert (found["kernel"], found["version"], found["hub"]) == ("toy", 1, None)
    places = {each["variant"]: each for each in found["variants"]}
    assert len(places) == 8
    assert places.pop(CPU_VARIANT) == {
        "variant": CPU_VARIANT,
        "here": f"dev, {commit[:12]}",
        "on_hub": None,
    }
    assert {each["here"] for each in places.values()} == {None}


def test_what_is_on_the_hub(built: Path, hub: RunningHub, env: dict[str, str]) -> None:
    before = here(built, "matrix", "toy", env=env)
    assert f"{CPU_VARIANT}" in before.output
    assert before.output.count("not on the Hub") == 8
    published(built, env=env)
    after = here(built, "matrix", "toy", env=env)
    assert after.code == 0, after.output
    assert after.output.count("not on the Hub") == 7
    (line,) = (line for line in after.output.splitlines() if CPU_VARIANT in line)
    assert line.endswith("  on the Hub")
    assert f"the Hub: {REPO} on {hub.endpoint}" in after.output
    other = here(built, "matrix", "toy", "--repo-id", "acme/other", env=env)
    assert other.output.count("not on the Hub") == 8


def test_a_hub_that_is_not_reached_is_said(
    built_once: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refs(self: Hub, repo_id: str) -> None:
        raise HubUnavailableError(f"cannot reach {self.endpoint}")

    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(Hub, "refs", refs)
    assert main(["matrix", "toy", "--root", str(built_once)]) == 0
    text = capsys.readouterr().out
    assert "what is on the Hub is not known: cannot reach http://127.0.0.1:9" in text
    assert "not on the Hub" not in text


def test_one_described_system(built_once: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--torch", "2.14.1+cu132", "--cuda", "13.2", "--platform", "aarch64", "--python", "3.14")
    system = document(built_once, capsys, "--no-hub", *words)["system"]
    assert (system["torch"], system["cuda"], system["machine"]) == ([2, 14], [13, 2], "aarch64")
    loaded = [each["variant"] for each in system["decisions"] if each["verdict"] == "loads"]
    assert loaded == ["torch-stable-abi211-cu132-aarch64-linux"]
    assert len(system["decisions"]) == 8


def test_free_threaded_python_gets_nothing(built_once: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "toy", "--no-hub", "--python", "3.13t", "--root", str(built_once)]) == 0
    text = capsys.readouterr().out
    assert "Python 3.13t gets nothing" in text
    assert "free-threaded Python 3.13 has no stable ABI" in text


def test_all_systems(built_once: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(document(built_once, capsys, "--no-hub", "--systems")["systems"]) == 420
    assert main(["matrix", "toy", "--no-hub", "--systems", "--root", str(built_once)]) == 0
    assert "for CUDA 13.0, 13.1, x86_64, Python 3.10 to 3.14" in capsys.readouterr().out


def test_a_release_that_is_not_complete_fails_when_asked(
    built: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["matrix", "toy", "--no-hub", "--root", str(built)]
    assert main(words) == 0
    assert main([*words, "--complete"]) == PublishError.exit_code
    said = capsys.readouterr().err
    assert f"toy {CPU_VARIANT}" in said, "a dev build is none of a release"
    folder = built / "kernels/toy/build"
    metadata = json.loads((folder / CPU_VARIANT / "metadata.json").read_text())
    metadata["kernelworks"]["profile"] = "release"
    for name in matrix.complete(catalog.load(built, "toy")):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "metadata.json").write_text(json.dumps(metadata))
    assert main([*words, "--complete"]) == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--torch", "newest"), "argument --torch: must be a version such as 2.12, not 'newest'"),
        (("--cuda", "13"), "argument --cuda: must be a version such as 13.0, or none, not '13'"),
        (("--python", "3"), "argument --python: must be a version such as 3.12 or 3.13t, not '3'"),
        (("--platform", "riscv64"), "argument --platform: invalid choice: 'riscv64'"),
    ],
)
def test_bad_words(words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["matrix", "--no-hub", *words])
    assert sentence in capsys.readouterr().err


def test_one_repository_is_of_one_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(__file__).resolve().parents[2]
    code = main(["matrix", "--repo-id", "acme/toy", "--no-hub", "--root", str(root)])
    assert code == PublishError.exit_code
    assert "--repo-id acme/toy: name the one kernel" in capsys.readouterr().err


def test_builds_of_kernel_builder_and_of_no_commit(built: Path) -> None:
    path = built / "kernels/toy/build" / CPU_VARIANT / "metadata.json"
    metadata = json.loads(path.read_text())
    del metadata["kernelworks"], metadata["provenance"]
    path.write_text(json.dumps(metadata))
    kernel = catalog.load(built, "toy")
    assert matrix_view.built_here(kernel, CPU_VARIANT) == "by kernel-builder, commit unknown"
