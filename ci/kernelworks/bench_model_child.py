# SPDX-License-Identifier: Apache-2.0
"""The process that measures a model: it loads the kernels as a user does, and runs every variant.

`python -m kernelworks.bench_model_child REQUEST RESULT`, in an environment where LOCAL_KERNELS names the
builds, and where the repository's `examples` can be imported.
"""

from __future__ import annotations

import importlib
import json
import logging
import pickle
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelworks import bench_machine, bench_model_measure
from kernelworks.bench_child import build_of
from kernelworks.bench_model_record import ModelRequest, ModelResult
from kernelworks.errors import BuildError, KernelworksError

MODULES = {"ltx": "kernelworks.bench_model_ltx", "qwen3": "kernelworks.bench_model_qwen3"}
PACKAGES = ("diffusers", "transformers", "kernels", "triton")


def loaded(request: ModelRequest) -> dict[str, ModuleType]:
    """The kernels, all of them: what a user may do without must not be missing from a measurement."""
    from examples.loading import load_kernels

    org = next(iter(request.repos.values())).split("/")[0]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        kernels: dict[str, ModuleType] = load_kernels(
            request.repos, request.device, org=org, version=request.version
        )
    if missing := [name for name in request.repos if name not in kernels]:
        reasons = [str(each.message) for each in said if missing[0] in str(each.message)]
        raise BuildError(reasons[0] if reasons else f"{missing[0]} cannot be loaded")
    return kernels


def execute(request: ModelRequest) -> ModelResult:
    """Load, prepare, and measure all that is asked for."""
    logging.getLogger("kernels.validate").setLevel(logging.ERROR)  # the record holds how a build was made
    kernels = loaded(request)
    with suppress(ImportError):  # of what it says, what matters is looked for in the profile
        importlib.import_module("transformers").logging.set_verbosity_error()
    prepared = importlib.import_module(MODULES[request.model]).prepare(request, kernels)
    print(f"{request.model} {request.size}: {prepared.weight_bytes / 1e9:.2f} GB of weights", flush=True)
    run = bench_model_measure.measure(prepared, request.device, request.variants)
    return ModelResult(
        machine=bench_machine.describe(request.device),
        builds={name: build_of(kernel) for name, kernel in kernels.items()},
        packages=bench_machine.installed(PACKAGES),
        settings=prepared.settings,
        replaced=prepared.replaced,
        left=prepared.left,
        weight_bytes=prepared.weight_bytes,
        works=bench_model_measure.results(prepared, run),
        failures=run.failures,
    )


def request_of(document: Mapping[str, Any]) -> ModelRequest:
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in document.items()
    }
    return ModelRequest(**values)


def main(request: str, result: str) -> int:
    """Read what is asked, and leave what was found; an error is a sentence, as in the command itself."""
    try:
        found = execute(request_of(json.loads(Path(request).read_text())))
    except KernelworksError as error:
        print(f"error: {error}", flush=True)
        return error.exit_code
    Path(result).write_bytes(pickle.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
