# SPDX-License-Identifier: Apache-2.0
"""Measures the Hub on loopback with its real clients: publishing, publishing nothing, loading, many at once.

python ci/benchmarks/benchmark_hub.py --json docs/results/hub/loopback.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "ci/tests"))  # the starters of servers and clients are those of the tests

from hub_process import RunningHub, add_token, running_hub  # noqa: E402
from repositories import new_repository, variant  # noqa: E402

from kernelworks import bench_machine, official, provenance  # noqa: E402
from kernelworks.cli import main as kernelworks  # noqa: E402

ORG, KERNEL = "bench", "toy"
MIB = 1024 * 1024
PACKAGES = ("kernels", "huggingface-hub", "hf-xet", "torch", "uvicorn", "starlette", "pygit2", "h11")
CREATE_COMMIT = """
import sys, time
from pathlib import Path
from huggingface_hub import CommitOperationAdd, HfApi
repo, folder = sys.argv[1], Path(sys.argv[2])
api = HfApi()
api.create_repo(repo, repo_type="kernel", exist_ok=True)
api.create_branch(repo, branch="v1", repo_type="kernel", exist_ok=True)
files = [path for path in folder.rglob("*") if path.is_file()]
began = time.perf_counter()
operations = [CommitOperationAdd("build/" + path.relative_to(folder).as_posix(), path) for path in files]
api.create_commit(repo, operations, commit_message="toy v1", repo_type="kernel", revision="v1")
print("seconds", time.perf_counter() - began)
"""
LOAD = """
import sys, time
from kernels import get_kernel
import torch
began = time.perf_counter()
kernel = get_kernel(sys.argv[1], version=1, trust_remote_code=[sys.argv[1]])
print("seconds", time.perf_counter() - began)
assert kernel.twice(torch.ones(2)).tolist() == [2.0, 2.0]
"""


@dataclass(frozen=True)
class Sizes:
    """How much is measured, and how often."""

    variants: int
    data_bytes: int
    clients: int
    rounds: int
    counted: tuple[int, ...]  # numbers of variants to count the requests of a load with


@dataclass
class Samples:
    """Everything that was measured, each in the order of the rounds."""

    create_commit_s: list[float] = field(default_factory=list)
    create_commit_again_s: list[float] = field(default_factory=list)
    publish_s: list[float] = field(default_factory=list)
    publish_again_s: list[float] = field(default_factory=list)
    publish_peak_rss_mib: list[float] = field(default_factory=list)
    cold_load_s: list[float] = field(default_factory=list)
    warm_load_s: list[float] = field(default_factory=list)
    many_clients_s: list[float] = field(default_factory=list)
    many_clients_load_s: list[float] = field(default_factory=list)
    many_clients_failed: list[int] = field(default_factory=list)
    many_clients_peak_rss_mib: list[float] = field(default_factory=list)
    load_average_before: list[float] = field(default_factory=list)  # what else the machine was doing
    requests_of_a_cold_load: dict[str, list[int]] = field(default_factory=dict)
    requests_of_a_warm_load: dict[str, list[int]] = field(default_factory=dict)


FULL = Sizes(variants=40, data_bytes=5_000_000, clients=16, rounds=3, counted=(1, 4, 40))
QUICK = Sizes(variants=3, data_bytes=300_000, clients=2, rounds=1, counted=(1, 3))


def make_kernel(folder: Path, sizes: Sizes) -> Path:
    """A repository whose kernel has so many variants of this size; no two hold equal bytes."""
    root = new_repository(folder / "repository")
    if kernelworks(["build", KERNEL, "--backend", "cpu", "--root", str(root)]):
        raise SystemExit("the toy kernel could not be built; see above")
    built = variant(root)
    for number in range(sizes.variants):
        copy = built.with_name(built.name.replace("abi211", f"abi{211 + number}"))
        if copy != built:
            shutil.copytree(built, copy)
    for each in sorted(built.parent.iterdir()):
        (each / "data.bin").write_bytes(_noise(each.name, sizes.data_bytes))
        path = each / "metadata.json"
        metadata = json.loads(path.read_text())
        metadata.pop("digest")
        metadata["digest"] = official.digest(each)
        path.write_text(json.dumps(metadata))
    return root


def _noise(name: str, size: int) -> bytes:
    return random.Random(name).randbytes(size)


def peak_rss_mib(hub: RunningHub) -> float:
    """The most memory that the server's process had so far, as Linux counts it."""
    (kib,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{hub.pid}/status").read_text())
    return int(kib) * 1024 / MIB


def python(hub: RunningHub, home: Path, token: str, code: str, *arguments: str) -> subprocess.Popen[str]:
    """A client in a process of its own; its home is its cache."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=hub.environment(home, token),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def note(words: str) -> None:
    """Where it is: it takes minutes."""
    print(words, file=sys.stderr, flush=True)


def seconds_of(client: subprocess.Popen[str]) -> float | None:
    """What a client measured, or None when it failed, with its words on stderr."""
    said, _ = client.communicate(timeout=600)
    found = re.search(r"^seconds (\S+)$", said, re.M)
    if client.returncode or found is None:
        print(said, file=sys.stderr)
        return None
    return float(found[1])


def measured(client: subprocess.Popen[str]) -> float:
    """What a client measured that must not fail."""
    seconds = seconds_of(client)
    if seconds is None:
        raise SystemExit("a client failed; its words are above")
    return seconds


def publish(root: Path, hub: RunningHub, home: Path, token: str, repo: str, *more: str) -> float:
    """`kernelworks publish` as a person runs it: the seconds of the whole process."""
    words = ["publish", KERNEL, "--root", str(root), "--repo-id", repo, "--allow-dirty", "--no-load", *more]
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "kernelworks", *words],
        env=hub.environment(home, token),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stdout)
    return time.perf_counter() - began


def measure_publishing(folder: Path, root: Path, sizes: Sizes, samples: Samples) -> None:
    """Everything new, then the same again; by the stock client and by the tool, each on a fresh Hub."""
    variants = root / "kernels" / KERNEL / "build"
    for number in range(sizes.rounds):
        samples.load_average_before.append(os.getloadavg()[0])
        for way in ("create_commit", "publish"):
            with fresh_hub(folder / f"{way}-{number}") as (hub, token, home):
                if way == "create_commit":
                    for taken in (samples.create_commit_s, samples.create_commit_again_s):
                        taken.append(
                            measured(
                                python(hub, home, token, CREATE_COMMIT, f"{ORG}/{KERNEL}", str(variants))
                            )
                        )
                else:
                    for taken in (samples.publish_s, samples.publish_again_s):
                        taken.append(publish(root, hub, home, token, f"{ORG}/{KERNEL}"))
                samples.publish_peak_rss_mib.append(peak_rss_mib(hub))
            note(
                f"round {number + 1} of {way}: {getattr(samples, f'{way}_s')[-1]:.1f} s, then "
                f"{getattr(samples, f'{way}_again_s')[-1]:.1f} s"
            )


class fresh_hub:
    """A Hub with nothing on it, a token for it and a home for a client; gone afterwards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> tuple[RunningHub, str, Path]:
        self.folder.mkdir()
        tokens = self.folder / "tokens.json"
        token = add_token(tokens, "bench", "*", write=True)
        self.running = running_hub(self.folder / "hub", tokens=tokens)
        return self.running.__enter__(), token, self.folder / "home"

    def __exit__(self, *error: Any) -> None:
        self.running.__exit__(*error)
        shutil.rmtree(self.folder)


def measure_loading(folder: Path, root: Path, sizes: Sizes, samples: Samples) -> None:
    """Requests by the number of variants; then all clients at once, each with an empty cache."""
    build = root / "kernels" / KERNEL / "build"
    with fresh_hub(folder / "loading") as (hub, token, home):
        for count in sizes.counted:
            repo = f"{ORG}{count}/{KERNEL}"
            some = folder / f"some-{count}"
            for each in sorted(build.iterdir())[:count]:
                shutil.copytree(each, some / each.name)
            publish(root, hub, home, token, repo, "--from", str(some))
            for number in range(sizes.rounds):
                client_home = folder / f"home-{count}-{number}"
                for counts, taken in (
                    (samples.requests_of_a_cold_load, samples.cold_load_s),
                    (samples.requests_of_a_warm_load, samples.warm_load_s),
                ):
                    before = len(hub.requests())
                    taken.append(measured(python(hub, client_home, token, LOAD, repo)))
                    counts.setdefault(str(count), []).append(len(hub.requests()) - before)
            note(f"loads of {count} variants: {samples.requests_of_a_cold_load[str(count)]} requests")
    for number in range(sizes.rounds):
        with fresh_hub(folder / f"many-{number}") as (hub, token, home):
            publish(root, hub, home, token, f"{ORG}/{KERNEL}")
            _many(hub, folder / f"homes-{number}", token, sizes, samples)


def _many(hub: RunningHub, homes: Path, token: str, sizes: Sizes, samples: Samples) -> None:
    began = time.perf_counter()
    clients = [
        python(hub, homes / str(each), token, LOAD, f"{ORG}/{KERNEL}") for each in range(sizes.clients)
    ]
    taken = [seconds_of(client) for client in clients]
    samples.many_clients_s.append(time.perf_counter() - began)
    samples.many_clients_load_s += [seconds for seconds in taken if seconds is not None]
    samples.many_clients_failed.append(taken.count(None))
    samples.many_clients_peak_rss_mib.append(peak_rss_mib(hub))
    note(f"{sizes.clients} clients: {samples.many_clients_s[-1]:.1f} s, {taken.count(None)} failed")


def record(sizes: Sizes, samples: Samples) -> dict[str, Any]:
    """What was measured, where, with what: enough to do it again."""
    origin = provenance.origin_of(ROOT)
    values = asdict(samples)
    medians = {
        name: round(statistics.median(each), 3) for name, each in values.items() if isinstance(each, list)
    }
    return {
        "what": "the Hub on loopback, measured by its real clients in processes of their own",
        "command": " ".join(["python", "ci/benchmarks/benchmark_hub.py", *sys.argv[1:]]),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": origin.commit,
        "dirty": origin.dirty,
        "machine": {"cpu": bench_machine.cpu_model(), "cores": bench_machine.cores()},
        "versions": {"python": sys.version.split()[0], **bench_machine.installed(PACKAGES)},
        "sizes": asdict(sizes),
        "medians": medians,
        "samples": _rounded(values),
    }


def _rounded(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: _rounded(each) for name, each in values.items()}
    return [round(each, 3) for each in values]


def goals(samples: Samples) -> list[tuple[str, bool]]:
    """What the Hub promises, and whether it held: times in the median round, all else in every one."""
    requests = {each for counts in samples.requests_of_a_cold_load.values() for each in counts}
    peak = max(samples.publish_peak_rss_mib + samples.many_clients_peak_rss_mib)
    return [
        ("publishing everything takes under 30 s", statistics.median(samples.publish_s) < 30),
        ("publishing nothing takes under 3 s", statistics.median(samples.publish_again_s) < 3),
        ("the requests of a cold load do not grow with the number of variants", len(requests) == 1),
        ("all clients at once succeed", not any(samples.many_clients_failed)),
        ("the server stays under 300 MB", peak * MIB < 300e6),
    ]


def main() -> int:
    """Measure, print medians and goals, and write the record; 1 when a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where the record goes")
    parser.add_argument("--quick", action="store_true", help="a short round of small sizes, for a test")
    arguments = parser.parse_args()
    sizes, samples = (QUICK if arguments.quick else FULL), Samples()
    with tempfile.TemporaryDirectory(prefix="kernelworks-hub-") as name:
        folder = Path(name)
        root = make_kernel(folder, sizes)
        measure_publishing(folder, root, sizes, samples)
        measure_loading(folder, root, sizes, samples)
    found = record(sizes, samples)
    reached = goals(samples)
    found["goals"] = dict(reached)
    print(json.dumps(found["medians"], indent=2))
    for name, good in reached:
        print(f"{'reached' if good else 'MISSED'}: {name}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0 if all(good for _, good in reached) else 1


if __name__ == "__main__":
    sys.exit(main())
