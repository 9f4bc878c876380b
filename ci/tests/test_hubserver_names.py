# SPDX-License-Identifier: Apache-2.0
"""Names and paths that must never meet the file system, and those that must work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_process import RunningHub, running_hub
from huggingface_hub import HfApi
from hypothesis import given
from hypothesis import strategies as st

from kernelworks.hubserver import names
from kernelworks.hubserver.failures import Failure

BAD_PATHS = ["", "/", "/etc/passwd", "a//b", "a/", ".", "..", "a/../b", "../a", "./a", ".git/config"]
BAD_PATHS += ["a/.GIT/x", ".git ", ".git.", "git~1", ".git:x", "a/.git::$DATA"]
BAD_PATHS += ["a\\b", "a\0b", "a\nb", "a\x7fb", "a\u202eb"]
BAD_PATHS += ["a\u200bb", "a\ud800b", "a" * 256, "/".join(["a" * 200] * 6)]
GOOD_PATHS = ["a", "build/torch-cpu/x.abi3.so", ".gitattributes", "ä/日本.txt", "a b", "…", "a" * 255]
BAD_BRANCHES = ["", "-x", "a..b", "a b", "a~1", "a^", "a:b", "refs/heads/x", "HEAD", "a.lock", "/a", "a/"]
BAD_NAMES = ["api/x", "kernels/x", "a/b.git", "a/b--c", "a/..", "a/b/c", "a/", ".a/b", "a/é"]
BAD_BRANCHES += ["0" * 40, "A" * 40, "@{", "a\x01", "\u202ea", "x" * 201]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with running_hub(tmp_path_factory.mktemp("names") / "hub") as found:
        api = HfApi(endpoint=found.endpoint, token=False)
        api.create_repo("acme/scale-it", repo_type="kernel")
        yield found
        found.check()


@pytest.mark.parametrize("path", BAD_PATHS, ids=ascii)
def test_a_path_that_is_not_one_everywhere_is_refused(path: str) -> None:
    with pytest.raises(Failure) as caught:
        names.path(path)
    assert caught.value.status == 400


@pytest.mark.parametrize("path", GOOD_PATHS)
def test_a_path_of_words_is_taken(path: str) -> None:
    assert names.path(path) == path


@given(st.text(max_size=40))
def test_a_path_that_is_taken_stays_inside(text: str) -> None:
    try:
        names.path(text)
    except Failure:
        return
    inside = Path("/top").joinpath(text)
    assert inside.is_relative_to("/top")
    assert ".." not in inside.parts
    assert "\0" not in text


@pytest.mark.parametrize("branch", BAD_BRANCHES, ids=ascii)
def test_a_branch_that_git_or_a_client_would_take_for_something_else_is_refused(branch: str) -> None:
    with pytest.raises(Failure):
        names.branch(branch)


@pytest.mark.parametrize("branch", ["v1", "v12", "feature/x", "2.1", "a" * 40])
def test_a_plain_branch_is_taken(branch: str) -> None:
    if branch == "a" * 40:  # forty hexadecimal digits are a commit
        with pytest.raises(Failure):
            names.branch(branch)
    else:
        assert names.branch(branch) == branch


@pytest.mark.parametrize("repo", BAD_NAMES)
def test_a_repository_name_that_clients_would_not_take_is_refused(repo: str) -> None:
    org, _, name = repo.partition("/")
    with pytest.raises(Failure):
        names.new_repository(org, name)


@pytest.mark.parametrize(
    "address",
    [
        "/kernels/acme/scale-it/resolve/main/../../../../secret",
        "/kernels/acme/scale-it/resolve/main/%2e%2e/%2e%2e/secret",
        "/kernels/acme/scale-it/resolve/main/..%2f..%2fsecret",
        "/kernels/acme/scale-it/resolve/main/%2fetc%2fpasswd",
        "/kernels/acme/scale-it/resolve/main/a%00b",
        "/kernels/acme/scale-it/resolve/main/%ff",
        "/kernels/acme/scale-it/resolve/main/a%5c..%5cb",
        "/kernels/acme/%2e%2e/resolve/main/README.md",
        "/kernels/%2e%2e/acme/resolve/main/README.md",
        "/kernels/acme/scale-it/resolve/..%2f..%2fHEAD/README.md",
        "/api/kernels/acme/..%2f..%2fsecret/refs",
        "/api/kernels/acme%2fscale-it/refs",
        "/api/kernels/acme/scale-it/tree/main/%2e%2e",
        "/api/kernels/acme/scale-it/tree/main/.git",
        "/api/kernels/acme/scale-it/revision/refs%2fheads%2f..%2f..%2fkernelworks.json",
        "/api/kernels/acme/scale-it/revision/HEAD%00",
        "//etc/passwd",
        "/api/kernels//scale-it/refs",
    ],
)
def test_an_address_cannot_leave_its_repository(hub: RunningHub, address: str) -> None:
    answer = hub.ask("GET", address)
    assert answer.status in (400, 404), answer.body
    assert b"Traceback" not in answer.body
    assert hub.root.as_posix().encode() not in answer.body


def test_a_revision_is_one_part_of_the_address_however_it_is_written(hub: RunningHub) -> None:
    for revision in ("main", "refs%2Fheads%2Fmain", "HEAD"):
        answer = hub.ask("GET", f"/kernels/acme/scale-it/resolve/{revision}/README.md")
        assert answer.status == 200, revision
    assert hub.ask("GET", "/kernels/acme/scale-it/resolve/refs/heads/main/README.md").status == 404
