# SPDX-License-Identifier: Apache-2.0
"""`kernelworks bench-model`: times a whole model without and with the kernels, eager and compiled.

The models are those of examples/, with random weights, so nothing is downloaded. All variants run in one
process on the same weights; each is compared with the truth (the same weights in a wider type) and with
eager before it is timed, and looked at by the profiler afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shlex
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from kernelworks import bench_model_table, catalog, loader, testing
from kernelworks.bench_model_record import EAGER, VARIANTS, ModelRecord, ModelRequest, ModelResult
from kernelworks.benchmarking import WRONG, add_record_arguments, origin_given
from kernelworks.catalog import Kernel
from kernelworks.errors import KernelworksError, RepositoryError, ToolchainError
from kernelworks.process import stream
from kernelworks.provenance import Origin

KERNELS_OF = {"ltx": ("adaln", "rmsnorm", "rope3d"), "qwen3": ("rmsnorm", "rope3d")}
SIZES = ("tiny", "full")
DTYPES = ("bfloat16", "float16", "float32")


def request_for(kernels: Iterable[Kernel], arguments: argparse.Namespace) -> ModelRequest:
    """The arguments, with what they leave out filled in."""
    device = arguments.device or ("cuda" if loader.sees_gpu() else "cpu")
    kernels = list(kernels)
    return ModelRequest(
        model=arguments.model,
        size=arguments.size or ("full" if device == "cuda" else "tiny"),
        device=device,
        dtype=arguments.dtype or ("bfloat16" if device == "cuda" else "float32"),
        variants=arguments.variants,
        quick=arguments.quick,
        repos={kernel.name: kernel.repo_id for kernel in kernels},
        version=kernels[0].version,
    )


def require(root: Path, kernels: Iterable[Kernel], device: str) -> None:
    """Say what is missing before a process is started for nothing."""
    if not (root / "examples").is_dir():
        raise RepositoryError(f"{root} has no examples/, from which the models are taken")
    if device == "cuda" and not loader.sees_gpu():
        raise ToolchainError("torch sees no CUDA GPU here, so there is nothing to time; use --device cpu")
    for kernel in kernels:
        testing.require_build(kernel, device)


def environment(
    root: Path, kernels: Iterable[Kernel], folder: Path, inherited: Mapping[str, str]
) -> dict[str, str]:
    """The builds in the place of the Hub, this tool, and examples; what compiles finds nothing compiled."""
    found = dict(inherited)
    for kernel in kernels:
        found = testing.environment(kernel, found)
    given = [os.path.abspath(path) for path in inherited.get("PYTHONPATH", "").split(os.pathsep) if path]
    tool = str(Path(__file__).resolve().parent.parent)
    paths = os.pathsep.join([tool, *given, str(root.resolve())])
    return {**found, "PYTHONPATH": paths, "TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled")}


def measure(root: Path, kernels: list[Kernel], request: ModelRequest) -> ModelResult:
    """Let a fresh process outside the repository measure, and show its progress."""
    with tempfile.TemporaryDirectory(prefix="kernelworks-") as place:
        folder = Path(place)
        asked, found = folder / "request.json", folder / "result.pickle"
        asked.write_text(json.dumps(asdict(request)))
        said: list[str] = []

        def show(line: str) -> None:
            said.append(line)
            print(line, file=sys.stderr)

        code = stream(
            [sys.executable, "-m", "kernelworks.bench_model_child", str(asked), str(found)],
            on_line=show,
            cwd=folder,
            env=environment(root, kernels, folder, os.environ),
        )
        if found.is_file():
            result: ModelResult = pickle.loads(found.read_bytes())
            return result
    sentences = [line.removeprefix("error: ") for line in said if line.startswith("error: ")]
    raise KernelworksError(sentences[-1] if sentences else f"the benchmark's process ended with code {code}")


def record_of(origin: Origin, request: ModelRequest, result: ModelResult) -> ModelRecord:
    """What was measured, with where it comes from."""
    return ModelRecord(
        model=request.model,
        size=request.size,
        device=request.device,
        dtype=request.dtype,
        commit=origin.commit,
        dirty=origin.dirty,
        command=command_of(request),
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        machine=result.machine,
        builds=result.builds,
        packages=result.packages,
        settings=result.settings,
        replaced=result.replaced,
        left=result.left,
        weight_bytes=result.weight_bytes,
        works=result.works,
        failures=result.failures,
    )


def command_of(request: ModelRequest) -> str:
    """The command that repeats this run, with every default written out."""
    words = ["kernelworks", "bench-model", request.model, "--size", request.size, "--device", request.device]
    words += ["--dtype", request.dtype, "--variants", ",".join(request.variants)]
    return shlex.join([*words, *(["--quick"] if request.quick else [])])


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `kernelworks bench-model`."""
    parser = subparsers.add_parser(
        "bench-model",
        help="time a whole model, eager and compiled, without and with the kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", choices=KERNELS_OF, help="LTX-Video, or Qwen3-8B")
    parser.add_argument(
        "--size", choices=SIZES, help="the model's own, or a toy's (default: full on a GPU, tiny on a CPU)"
    )
    parser.add_argument("--device", choices=catalog.BACKENDS, help="where (default: a GPU if there is one)")
    parser.add_argument(
        "--dtype", choices=DTYPES, help="of weights and inputs (default: bfloat16, and float32 on a CPU)"
    )
    parser.add_argument(
        "--variants",
        type=_variants,
        default=VARIANTS,
        help=f"of {','.join(VARIANTS)} (default: all); eager, with which they are compared, always runs",
    )
    parser.add_argument("--quick", action="store_true", help="fewer samples, for a first look")
    add_record_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the tables, and write the record; a variant that failed is an exit code of its own."""
    root = catalog.root_of(arguments.root)
    kernels = [catalog.load(root, name) for name in KERNELS_OF[arguments.model]]
    request = request_for(kernels, arguments)
    require(root, kernels, request.device)
    origin = origin_given(root, arguments)  # before the run, as the tree may change during it
    record = record_of(origin, request, measure(root, kernels, request))
    for line in bench_model_table.lines(record):
        print(line)
    if arguments.json is not None:
        arguments.json.write_text(record.to_json())
    return 0 if record.correct else WRONG


def _variants(text: str) -> tuple[str, ...]:
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in VARIANTS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(VARIANTS)}")
    return tuple(name for name in VARIANTS if name in wanted or name == EAGER)
