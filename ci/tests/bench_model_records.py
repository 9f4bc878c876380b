# SPDX-License-Identifier: Apache-2.0
"""Makes the records of models that the tests look at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench_records import MACHINE

from kernelworks.bench_model_record import (
    Agreement,
    Distance,
    Measured,
    ModelRecord,
    Profile,
    Share,
    WorkResult,
)

COPY = "at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(char*)>"
OURS = "kernelworks::adaln::forward_kernel<__nv_bfloat16, 1>"


def profile(**groups: float) -> Profile:
    """Of a GPU; names of groups with _ for a space."""
    named = {group.replace("_", " "): ms for group, ms in groups.items()}
    shares = [Share("nvjet_hsh_128x256", "matmul", named.get("matmul", 0.0), 100)]
    shares += [Share(COPY, "copies", named["copies"], 12)] if "copies" in named else []
    shares += [Share(OURS, "kernelworks adaln", named["kernelworks adaln"], 57)] if len(named) > 2 else []
    total = sum(named.values())
    return Profile(on_gpu=True, busy=total, total=total, calls=320, groups=named, top=tuple(shares))


def measured(ms: float, of: Profile | None = None, **changes: Any) -> Measured:
    values: dict[str, Any] = {
        "first": 900.0,
        "samples": (ms, ms, ms + 5),
        "distance": Distance(truth=4e-3, eager=5e-3, allowed=8e-3),
        "peak_bytes": 5_000_000_000,
        "profile": of,
    }
    return Measured(**{**values, **changes})


def work(**changes: Any) -> WorkResult:
    """A step in all four variants: 60, 30, 40 and 24 ms."""
    values: dict[str, Any] = {
        "name": "step",
        "unit": "step",
        "units": 4,
        "variants": {
            "eager": measured(60.0, profile(matmul=25.0, copies=30.0), distance=Distance(4e-3, None, None)),
            "kernels": measured(30.0, profile(matmul=25.0, copies=1.0, kernelworks_adaln=3.0)),
            "compile": measured(40.0, profile(matmul=25.0, **{"torch.compile": 12.0})),
            "kernels+compile": measured(24.0, profile(matmul=20.0, kernelworks_adaln=3.0, copies=0.5)),
        },
    }
    return WorkResult(**{**values, **changes})


def tokens() -> WorkResult:
    """Generation, in which the kernels choose another token than eager once."""
    far = Distance(5e-3, 6e-3, 1e-2, Agreement(positions=64, same=63, diverges=9))
    own = Distance(5e-3, None, None, Agreement(positions=64, same=64, diverges=None))
    variants = {
        "eager": measured(50.0, distance=own, peak_bytes=None),
        "kernels": measured(25.0, distance=far, peak_bytes=None),
    }
    return WorkResult("decode", "token", 63, variants)


def model_record(*works: WorkResult, **changes: Any) -> ModelRecord:
    values: dict[str, Any] = {
        "model": "ltx",
        "size": "full",
        "device": "cuda",
        "dtype": "bfloat16",
        "commit": "0123456789abcdef",
        "dirty": False,
        "command": "kernelworks bench-model ltx --size full",
        "date": "2026-01-01T00:00:00+00:00",
        "machine": replace(MACHINE, gpu="a GPU", driver="580", cuda="13.0"),
        "builds": {"adaln": {"variant": "a-variant", "profile": "dev", "commit": "abc", "dirty": True}},
        "packages": {"diffusers": "0.42.1"},
        "settings": {"num_frames": 49, "compile": {"mode": "default"}},
        "replaced": {"ada_norm": 29},
        "left": {"Attention with another processor": 1},
        "weight_bytes": 4_000_000_000,
        "works": works or (work(),),
        "failures": {},
    }
    return ModelRecord(**{**values, **changes})
