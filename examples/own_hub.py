# SPDX-License-Identifier: Apache-2.0
"""`make run`: publishes a kernel to a Hub that lives as long as one program, which loads it from there."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernelworks import catalog, official
from kernelworks.catalog import Kernel

TOOL = (sys.executable, "-m", "kernelworks")
PATIENCE = 10  # seconds between asking a process to end and ending it
LEFT_OUT = ("    ", "receipt: ")  # of what the tool prints: each file of a plan, and what will be gone
# Of the user's own Hub, cache and switches nothing may reach the children; nor may what begins with HF_.
FORGOTTEN = (
    *("LOCAL_KERNELS", "KERNELS_CACHE", "HUGGINGFACE_HUB_CACHE", "HUGGING_FACE_HUB_TOKEN"),
    *("TRANSFORMERS_OFFLINE", "DISABLE_TELEMETRY", "DO_NOT_TRACK"),
)


def environment(folder: Path, endpoint: str = "") -> dict[str, str]:
    """What the children see: this Hub, a cache that is empty at first, and a place for what they leave."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HF_") and name not in FORGOTTEN
    }
    direct = ",".join(filter(None, (os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), "127.0.0.1")))
    return kept | {
        "HF_HOME": str(folder / "home"),
        "HF_ENDPOINT": endpoint,
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "NO_PROXY": direct,
        "no_proxy": direct,
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(folder),
    }


@contextmanager
def started(argv: tuple[str, ...], **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with the block, and with it what it started: it has a group of its own."""
    process = subprocess.Popen(argv, start_new_session=True, text=True, **settings)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextmanager
def hub(folder: Path) -> Iterator[str]:
    """A Hub on loopback that takes kernels from anyone on this machine; its address."""
    words = ("hub", "serve", *data(folder), "--port", "0", "--open", "--log-file", str(folder / "hub.log"))
    with started((*TOOL, *words), env=environment(folder), stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        line = server.stdout.readline()  # "serving http://..., data in ..."
        if not line.startswith("serving "):
            raise SystemExit(server.wait())  # it has said why
        yield line.split()[1].rstrip(",")


def data(folder: Path) -> tuple[str, str]:
    """The Hub's own directory, for its commands."""
    return "--root", str(folder / "hub")


def run(argv: tuple[str, ...], env: dict[str, str]) -> None:
    """Run to the end; a failure ends all, with its exit code."""
    with started(argv, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith(LEFT_OUT):
                print(line, end="", flush=True)
        if process.wait():
            raise SystemExit(process.returncode)


def is_of_a_commit(variant: Path) -> bool:
    """Whether a variant was built from a commit without changes on top; any other is no release."""
    origin = (official.metadata_of(variant) or {}).get("provenance", {}).get("kernel") or {}
    return bool(origin.get("commit")) and not origin.get("dirty")


def publish(kernel: Kernel, root: Path, folder: Path, endpoint: str) -> None:
    """As one publishes to any Hub; what was built from uncommitted changes is let through here."""
    built = [path for path in (kernel.directory / "build").glob("*") if path.is_dir()]
    dirty = () if all(map(is_of_a_commit, built)) else ("--allow-dirty",)
    words = ("publish", kernel.name, "--root", str(root), "--receipt", str(folder / "receipt.json"), *dirty)
    run((*TOOL, *words), environment(folder, endpoint))
    owner = kernel.repo_id.partition("/")[0]
    run((*TOOL, "hub", "org", owner, *data(folder), "--trusted"), environment(folder))


def say(words: str) -> None:
    """The heading of a step, as make's own are."""
    print(f"\n== {words}", flush=True)


def requests(folder: Path) -> list[dict[str, Any]]:
    """What the Hub was asked so far."""
    lines = map(json.loads, (folder / "hub.log").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line["event"] == "request"]


def main() -> int:
    """Serve, publish, run the program, stop; the exit code is that of the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", metavar="NAME", help="the kernel, which is built already")
    parser.add_argument("program", metavar="PROGRAM", help="a Python program that loads it")
    parser.add_argument("--root", type=Path, help="the repository (default: the one around us)")
    arguments = parser.parse_args()
    root = catalog.root_of(arguments.root)
    kernel = catalog.load(root, arguments.name)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="kernelworks-run-") as name:
        folder = Path(name)
        with hub(folder) as endpoint:
            say(f"publish to a Hub on this machine, {endpoint}")
            publish(kernel, root, folder, endpoint)
            say("first run: a fresh process with an empty cache")
            before = len(requests(folder))
            run((sys.executable, arguments.program), environment(folder, endpoint))
            asked = requests(folder)[before:]
    mib = sum(each["bytes"] for each in asked) / 2**20
    print(f"\n{len(asked)} requests to the Hub, {mib:.1f} MiB; it has stopped, and its data is gone")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
