# SPDX-License-Identifier: Apache-2.0
"""A small kernel with nothing wrong in it, for tests to break in one way each."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from kernelworks import checking, official

MANIFEST = """
[general]
name = "scale-it"
version = 2
edition = 5
license = "Apache-2.0"
backends = ["cpu", "cuda"]

[general.hub]
repo-id = "acme/scale-it"

[torch]
stable-abi = "2.11"
src = ["torch-ext/torch_binding.cpp", "torch-ext/torch_binding.h", "torch-ext/scale_op.cpp"]

[kernel.scale_cpu]
backend = "cpu"
depends = []
src = ["kernel_src/scale.h", "kernel_src/scale_cpu.cpp"]

[kernel.scale_cuda]
backend = "cuda"
depends = []
src = [
  "kernel_src/scale.cu",
  "kernel_src/scale_policy.h",
  "kernel_src/scale_kernel.cuh",
  "kernel_src/vendor/vec.cuh",
]
"""
LAUNCH = """#include "scale_kernel.cuh"
#include <cuda_runtime.h>
cudaError_t go(float* x) {
  // a kernel<<<1, 1>>>(x) in a comment is no launch
  scale_kernel<<<1, block_size>>>(
      x);
  return cudaGetLastError();
}
cudaError_t go_ex(const cudaLaunchConfig_t& c, float* x) { return cudaLaunchKernelEx(&c, scale_kernel, x); }
"""
INIT = """from torch import Tensor

from . import layers
from ._ops import add_op_namespace_prefix, ops

__all__ = ["layers", "scale"]


def scale(x: Tensor) -> Tensor:
    return ops.scale(x)
"""
FAKE = """import torch

from ._ops import add_op_namespace_prefix


@torch.library.register_fake(add_op_namespace_prefix("scale"))
def _scale(x):
    return torch.empty_like(x)
"""
CARD = """---
library_name: kernels
license: apache-2.0
tags:
  - kernels
---
    scale = get_kernel("acme/scale-it", version=2, trust_remote_code=["acme/scale-it"])
"""
KERNEL = "kernels/scale-it"
PACKAGE = f"{KERNEL}/torch-ext/scale_it"
FILES = {
    "common/vec.cuh": "#pragma once\n",
    "README.md": 'get_kernel("acme/scale-it", version=2)\nget_kernel("acme/other", version=7)\n',
    f"{KERNEL}/build.toml": MANIFEST,
    f"{KERNEL}/CARD.md": CARD,
    f"{KERNEL}/CHANGELOG.md": "# Changelog\n\n## 2.1\n\n- faster\n\n## 1.0\n",
    f"{KERNEL}/kernel_src/scale.h": "#pragma once\n#include <cstdint>\n",
    f"{KERNEL}/kernel_src/scale_policy.h": "#pragma once\n",
    f"{KERNEL}/kernel_src/scale_kernel.cuh": "".join(
        f'#include "{header}"\n' for header in ("scale.h", "scale_policy.h", "vendor/vec.cuh")
    ),
    f"{KERNEL}/kernel_src/scale.cu": LAUNCH,
    f"{KERNEL}/kernel_src/scale_cpu.cpp": '#include "scale.h"\n',
    f"{KERNEL}/kernel_src/vendor/vec.cuh": "#pragma once\n",
    f"{KERNEL}/torch-ext/torch_binding.h": "#pragma once\n#include <torch/csrc/stable/tensor.h>\n",
    f"{KERNEL}/torch-ext/torch_binding.cpp": '#include "registration.h"\n#include "torch_binding.h"\n',
    f"{KERNEL}/torch-ext/scale_op.cpp": '#include "torch_binding.h"\n#include "../kernel_src/scale.h"\n',
    f"{PACKAGE}/__init__.py": INIT,
    f"{PACKAGE}/_fake.py": FAKE,
    f"{PACKAGE}/layers/__init__.py": "from .. import _fake\n\n__all__ = []\n",
    f"{KERNEL}/tests/test_scale.py": "def test_nothing(): ...\n",
    f"{KERNEL}/benchmarks/benchmark_scale.py": "",
}
IDENTITY = "_scale_it_cpu_abc1234"
VARIANT = f"{KERNEL}/build/torch-stable-abi211-cpu-x86_64-linux"


def make(root: Path) -> Path:
    """A repository with the kernel as its only one."""
    return write(root, FILES)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def replaced(name: str, old: str, new: str) -> dict[str, str]:
    """The one file with another text in it."""
    assert old in FILES[name]
    return {name: FILES[name].replace(old, new)}


def findings(root: Path) -> list[str]:
    """What the tool says, line by line."""
    return [finding.line(root) for finding in checking.report(root).findings]


def build(root: Path, *flags: str) -> Path:
    """Add a variant whose binary is as small as the kernel."""
    write(root, {f"{VARIANT}/_ops.py": f"from . import {IDENTITY}\n\nops = torch.ops.{IDENTITY}\n"})
    source = root.parent / "tiny.cpp"
    source.write_text(
        f'extern "C" __attribute__((visibility("default"))) int PyInit_{IDENTITY}() {{ return 0; }}\n'
    )
    target = root / VARIANT / f"{IDENTITY}.abi3.so"
    subprocess.run(
        ["g++", "-shared", "-fPIC", str(source), *flags, "-o", str(target)], check=True, timeout=60
    )
    return write_metadata(root)


def write_metadata(root: Path, **changes: Any) -> Path:
    """Metadata and digest of the variant as it now is, with some keys changed."""
    variant = root / VARIANT
    metadata = {
        "name": "scale-it",
        "id": IDENTITY,
        "version": 2,
        "license": "Apache-2.0",
        "python-depends": [],
        "kernel-depends": [],
        "backend": {"type": "cpu"},
        "digest": official.digest(variant),
    }
    (variant / "metadata.json").write_text(json.dumps(metadata | changes))
    return root
