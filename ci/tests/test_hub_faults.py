# SPDX-License-Identifier: Apache-2.0
"""Networks that break and Hubs that fail: the sentence, the exit code, and what is left on the Hub."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from faulty_proxy import AFTER, CUT, CUT_AFTER, HALF, Fault, faulty_proxy
from hub_process import RunningHub, client, running_hub
from publications import (
    REPO,
    Done,
    assert_intact,
    branches,
    change,
    files,
    here,
    kernelworks,
    publish,
    published,
    tags,
    titles,
    variant,
    with_card,
)
from repositories import CPU_VARIANT

from kernelworks import hub_faults
from kernelworks.errors import (
    HubAccessError,
    HubConflictError,
    HubError,
    HubUnavailableError,
    VerifyError,
)
from kernelworks.hub import Hub
from kernelworks.hub_data import Edit

COMMIT = "/commit/v1"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits between attempts, a hundredth as long; that there are waits is tested elsewhere."""
    monkeypatch.setattr(hub_faults, "WAITS", (0, 0, 0, 0))


def publish_through(
    hub: RunningHub, root: Path, env: dict[str, str], *faults: Fault
) -> tuple[Done, list[tuple[str, str]]]:
    with faulty_proxy(hub.endpoint, faults) as proxy:
        done = publish(root, env=env | {"HF_ENDPOINT": proxy.endpoint})
        return done, proxy.requests


def commits(requests: list[tuple[str, str]]) -> int:
    return sum(COMMIT in target for method, target in requests if method == "POST")


def assert_published_once(hub: RunningHub, done: Done) -> None:
    assert done.code == 0, done.output
    assert titles(hub).count("toy v1.0") == 1
    assert tags(hub) == {"v1.0": branches(hub)["v1"]}
    assert_intact(hub)


