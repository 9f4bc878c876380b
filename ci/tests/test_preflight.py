# SPDX-License-Identifier: Apache-2.0
"""What stops a publication before anything is sent: here first, then on the Hub."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from faulty_proxy import Fault, faulty_proxy
from hub_process import RunningHub, add_token, running_hub
from publications import OTHER_VARIANT, REPO, add_variant, change, publish, rewrite, variant, with_card
from repositories import CPU_VARIANT, edit

from kernelworks import catalog, checks_build, preflight
from kernelworks.catalog import Kernel
from kernelworks.errors import HubAccessError, PublishError
from kernelworks.finding import Finding
from kernelworks.hub import Hub
from kernelworks.preflight import Wish

REFUSED = 15
NOBODY_LISTENS = (
    "http://127.0.0.1:9"  # the discard port: what was sent there would be an error of another kind
)


def refusal(root: Path, *words: str) -> str:
    """What stands against publishing, found without a Hub."""
    done = publish(root, *words, env={"HF_ENDPOINT": NOBODY_LISTENS})
    assert done.code == REFUSED, done.output
    return done.output


@pytest.mark.parametrize("name", ["metadata.json", "__init__.py", "_ops.py", "*.so"])
def test_an_incomplete_variant_is_named(built: Path, name: str) -> None:
    """P12."""
    add_variant(built)
    (path,) = variant(built, OTHER_VARIANT).glob(name)
    path.unlink()
    said = refusal(built)
    assert f"build/{OTHER_VARIANT}" in said
    assert path.name in said
    assert CPU_VARIANT not in said
    assert said.startswith("error: nothing was sent; toy cannot be published like this:")


def test_a_variant_made_without_its_package_is_refused_though_its_digest_is_right(built: Path) -> None:
    """P12."""
    change(variant(built), __init__=None)
    assert "__init__.py: is missing, and nothing loads without it" in refusal(built)


def test_a_byte_that_was_changed_after_the_digest_is_found(built: Path) -> None:
    """L17."""
    (path,) = variant(built).glob("*.so")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    said = refusal(built)
    assert "is not as its digest says" in said
    assert path.name in said


def test_versions_that_disagree_are_found(built: Path) -> None:
    """L13: card and manifest, and the variants and the manifest."""
    with_card(built)
    edit(built / "kernels/toy/CARD.md", "version=1", "version=3")
    rewrite(variant(built), lambda metadata: metadata.update(version=7))
    said = refusal(built)
    assert "says version=3 at line" in said
    assert "has version 7, but build.toml 1" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--repo-id", "acme/other"], "--repo-id: acme/other is the repository of another kernel than toy"),
        (["--repo-id", "toy"], "--repo-id: 'toy' is no repository; write ORG/toy"),
        (["--repo-id", "../toy"], "is no repository"),
        (["--branch", "v2"], "--branch: v2 is the branch of version 2, but build.toml has version 1"),
        (["--branch", "main"], "--branch: main holds the card alone"),
    ],
)
def test_repository_and_branch_have_rules(built_once: Path, words: list[str], said: str) -> None:
    """P10, P06."""
    assert said in refusal(built_once, *words)


def test_the_manifest_may_not_name_another_kernel_s_repository(built: Path) -> None:
    """P10."""
    edit(built / "kernels/toy/build.toml", "kernelworks/toy", "kernelworks/rmsnorm")
    assert "kernelworks/rmsnorm is the repository of another kernel than toy" in refusal(built)


def test_the_flag_is_heard_before_the_manifest_and_that_before_the_version(built: Path) -> None:
    """P06."""
    kernel = catalog.load(built, "toy")
    assert preflight.version_branch(kernel, Wish()) == "v1"
    edit(built / "kernels/toy/build.toml", '"kernelworks/toy"', '"kernelworks/toy"\nbranch = "trial"')
    assert preflight.version_branch(kernel, Wish()) == "trial"
    assert preflight.version_branch(kernel, Wish(branch="v1")) == "v1"


def test_nothing_built_names_the_command(repository: Path) -> None:
    assert "run `kernelworks build toy`" in refusal(repository)


def test_dev_builds_are_not_for_huggingface_co(built_once: Path) -> None:
    kernel = catalog.load(built_once, "toy")
    with pytest.raises(PublishError, match=rf"{CPU_VARIANT} is a dev build, and https://huggingface.co"):
        preflight.parcel(built_once, kernel, Wish(), public=True)
    parcel = preflight.parcel(built_once, kernel, Wish(allow_dev=True), public=True)
    assert "dev builds" in "".join(parcel.notes)
    assert Hub("https://huggingface.co/").is_public
    assert not Hub("http://127.0.0.1:1").is_public


def test_sources_that_nobody_can_look_up_are_refused_unless_asked_for(built: Path) -> None:
    """B12."""

    def dirty(metadata: dict[str, object]) -> None:
        metadata["provenance"]["kernel"]["dirty"] = True  # type: ignore[index]

    def unknown(metadata: dict[str, object]) -> None:
        del metadata["provenance"]["kernel"]  # type: ignore[attr-defined]

    rewrite(variant(built), dirty)
    assert "with uncommitted changes" in refusal(built)
    rewrite(variant(built), unknown)
    assert "does not say which commit it was built from" in refusal(built)
    kernel = catalog.load(built, "toy")
    assert preflight.parcel(built, kernel, Wish(allow_dirty=True), public=False).sources == ("unknown",)


def test_a_binary_that_is_no_library_is_refused_before_anything_is_sent(
    built: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    """P12: its digest is right, so that only a look into it tells."""
    (path,) = variant(built).glob("*.so")
    path.write_bytes(path.read_bytes()[:9000])
    change(variant(built))
    with faulty_proxy(hub.endpoint) as proxy:
        done = publish(built, env=env | {"HF_ENDPOINT": proxy.endpoint})
    assert done.code == REFUSED, done.output
    assert f"{path.name}: is not a whole shared library of Linux" in done.output
    assert not proxy.writes()


def test_binaries_are_looked_into_where_they_are_sent(
    built: Path, hub: RunningHub, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes longest, and what is on the Hub was looked into when it was published."""
    looked: list[str] = []
    look = checks_build.binary_is_sound

    def spy(kernel: Kernel, extension: Path, metadata: Mapping[str, Any]) -> Iterator[Finding]:
        looked.append(extension.parent.name)
        return look(kernel, extension, metadata)

    monkeypatch.setattr(checks_build, "binary_is_sound", spy)
    add_variant(built)
    assert publish(built, env=env).code == 0
    assert sorted(looked) == sorted([CPU_VARIANT, OTHER_VARIANT])
    looked.clear()
    assert "nothing to do" in publish(built, env=env).output
    assert looked == []
    change(variant(built, OTHER_VARIANT), reference="")
    assert publish(built, env=env).code == 0
    assert looked == [OTHER_VARIANT]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunningHub, dict[str, str]]:
    """A Hub with tokens of every kind."""
    folder = tmp_path_factory.mktemp("guarded")
    tokens = folder / "tokens.json"
    made = {
        "writer": add_token(tokens, "writer", "kernelworks", write=True),
        "reader": add_token(tokens, "reader", "kernelworks", write=False),
        "stranger": add_token(tokens, "stranger", "acme", write=True),
        "expired": add_token(tokens, "expired", "kernelworks", write=True, days=-1),
        "unknown": "kw_" + "x" * 40,
    }
    with running_hub(folder / "hub", tokens=tokens) as hub:
        yield hub, made


