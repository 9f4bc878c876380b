# SPDX-License-Identifier: Apache-2.0
"""Each check of a kernel's C++ and CUDA files, proven by breaking a small kernel in just one way."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_kernel
from small_kernel import KERNEL, replaced

CHANGES = [
    pytest.param(
        {f"{KERNEL}/kernel_src/scale_cpu.cpp": "#include <torch/csrc/stable/tensor.h>\n"},
        "kernels/scale-it/kernel_src/scale_cpu.cpp: includes torch/csrc/stable/tensor.h; "
        "keep torch in torch-ext/; hand over plain pointers in Params",
        id="torch-below",
    ),
    pytest.param(
        {f"{KERNEL}/kernel_src/scale_cpu.cpp": '#include "../torch-ext/torch_binding.h"\n'},
        "kernels/scale-it/kernel_src/scale_cpu.cpp: is launcher and includes ../torch-ext/torch_binding.h, "
        "which is op; includes run vendor <- policy <- kernel <- launcher <- op <- binding; "
        "move what is needed to a lower file",
        id="torch-ext-below",
    ),
    pytest.param(
        {f"{KERNEL}/kernel_src/scale_policy.h": '#pragma once\n#include "scale_kernel.cuh"\n'},
        "kernels/scale-it/kernel_src/scale_policy.h: is policy and includes scale_kernel.cuh, which is "
        "kernel; "
        "includes run vendor <- policy <- kernel <- launcher <- op <- binding; move what is needed to a "
        "lower file",
        id="upward",
    ),
    pytest.param(
        {f"{KERNEL}/kernel_src/scale.h": '#pragma once\n#include "scale_cpu.cpp"\n'},
        "kernels/scale-it/kernel_src/scale.h: is a header and includes the source scale_cpu.cpp; "
        "move what both need to a header",
        id="source-in-header",
    ),
    pytest.param(
        {f"{KERNEL}/kernel_src/scale_cpu.cpp": '#include "elsewhere.h"\n'},
        'kernels/scale-it/kernel_src/scale_cpu.cpp: includes "elsewhere.h", which is not in this kernel; '
        "vendor it, or write <...> for a header of the compiler or a toolkit",
        id="unknown-header",
    ),
    pytest.param(
        {f"{KERNEL}/kernel_src/scale_policy.h": "#pragma once\n/* why\n */\n#  define WARP 32\n"},
        "kernels/scale-it/kernel_src/scale_policy.h: defines the macro WARP; "
        "use constexpr, a template, or #pragma once instead",
        id="macro",
    ),
    pytest.param(
        replaced(f"{KERNEL}/kernel_src/scale.cu", "cudaGetLastError()", "cudaSuccess"),
        "kernels/scale-it/kernel_src/scale.cu: launches at line 5 and does not look whether it failed; "
        "call cudaGetLastError within 5 lines, and hand its result back",
        id="unchecked-launch",
    ),
    pytest.param(
        replaced(f"{KERNEL}/kernel_src/scale.cu", "return cudaLaunchKernelEx", "cudaLaunchKernelEx"),
        "kernels/scale-it/kernel_src/scale.cu: drops the result of cudaLaunchKernelEx at line 9; "
        "hand its result back",
        id="dropped-result",
    ),
]


@pytest.mark.parametrize(("changes", "line"), CHANGES)
def test_each_broken_rule_is_one_line(tmp_path: Path, changes: dict[str, str], line: str) -> None:
    root = small_kernel.write(small_kernel.make(tmp_path), changes)
    (found,) = small_kernel.findings(root)
    assert found.startswith(line)
