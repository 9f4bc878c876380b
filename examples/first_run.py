# SPDX-License-Identifier: Apache-2.0
"""rmsnorm as a user loads it, at shapes of real models and inside one (exit code 1: wrong, 2: no build).

`make run` has it come from a Hub; where LOCAL_KERNELS names a build, that is used instead.
"""

from __future__ import annotations

import copy
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from huggingface_hub import constants
from kernels import (  # type: ignore[import-untyped]
    LayerRepository,
    LocalLayerRepository,
    Mode,
    get_kernel,
    get_loaded_kernels,
    kernelize,
    use_kernel_mapping,
)
from transformers import Qwen3Config, Qwen3ForCausalLM

REPO_ID, VERSION = "kernelworks/rmsnorm", 1
EPS = 1e-6
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "LTX-Video": [(1, 1024, 2048), (4, 1024, 2048), (1, 8192, 2048), (2, 4096, 3072), (4, 4096, 3072)],
    "Qwen3-8B": [(1, 128, 4096), (1, 1024, 4096), (1, 4096, 4096), (1, 8192, 4096), (32768, 4096)],
    "wide, narrow": [(8192, 8192), (262144, 128), (65536, 64)],
}
SAMPLE = 512  # rows whose error is measured: all of a large tensor in fp64 would take longer than the rest
MANTISSA = {torch.float32: 23, torch.bfloat16: 7}
# bf16: one rounding is half an ulp, and what fp32 arithmetic adds is far less. fp32: 1e-5 relative, for sums
# of thousands of squares in any order.
MOST_ULPS = {torch.float32: 1e-5 * 2**23, torch.bfloat16: 1.0}
LAYER, LAYERS = "LlamaRMSNorm", 4


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    model: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    ulps: float
    ours: float  # seconds, as the next
    torchs: float

    @property
    def is_right(self) -> bool:
        return self.ulps <= MOST_ULPS[self.dtype]

    def __str__(self) -> str:
        shape, dtype = "x".join(map(str, self.shape)), str(self.dtype).removeprefix("torch.")
        times = f"{self.ours * 1e3:9.3f} {self.torchs * 1e3:9.3f} {self.torchs / self.ours:6.2f}x"
        verdict = "" if self.is_right else "  WRONG"
        return f"{self.model:<13}{shape:<12} {dtype:<9}{self.ulps:7.2f} {times}{verdict}"


def heading(kernel: ModuleType, source: str, device: torch.device) -> str:
    """What was loaded from where, where it runs, and the table's first line."""
    where = f"{torch.get_num_threads()} CPU threads" if device.type == "cpu" else torch.cuda.get_device_name()
    columns = (
        f"{'model':<13}{'shape':<12} {'dtype':<9}{'error':>7} {'ours ms':>9} {'torch ms':>9} {'ratio':>7}"
    )
    return f"""\
{REPO_ID} version {VERSION} from {source}
build/{Path(kernel.__file__ or "").parent.name}
torch {torch.__version__}, {where}

error  the largest of up to {SAMPLE} rows against fp64, in units of the last place (ulp)
ms     medians, ours and torch.nn.functional.rms_norm in turns, allocation included

{columns}"""


def local_build() -> Path | None:
    """The directory that LOCAL_KERNELS names for this kernel, if it does."""
    entries = (entry.partition("=") for entry in os.environ.get("LOCAL_KERNELS", "").split(":"))
    return next((Path(path) for repo_id, _, path in entries if repo_id == REPO_ID), None)