@pytest.mark.parametrize(
    ("who", "said"),
    [
        ("reader", "the token of reader is read-only"),
        ("stranger", "stranger may not write to kernelworks on {endpoint}, only to stranger, acme"),
        ("expired", "token expired: expired"),
        ("unknown", "set HF_TOKEN to a valid token of this Hub"),
    ],
)
def test_a_token_without_the_right_stops_it_before_anything_is_sent(
    built_once: Path, guarded: tuple[RunningHub, dict[str, str]], tmp_path: Path, who: str, said: str
) -> None:
    """P13: with the fix, and the token is never printed."""
    hub, tokens = guarded
    with faulty_proxy(hub.endpoint) as proxy:
        environment = hub.environment(tmp_path / "home", tokens[who], HF_ENDPOINT=proxy.endpoint)
        done = publish(built_once, env=environment)
    assert done.code == HubAccessError.exit_code, done.output
    assert said.format(endpoint=proxy.endpoint) in done.output
    assert tokens[who] not in done.output
    assert not proxy.writes()


def test_without_a_token_the_sentence_says_where_one_goes(
    built_once: Path, guarded: tuple[RunningHub, dict[str, str]], tmp_path: Path
) -> None:
    """P13, in a process of its own: this one may know of a login."""
    hub, _ = guarded
    command = [sys.executable, "-m", "kernelworks", "publish", "toy", "--root", str(built_once)]
    done = subprocess.run(
        command, env=hub.environment(tmp_path / "home"), capture_output=True, text=True, check=False
    )
    assert done.returncode == HubAccessError.exit_code, done.stderr
    assert "no token for" in done.stderr
    assert "set HF_TOKEN, or run `hf auth login`" in done.stderr


def test_a_repository_that_needs_an_approval_is_said_before_any_commit(
    built_once: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    """P13: the Hub says 403 when the repository is to be made."""
    refuse = Fault("POST", "/api/repos/create", 403, headers={"X-Error-Message": "ask for approval"}, times=9)
    with faulty_proxy(hub.endpoint, [refuse]) as proxy:
        done = publish(built_once, env=env | {"HF_ENDPOINT": proxy.endpoint})
    assert done.code == HubAccessError.exit_code, done.output
    assert "ask for approval" in done.output
    assert "ask the owner of the organization for the right to write" in done.output
    assert not proxy.count("POST", "/commit/")


def test_a_name_that_a_model_has_is_refused(built_once: Path, hub: RunningHub, env: dict[str, str]) -> None:
    """P07, L05: a repository of another type would take the upload and serve no client."""
    model = Fault("GET", f"/api/models/{REPO}", 200, body=f'{{"id": "{REPO}", "sha": "{"0" * 40}"}}'.encode())
    with faulty_proxy(hub.endpoint, [model]) as proxy:
        done = publish(built_once, env=env | {"HF_ENDPOINT": proxy.endpoint})
    assert done.code == REFUSED, done.output
    assert f"{REPO} on {proxy.endpoint} is a model repository, not a kernel" in done.output
    assert not proxy.writes()


def test_the_api_of_kernels_is_the_one_that_is_used(
    built_once: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    """P07: nothing is written under /api/models."""
    with faulty_proxy(hub.endpoint) as proxy:
        assert publish(built_once, env=env | {"HF_ENDPOINT": proxy.endpoint}).code == 0
    written = [target for _, target in proxy.writes()]
    assert any(f"/api/kernels/{REPO}/commit/v1" in target for target in written)
    assert not [target for target in written if "models" in target]


def test_bytecode_is_left_at_home(built: Path) -> None:
    kernel = catalog.load(built, "toy")
    (variant(built) / "__pycache__").mkdir()
    (variant(built) / "__pycache__/x.pyc").write_bytes(b"x")
    parcel = preflight.parcel(built, kernel, Wish(), public=False)
    assert not [file.path for file in parcel.files if "pyc" in file.path]
