# SPDX-License-Identifier: Apache-2.0
"""The tests are able to fail: each mistake that a kernel could make is caught by its test."""

from __future__ import annotations

import pytest
import test_autograd as gradients
import test_rmsnorm as numbers
import test_shapes as shapes
import test_training as training
import torch
from flawed import flawed

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32

# the mistake (see flawed.py), the test that must fail, and its parameters
CAUGHT = (
    ("cast_order", numbers.test_cast_order, {"dtype": BF16, "rounding": "once"}),
    ("cast_order", numbers.test_cast_order, {"dtype": BF16, "rounding": "before_weight"}),
    ("cast_order", numbers.test_cast_order, {"dtype": F16, "rounding": "once"}),
    ("no_eps", numbers.test_eps_is_forwarded, {"eps": 1e-6, "expected": 0.70711}),
    ("no_eps", numbers.test_zeros_stay_zero, {"dtype": F32}),
    ("fixed_eps", numbers.test_eps_is_forwarded, {"eps": 1e-6, "expected": 0.70711}),
    ("bf16_sum", shapes.test_width, {"dtype": BF16, "width": 2304}),
    ("bf16_sum", shapes.test_width, {"dtype": F32, "width": 128}),
    ("squares_in_dtype", numbers.test_squares_beyond_the_dtype, {"dtype": F16}),
    ("squares_in_dtype", shapes.test_width, {"dtype": BF16, "width": 3584}),
    ("offset_in_dtype", numbers.test_offset_is_added_in_fp32, {}),
    ("offset_in_dtype", shapes.test_width, {"dtype": BF16, "width": 3584}),
    ("no_offset", numbers.test_zero_weight_with_an_offset, {}),
    ("no_residual", shapes.test_width, {"dtype": F32, "width": 48}),
    ("unrounded_sum", numbers.test_cast_order, {"dtype": BF16, "rounding": "once"}),
    ("row_stride", shapes.test_layout, {"dtype": F32, "layout": "slice of a fused qkv"}),
    ("row_stride", shapes.test_layout, {"dtype": BF16, "layout": "every second row"}),
    ("row_stride", shapes.test_layout, {"dtype": F16, "layout": "every second column"}),
    ("no_tail", shapes.test_width, {"dtype": F32, "width": 769}),
    ("no_tail", shapes.test_width, {"dtype": BF16, "width": 33}),
    ("weight_in_x_dtype", numbers.test_weight_of_another_dtype, {"dtype": BF16, "rounding": "once"}),
    ("batch_dependent", shapes.test_batch_invariant, {"dtype": F32, "width": 1031}),
    ("no_weight_grad", gradients.test_grads, {"dtype": F32, "width": 33}),
    ("no_mean_term", gradients.test_grads, {"dtype": BF16, "width": 33}),
    ("no_offset", gradients.test_grads, {"dtype": BF16, "width": 128}),
    ("no_eps", gradients.test_grads, {"dtype": F32, "width": 128}),
    ("overwrites_grad", gradients.test_grads, {"dtype": F32, "width": 128}),
    ("overwrites_grad", training.test_gradient_is_not_overwritten_for_a_residual, {}),
    ("bf16_rstd", gradients.test_statistic_is_not_saved_in_low_precision, {}),
    (
        "bf16_weight_grad",
        gradients.test_weight_grad_over_many_rows,
        {"shape": (16384, 128), "weight_dtype": F32},
    ),
    (
        "bf16_weight_grad",
        gradients.test_weight_grad_over_many_rows,
        {"shape": (16384, 128), "weight_dtype": BF16},
    ),
    ("no_grad_residual", gradients.test_residual_grads, {"dtype": BF16, "which": "both"}),
    ("no_grad_residual", gradients.test_residual_grads, {"dtype": F32, "which": "both"}),
    (
        "row_stride",
        gradients.test_strided_inputs_and_gradients,
        {"dtype": F32, "layout": "slice of a fused qkv"},
    ),
)


@pytest.mark.parametrize(("flaw", "test", "case"), CAUGHT, ids=lambda v: getattr(v, "__name__", None))
def test_flaw_is_caught(rmsnorm, flaw, test, case):
    """The same code without the mistake passes, so it is the mistake that fails.

    On the CPU always: the mistakes are plain torch's, and on a GPU torch's own mean depends on the batch.
    """
    cpu = torch.device("cpu")
    test(flawed(rmsnorm, None), cpu, **case)
    with pytest.raises(AssertionError):
        test(flawed(rmsnorm, flaw), cpu, **case)
