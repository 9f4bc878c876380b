# SPDX-License-Identifier: Apache-2.0
"""`kernelworks bench`: times a kernel beside its peers, after verifying each of them."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from kernelworks import bench_case, bench_table, catalog, loader, testing
from kernelworks.bench_record import Record, Request, Result
from kernelworks.catalog import Kernel
from kernelworks.errors import KernelworksError, ToolchainError
from kernelworks.process import stream
from kernelworks.provenance import Origin, origin_of

WRONG = 10  # the exit code when a result was wrong
DTYPES = ("float32", "float16", "bfloat16")
DEFAULT_DTYPES = {"cpu": ("float32", "bfloat16"), "cuda": ("bfloat16",)}
FEWEST_REPEATS = 20


def request_for(kernel: Kernel, arguments: argparse.Namespace) -> Request:
    """The arguments, with what they leave out filled in."""
    device = arguments.device or ("cuda" if "cuda" in kernel.backends and loader.sees_gpu() else "cpu")
    return Request(
        repo_id=kernel.repo_id,
        version=kernel.version,
        device=device,
        file=str(bench_case.path_of(kernel).resolve()),
        suites=tuple(arguments.suite),
        shapes=tuple(arguments.shape),
        dtypes=tuple(arguments.dtype or DEFAULT_DTYPES[device]),
        peers=arguments.peers,
        threads=tuple(arguments.threads or ()),
        repeats=arguments.repeats,
    )


def require(kernel: Kernel, device: str) -> None:
    """Say what is missing before a process is started for nothing."""
    if device == "cuda" and not loader.sees_gpu():
        raise ToolchainError("torch sees no CUDA GPU here, so there is nothing to time; use --device cpu")
    testing.require_build(kernel, device)


def environment(kernel: Kernel, inherited: Mapping[str, str]) -> dict[str, str]:
    """As a user's, with the build in the place of the Hub; and with this tool, wherever it lies."""
    found = testing.environment(kernel, inherited)
    tool = str(Path(__file__).resolve().parent.parent)
    paths = [tool, *filter(None, [inherited.get("PYTHONPATH")])]
    return {**found, "PYTHONPATH": os.pathsep.join(paths)}


def measure(kernel: Kernel, request: Request) -> Result:
    """Let a fresh process outside the repository measure, and show its progress."""
    with tempfile.TemporaryDirectory(prefix="kernelworks-") as folder:
        asked, found = Path(folder) / "request.json", Path(folder) / "result.pickle"
        asked.write_text(json.dumps(asdict(request)))
        said: list[str] = []

        def show(line: str) -> None:
            said.append(line)
            print(line, file=sys.stderr)

        code = stream(
            [sys.executable, "-m", "kernelworks.bench_child", str(asked), str(found)],
            on_line=show,
            cwd=Path(folder),
            env=environment(kernel, os.environ),
        )
        if found.is_file():
            result: Result = pickle.loads(found.read_bytes())
            return result
    sentences = [line.removeprefix("error: ") for line in said if line.startswith("error: ")]
    raise KernelworksError(sentences[-1] if sentences else f"the benchmark's process ended with code {code}")


def record_of(kernel: Kernel, origin: Origin, request: Request, result: Result) -> Record:
    """What was measured, with where it comes from."""
    return Record(
        kernel=kernel.name,
        version=kernel.version,
        device=request.device,
        commit=origin.commit,
        dirty=origin.dirty,
        command=command_of(kernel, request),
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        build=result.build,
        machine=result.machine,
        suites=request.suites,
        repeats=request.repeats,
        measurements=result.measurements,
        host=result.host,
        missing=result.missing,
        notes=result.notes,
        rounding=result.rounding,
        packages=result.packages,
    )


def command_of(kernel: Kernel, request: Request) -> str:
    """The command that repeats this run, with every default written out."""
    words = ["kernelworks", "bench", kernel.name, "--device", request.device, "--suite", *request.suites]
    words += ["--dtype", *request.dtypes, "--repeats", str(request.repeats)]
    if request.shapes:
        words += ["--shape", *request.shapes]
    if request.peers is not None:
        words += ["--peers", ",".join(request.peers)]
    if request.threads:
        words += ["--threads", *map(str, request.threads)]
    return shlex.join(words)


def add_record_arguments(parser: argparse.ArgumentParser) -> None:
    """Where a record goes, and which commit it is of."""
    parser.add_argument(
        "--commit",
        type=commit_given,
        help="the commit of this copy of the repository, where git is not there to say: 40 digits, +dirty",
    )
    parser.add_argument(
        "--json", type=Path, metavar="OUT", help="write the record, with every sample, to OUT"
    )


def origin_given(root: Path, arguments: argparse.Namespace) -> Origin:
    """The commit of the repository; the one given where git is not there to say."""
    origin = origin_of(root)
    given: Origin | None = arguments.commit
    return given if origin.commit is None and given is not None else origin


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `kernelworks bench`."""
    parser = subparsers.add_parser(
        "bench", help="time a kernel beside its peers, each verified first", description=__doc__
    )
    parser.add_argument("name", metavar="NAME", help="a kernel")
    parser.add_argument("--device", choices=catalog.BACKENDS, help="where (default: a GPU if there is one)")
    parser.add_argument(
        "--suite",
        nargs="+",
        default=[bench_case.EVERYTHING],
        help="sets of cases that the kernel's benchmark file names (default: all)",
    )
    parser.add_argument(
        "--shape", nargs="+", default=[], help="of those, the cases of these shapes, as in 4x1024x2048"
    )
    parser.add_argument(
        "--dtype", nargs="+", choices=DTYPES, help="(default: bfloat16, and float32 too on a CPU)"
    )
    parser.add_argument("--peers", type=_names, help="as in torch,compile (default: all there are)")
    parser.add_argument(
        "--threads", nargs="+", type=_positive, help="numbers of CPU threads (default: one, then all)"
    )
    parser.add_argument(
        "--repeats",
        type=_positive,
        default=FEWEST_REPEATS,
        help="samples of each time (default: %(default)s)",
    )
    add_record_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the table, and write the record; a wrong result is an exit code of its own."""
    root = catalog.root_of(arguments.root)
    kernel = catalog.load(root, arguments.name)
    request = request_for(kernel, arguments)
    require(kernel, request.device)
    origin = origin_given(root, arguments)  # before the run, as the tree may change during it
    record = record_of(kernel, origin, request, measure(kernel, request))
    for line in bench_table.lines(record):
        print(line)
    if arguments.json is not None:
        arguments.json.write_text(record.to_json())
    return 0 if record.correct else WRONG


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def commit_given(text: str) -> Origin:
    commit, _, state = text.partition("+")
    if not re.fullmatch("[0-9a-f]{40}", commit) or state not in ("", "dirty"):
        raise argparse.ArgumentTypeError(f"{text} is not 40 digits of a commit, or those and +dirty")
    return Origin(commit, state == "dirty")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number