def test_a_rate_limit_is_waited_for_as_long_as_the_hub_says(
    built_once: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    """P19: 429 with Retry-After, which is longer than we would have waited."""
    fault = Fault("POST", COMMIT, 429, headers={"Retry-After": "2"})
    done, requests = publish_through(hub, built_once, env, fault)
    assert_published_once(hub, done)
    assert "429 made to fail; trying again in 2 s" in done.output
    assert commits(requests) == 2


@pytest.mark.usefixtures("impatient")
def test_a_hub_that_fails_once_at_every_step_is_asked_again(
    built_once: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    """P19: 500, and each thing is still made once."""
    faults = [Fault("GET", path, 500) for path in ("/whoami-v2", "/refs")]
    faults += [Fault("POST", path, 500) for path in ("/repos/create", "/branch/", COMMIT, "/tag/")]
    done, _ = publish_through(hub, built_once, env, *faults)
    assert_published_once(hub, done)
    assert all(len(fault.seen) == 1 for fault in faults)
    assert done.output.count("500 made to fail; trying again") >= len(faults) - 1, "one is looked into"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", [Fault("POST", COMMIT, 504, AFTER), Fault("POST", COMMIT, how=CUT_AFTER)])
def test_a_commit_that_landed_though_the_answer_was_lost_is_not_made_twice(
    built_once: Path, hub: RunningHub, env: dict[str, str], fault: Fault
) -> None:
    """P19: 504 after having stored it, and a connection that is cut before the answer."""
    done, requests = publish_through(hub, built_once, env, fault)
    assert_published_once(hub, done)
    assert commits(requests) == 1, "the history was asked instead"


@pytest.mark.usefixtures("impatient")
def test_branch_and_tag_that_were_made_though_the_answer_was_lost(
    built_once: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    faults = [Fault("POST", path, 504, AFTER) for path in ("/repos/create", "/branch/", "/tag/")]
    done, _ = publish_through(hub, built_once, env, *faults)
    assert_published_once(hub, done)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("how", [CUT, HALF])
def test_a_connection_that_breaks_during_the_upload_leaves_nothing_and_is_tried_again(
    built_once: Path, hub: RunningHub, env: dict[str, str], how: str
) -> None:
    """A truncated upload: the Hub got half of the commit."""
    done, requests = publish_through(hub, built_once, env, Fault("POST", COMMIT, how=how))
    assert_published_once(hub, done)
    assert commits(requests) == 2
    assert not list((hub.root / "tmp").rglob("*.*")), "what was received of it is gone"


@pytest.mark.usefixtures("impatient")
def test_a_hub_that_keeps_failing_leaves_the_old_release(
    built: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    published(built, env=env)
    before = branches(hub)
    change(variant(built), extra="x = 1\n")
    done, requests = publish_through(hub, built, env, Fault("POST", COMMIT, 503, times=99))
    assert done.code == HubUnavailableError.exit_code, done.output
    assert "503 made to fail, also after waiting; nothing is half done" in done.output
    assert commits(requests) == 5
    assert branches(hub) == before
    assert_intact(hub)


@pytest.mark.usefixtures("impatient")
def test_no_network(built_once: Path, env: dict[str, str]) -> None:
    done = publish(built_once, env=env | {"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert done.code == HubUnavailableError.exit_code
    assert "cannot reach http://127.0.0.1:9 to say whose token this is" in done.output
    assert "look at the network, HF_ENDPOINT, proxies" in done.output


@pytest.mark.usefixtures("impatient")
def test_a_hub_that_says_nothing_is_given_up(
    built_once: Path, hub: RunningHub, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """huggingface_hub itself would wait for ever for the list of branches."""
    monkeypatch.setattr(hub_faults, "SILENCE", 0.5)
    stop = threading.Event()
    fault = Fault("GET", "/refs", 500, act=lambda: stop.wait(60) and None, times=99)
    done, _ = publish_through(hub, built_once, env, fault)
    stop.set()
    assert done.code == HubUnavailableError.exit_code, done.output
    assert f"to list the branches of {REPO}" in done.output


def test_offline_by_choice(built_once: Path, env: dict[str, str]) -> None:
    done = kernelworks(built_once, "publish", "toy", env=env | {"HF_HUB_OFFLINE": "1"})
    assert done.code == HubUnavailableError.exit_code
    assert "HF_HUB_OFFLINE is set; unset it to reach" in done.output


def test_a_hub_that_asks_for_hours_is_left_alone(
    built_once: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    started = time.monotonic()
    fault = Fault("GET", "/whoami-v2", 429, headers={"Retry-After": "86400"}, times=99)
    done, _ = publish_through(hub, built_once, env, fault)
    assert done.code == HubUnavailableError.exit_code, done.output
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("path", "answer", "said"),
    [
        ("/whoami-v2", b"<html>hello", "did not say whose token this is"),
        ("/whoami-v2", b"5", "did not say whose token this is"),
        ("/refs", b"[]", "did not list the branches of"),
        ("/refs", b"{}", "did not list the branches of"),
    ],
)
def test_an_answer_of_another_program_is_one_sentence(
    built_once: Path, hub: RunningHub, env: dict[str, str], path: str, answer: bytes, said: str
) -> None:
    """A captive portal, or another program at that address."""
    done, _ = publish_through(hub, built_once, env, Fault("GET", path, 200, body=answer))
    assert done.code == HubError.exit_code, done.output
    assert done.output.count("\n") == 1, done.output
    assert said in done.output


def test_a_branch_that_moves_underneath_stops_it(built: Path, hub: RunningHub, env: dict[str, str]) -> None:
    """Somebody else commits between our plan and our commit: theirs stays, and ours is not made."""
    published(built, env=env)
    theirs: list[str] = []

    def move() -> None:
        parent = branches(hub)["v1"]
        edits = [Edit("theirs.txt", b"theirs")]
        landed = Hub(hub.endpoint).commit(REPO, "v1", edits, parent=parent, title="theirs", description="")
        theirs.append(landed.commit)

    change(variant(built), extra="x = 1\n")
    done, _ = publish_through(hub, built, env, Fault("POST", COMMIT, act=move))
    assert done.code == HubConflictError.exit_code, done.output
    assert "somebody else changed it in the meantime: look, and run this again" in done.output
    assert branches(hub)["v1"] == theirs[0]
    assert set(tags(hub)) == {"v1.0"}
    assert_intact(hub)
    assert publish(built, env=env).code == 0
    assert "theirs.txt" in files(hub, "v1")


@pytest.mark.slow
def test_what_others_published_meanwhile_is_not_taken_back_with_ours(
    built: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    """Ours, the first release, does not load; theirs came on top of it while it was verified."""
    theirs: list[str] = []

    def move() -> None:
        parent, edits = branches(hub)["v1"], [Edit("theirs.txt", b"theirs")]
        landed = Hub(hub.endpoint).commit(REPO, "v1", edits, parent=parent, title="theirs", description="")
        theirs.append(landed.commit)

    change(variant(built), __init__="raise ImportError('broken')\n")
    with faulty_proxy(hub.endpoint, [Fault("GET", "/resolve/", act=move)]) as proxy:
        done = here(built, "publish", "toy", env=env | {"HF_ENDPOINT": proxy.endpoint})
    assert done.code == VerifyError.exit_code, done.output
    assert "nothing is rolled back, as somebody else moved v1 in the meantime" in done.output
    assert branches(hub)["v1"] == theirs[0]
    assert not tags(hub)


@pytest.mark.slow
def test_two_publishers_at_once_end_with_one_release_of_each_content(
    built: Path, hub: RunningHub, env: dict[str, str], tmp_path: Path
) -> None:
    """P16: whoever loses says so and changes nothing; afterwards the branch is one of the two, whole."""
    published(with_card(built), env=env)
    change(variant(built), first="x = 1\n")
    others = tmp_path / "others"
    subprocess.run(["cp", "-r", str(built), str(others)], check=True)
    change(variant(others), first=None, second="x = 2\n")
    results: dict[str, Done] = {}

    def go(name: str, root: Path) -> None:
        results[name] = kernelworks(root, "publish", "toy", "--no-load", env=env)

    threads = [threading.Thread(target=go, args=each) for each in (("first", built), ("second", others))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    codes = {name: done.code for name, done in results.items()}
    said = "\n".join(done.output for done in results.values())
    assert set(codes.values()) <= {0, HubConflictError.exit_code, 16}, said
    assert 0 in codes.values(), said
    now = {path.rsplit("/", 1)[-1] for path in files(hub, "v1")} & {"first.py", "second.py"}
    assert len(now) == 1, "the content of one of them, never a mix"
    # Every tag names a commit that one of the two made whole.
    for tag in tags(hub):
        assert len({"first.py", "second.py"} & {p.rsplit("/", 1)[-1] for p in files(hub, tag)}) <= 1
    assert_intact(hub)


def test_a_client_that_is_killed_is_finished_by_the_next(
    built_once: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    """Killed when the branch is made and the commit is not: the branch is still taken for a fresh one."""
    struck = threading.Event()
    stop = threading.Event()

    def hold() -> None:
        struck.set()
        stop.wait(60)

    with faulty_proxy(hub.endpoint, [Fault("POST", COMMIT, 500, act=hold)]) as proxy:
        child = subprocess.Popen(
            [sys.executable, "-m", "kernelworks", "publish", "toy", "--root", str(built_once)],
            env=env | {"HF_ENDPOINT": proxy.endpoint},
            stdout=subprocess.DEVNULL,
        )
        assert struck.wait(60)
        child.send_signal(signal.SIGKILL)
        child.wait(60)
        stop.set()
    assert set(branches(hub)) == {"main", "v1"}
    assert not tags(hub)
    done = publish(built_once, env=env)
    assert_published_once(hub, done)
    assert "delete  README.md" in done.output, "what a new branch inherits goes"


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        (Fault("POST", COMMIT, how=CUT), 130, ""),
        (Fault("GET", "/resolve/"), VerifyError.exit_code, "the branch v1, which was new, is deleted again"),
    ],
    ids=["upload", "verify"],
)
def test_ctrl_c_leaves_no_release_that_was_not_verified(
    built_once: Path, hub: RunningHub, env: dict[str, str], fault: Fault, code: int, said: str
) -> None:
    struck, stop = threading.Event(), threading.Event()

    def hold() -> None:
        struck.set()
        stop.wait(60)

    fault.act = hold
    with faulty_proxy(hub.endpoint, [fault]) as proxy:
        child = subprocess.Popen(
            [sys.executable, "-m", "kernelworks", "publish", "toy", "--root", str(built_once)],
            env=env | {"HF_ENDPOINT": proxy.endpoint},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert struck.wait(60)
        child.send_signal(signal.SIGINT)
        _, stderr = child.communicate(timeout=60)
        stop.set()
    assert child.returncode == code, stderr
    assert said in stderr
    assert "Traceback" not in stderr
    assert not tags(hub)
    assert f"build/{CPU_VARIANT}/metadata.json" not in {p for b in branches(hub) for p in files(hub, b)}
    assert_intact(hub)


def with_large_file(root: Path) -> Path:
    """A file that the Hub keeps outside of git."""
    (variant(root) / "weights.py").write_text("x = '" + "0123456789" * 40_000 + "'\n")
    change(variant(root))
    return root


def test_a_full_disk_on_the_hub_leaves_the_old_release(
    built: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    """507 with a sentence, and not tried again; what was received of it is gone, and later it goes."""
    with running_hub(tmp_path / "hub") as full:
        env = full.environment(tmp_path / "home")
        published(built, env=env)
        before = branches(full)
        with_large_file(built)
        # A file of the server that grows beyond this gets an error as on a full disk.
        resource.prlimit(full.pid, resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        done, requests = publish_through(full, built, env)
        assert done.code == HubError.exit_code, done.output
        assert "507" in done.output
        assert "nothing was changed: the operator has to make room on its disk" in done.output
        assert commits(requests) == 1
        assert branches(full) == before
        assert not [path for path in (full.root / "tmp").rglob("*") if path.is_file()]
        assert_intact(full)
        resource.prlimit(full.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert publish(built, env=env).code == 0
        assert set(tags(full)) == {"v1.0", "v1.1"}


@pytest.mark.slow
def test_an_object_that_rots_on_the_hub_is_never_taken(
    built: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    """A client gives up on it with the Hub's own words, and the operator's check names it."""
    published(with_large_file(built), env=env)
    objects = (path for path in (hub.root / "repos").glob("*/*.lfs/*/*/*"))
    (path,) = (path for path in objects if path.stat().st_size > 250_000)
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    os.chmod(path, 0o644)
    path.write_bytes(content)
    done = here(built, "verify", REPO, "--version", "1", "--no-load", env=env)
    assert done.code == HubError.exit_code, done.output
    assert "corrupt" in done.output, done.output
    check = subprocess.run(
        [sys.executable, "-m", "kernelworks", "hub", "check", "--root", str(hub.root)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode != 0
    assert path.name in check.stdout + check.stderr


def test_a_digest_that_does_not_match_is_refused_by_the_hub_too(
    built: Path, hub: RunningHub, env: dict[str, str]
) -> None:
    """Clients do not look at it, so the Hub does: here for a client that is not ours."""
    (variant(built) / "_ops.py").write_text("changed = True\n")
    upload = (
        "import sys; from huggingface_hub import HfApi; api = HfApi();"
        f"api.create_repo({REPO!r}, repo_type='kernel'); api.create_branch({REPO!r}, branch='v1',"
        " repo_type='kernel');"
        f"api.upload_folder(repo_id={REPO!r}, repo_type='kernel', revision='v1', path_in_repo='build',"
        f" folder_path={str(variant(built).parent)!r})"
    )
    said = client(upload, env=env, check=False)
    assert "_ops.py" in said
    assert CPU_VARIANT in said
    assert titles(hub) == titles(hub, "main")
    assert_intact(hub)


def test_forbidden_says_who_can_help(built_once: Path, hub: RunningHub, env: dict[str, str]) -> None:
    fault = Fault("POST", COMMIT, 403, headers={"X-Error-Message": "protected branch"})
    done, requests = publish_through(hub, built_once, env, fault)
    assert done.code == HubAccessError.exit_code, done.output
    assert "403 protected branch; ask the owner of the organization" in done.output
    assert commits(requests) == 1
