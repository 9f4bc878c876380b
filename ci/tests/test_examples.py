# SPDX-License-Identifier: Apache-2.0
"""What `make run` shows: a kernel goes to a Hub and comes from it, and nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import publications
import pytest
from hub_process import client, running_hub

from kernelworks import catalog, loader

ROOT = catalog.find_root(Path(__file__))
PROGRAM = """
import json, os, sys
from kernels import get_kernel

toy = get_kernel("kernelworks/toy", version=1)
print(json.dumps([os.getpid(), toy.__file__, os.environ["HF_HOME"], os.environ["HF_ENDPOINT"]]), flush=True)
{end}
"""
SHORT_RUN = """
import first_run

first_run.SHAPES = {"short": [(64, 256)]}
raise SystemExit(first_run.main())
"""


def own_hub(root: Path, folder: Path, end: str) -> subprocess.Popen[str]:
    """Run a program that loads the toy and then does `end`, with all that a user may have set."""
    program, temporary = folder / "program.py", folder / "temporary"
    program.write_text(PROGRAM.format(end=end))
    temporary.mkdir()
    switches = {
        "HF_HUB_OFFLINE": "1",
        "HF_TOKEN": "hf_not_ours",
        "DO_NOT_TRACK": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    local = {"LOCAL_KERNELS": f"kernelworks/toy={root / 'kernels/toy'}", "HTTP_PROXY": "http://127.0.0.1:9"}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "examples/own_hub.py"), "toy", str(program), "--root", str(root)],
        env={**os.environ, **switches, **local, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def is_listening(endpoint: str) -> bool:
    address = urlsplit(endpoint)
    try:
        socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "sent", "code"),
    [
        pytest.param("", None, 0, id="ends well"),
        pytest.param("sys.exit(3)", None, 3, id="fails"),
        pytest.param("import time; time.sleep(600)", signal.SIGINT, 130, id="Ctrl-C"),
        pytest.param("import time; time.sleep(600)", signal.SIGHUP, 129, id="terminal closed"),
    ],
)
def test_a_program_loads_over_http_and_nothing_is_left(
    built: Path, tmp_path: Path, end: str, sent: signal.Signals | None, code: int
) -> None:
    before = {path for path in built.rglob("*") if path.is_file()}
    with own_hub(built, tmp_path, end) as process:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if line.startswith("["):
                pid, file, home, endpoint = json.loads(line)
                assert Path(file).is_relative_to(Path(home) / "hub/kernels--kernelworks--toy/snapshots")
                assert endpoint.startswith("http://127.0.0.1:")
                assert is_listening(endpoint)
                if sent is not None:
                    process.send_signal(sent)
    assert process.returncode == code, said
    assert not is_listening(endpoint)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not list((tmp_path / "temporary").iterdir())
    assert {path for path in built.rglob("*") if path.is_file()} == before
    assert bool(re.search(r"\n[1-9]\d* requests to the Hub, 0\.\d MiB; it has stopped", said)) == (code == 0)


def test_what_cannot_be_published_ends_it(repository: Path, tmp_path: Path) -> None:
    """Nothing is built there: the tool's sentence and its exit code are all there is."""
    with own_hub(repository, tmp_path, "") as process:
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 15, said
    assert "run `kernelworks build toy`" in said
    assert "first run" not in said
    assert "Traceback" not in said
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.slow
def test_the_first_run_says_where_its_kernel_came_from(tmp_path: Path) -> None:
    """From a Hub, and without one where LOCAL_KERNELS names a build; its layers come from the same place."""
    kernel = catalog.load(ROOT, "rmsnorm")
    if not loader.loads(kernel):
        pytest.skip("not built: rmsnorm; run `kernelworks build rmsnorm`")
    with running_hub(tmp_path / "hub", trusted=("kernelworks",)) as hub:
        env = hub.environment(tmp_path / "home", PYTHONPATH=str(ROOT / "examples"))
        receipt = str(tmp_path / "receipt.json")
        words = ("publish", "rmsnorm", "--no-load", "--allow-dirty", "--receipt", receipt)
        done = publications.here(ROOT, *words, env=env)
        assert done.code == 0, done.output
        said = client(SHORT_RUN, env=env)
        assert (
            f"version 1 from {hub.endpoint}, commit {publications.branches(hub, kernel.repo_id)['v1'][:12]}"
            in said
        )
        asked = len(hub.requests())
        local = client(SHORT_RUN, env=env | {"LOCAL_KERNELS": f"{kernel.repo_id}={kernel.directory}"})
        assert len(hub.requests()) == asked
    assert f"version 1 from {kernel.directory}\n" in local
    for each in (said, local):
        assert "17 of 17 RMSNorm layers replaced" in each
        assert each.endswith("all right\n")