def load() -> ModuleType:
    """The kernel, or one sentence on how to get it."""
    try:
        kernel: ModuleType = get_kernel(REPO_ID, version=VERSION)
    except (OSError, ImportError, RuntimeError, ValueError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(":")
        print(f"error: no build of {REPO_ID} to load ({first[:200]}); do `make run`, or set LOCAL_KERNELS")
        raise SystemExit(2) from None
    return kernel


def source_of(kernel: ModuleType) -> str:
    """Where it came from, as `kernels` itself tells: a commit on a Hub, or a directory."""
    (loaded,) = [each for each in get_loaded_kernels() if each.module is kernel]
    if loaded.repo_info is not None:
        return f"{constants.ENDPOINT}, commit {loaded.repo_info.revision[:12]}"
    return str(Path(kernel.__file__ or "").parents[2])


def error_in_ulps(y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, reference: ModuleType) -> float:
    """The largest distance from the fp64 truth, in units of the last place of the output's dtype."""
    rows = torch.linspace(0, x.shape[0] - 1, min(SAMPLE, x.shape[0]), dtype=torch.float64).long().to(x.device)
    truth = reference.rms_norm(x[rows], weight, EPS)
    unit = torch.ldexp(torch.ones_like(truth), torch.frexp(truth).exponent - 1 - MANTISSA[y.dtype])
    return float(((y[rows].double() - truth).abs() / unit).max())


def medians(calls: list[Callable[[], object]], device: torch.device) -> list[float]:
    """Seconds of each call; they take turns, so that a busy moment of the machine meets all alike."""

    def seconds(call: Callable[[], object], count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / count

    slowest = max(seconds(call, 1) for call in calls)  # this round warms up
    count = max(1, int(0.01 / slowest))
    taken = [[seconds(call, count) for call in calls] for _ in range(7 if slowest < 0.5 else 3)]
    return [statistics.median(column) for column in zip(*taken, strict=True)]


@torch.no_grad()
def measure(
    kernel: ModuleType, model: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Row:
    """Numbers against fp64, and time against torch's own op."""
    width = shape[-1]
    x = torch.randn(shape, device=device, dtype=dtype)
    weight = (1 + 0.2 * torch.randn(width, device=device)).to(dtype)
    y = kernel.rms_norm(x, weight, EPS)
    ulps = error_in_ulps(y.view(-1, width), x.view(-1, width), weight, kernel.reference)
    ours, torchs = medians(
        [lambda: kernel.rms_norm(x, weight, EPS), lambda: F.rms_norm(x, (width,), weight, EPS)], device
    )
    return Row(model, shape, dtype, ulps, ours, torchs)


def small_qwen3(device: torch.device) -> Any:
    """The real classes with random weights; norms are not all ones, which would hide a weight not read."""
    settings: dict[str, Any] = {
        "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": LAYERS,
        "head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "attn_implementation": "eager",
    }  # fmt: skip
    model_class: Any = Qwen3ForCausalLM
    model = model_class(Qwen3Config(**settings))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data += 0.2 * torch.randn_like(parameter)
    return model.to(device=device, dtype=torch.bfloat16).eval()


@torch.no_grad()
def swap_layers(device: torch.device) -> tuple[int, float, float]:
    """Kernelize a Qwen3: how many layers are ours now, the largest logit difference, and bf16's own error."""
    before = small_qwen3(device)
    model, exact = copy.deepcopy(before), copy.deepcopy(before).float()
    # LayerRepository asks the Hub which versions there are even when LOCAL_KERNELS is set.
    repository = (
        LayerRepository(REPO_ID, layer_name=LAYER, version=VERSION)
        if (local := local_build()) is None
        else LocalLayerRepository(repo_path=local, layer_name=LAYER)
    )
    with use_kernel_mapping({"RMSNorm": {device.type: repository}}, inherit_mapping=False):
        model = kernelize(model, mode=Mode.INFERENCE, device=device.type)
    ours = repository.load().forward
    replaced = sum(getattr(module.forward, "__func__", None) is ours for module in model.modules())
    tokens = torch.randint(0, 1024, (2, 64), device=device)
    logits = [each(tokens).logits.double() for each in (model, before, exact)]
    return replaced, float((logits[0] - logits[1]).abs().max()), float((logits[1] - logits[2]).abs().max())


def main() -> int:
    """Print the table and the line about the model; 0 when all of it is right."""
    logging.getLogger("kernels.layer").setLevel(logging.ERROR)  # it names each layer that no mapping has
    torch.manual_seed(0)
    kernel = load()
    logging.getLogger("kernels.validate").setLevel(logging.ERROR)  # what it has to say, it says at each load
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtypes = [torch.bfloat16] if device.type == "cuda" else [torch.float32, torch.bfloat16]
    print(heading(kernel, source_of(kernel), device))
    right = True
    for model, shapes in SHAPES.items():
        for shape in shapes:
            for dtype in dtypes:
                row = measure(kernel, model, shape, dtype, device)
                print(row, flush=True)
                right = right and row.is_right

    replaced, difference, rounding = swap_layers(device)
    wanted = 4 * LAYERS + 1  # two norms around, two in the attention of each layer, and the last one
    print(f"\nQwen3ForCausalLM, {LAYERS} layers, bfloat16: {replaced} of {wanted} RMSNorm layers replaced;")
    print(f"largest difference of a logit {difference:.2g}, of bfloat16 itself from float32 {rounding:.2g}")
    right = right and replaced == wanted and difference <= rounding
    print("all right" if right else "error: something above is wrong")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
