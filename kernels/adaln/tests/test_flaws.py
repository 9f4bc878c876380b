# SPDX-License-Identifier: Apache-2.0
"""The tests are able to fail: each mistake that a kernel could make is caught by its test."""

from __future__ import annotations

import pytest
import test_adaln as numbers
import test_autograd as gradients
import test_modulators as modulators
import test_shapes as shapes
import test_training as training
import torch
from flawed import flawed

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32

# the mistake (see flawed.py), the test that must fail, and its parameters
CAUGHT = (
    ("naive_variance", numbers.test_far_from_zero, {"dtype": F32, "mean": 1000}),
    ("naive_variance", numbers.test_far_from_zero, {"dtype": BF16, "mean": 100}),
    ("naive_variance", numbers.test_constant_rows, {"dtype": F32}),
    ("bf16_mean", numbers.test_far_from_zero, {"dtype": BF16, "mean": 100}),
    ("squares_in_dtype", numbers.test_squares_beyond_the_dtype, {"dtype": F16}),
    ("bf16_sum", shapes.assert_width, {"dtype": BF16, "width": 2304}),
    ("bf16_sum", shapes.assert_width, {"dtype": F32, "width": 128}),
    ("no_tail", shapes.assert_width, {"dtype": F32, "width": 769}),
    ("no_tail", shapes.assert_width, {"dtype": BF16, "width": 33}),
    ("no_eps", numbers.test_eps_is_forwarded, {"eps": 1e-6, "expected": 0.70711, "norm": "rms"}),
    ("no_eps", numbers.test_zeros_give_the_shift, {"dtype": F32, "norm": "layer"}),
    ("fixed_eps", numbers.test_eps_is_forwarded, {"eps": 1e-6, "expected": 0.70711, "norm": "layer"}),
    ("cast_order", numbers.test_one_rounding, {"dtype": BF16, "norm": "rms"}),
    ("cast_order", numbers.test_one_rounding, {"dtype": F16, "norm": "layer"}),
    ("scale_in_dtype", numbers.test_one_is_added_to_scale_in_fp32, {}),
    ("scale_in_dtype", shapes.assert_width, {"dtype": BF16, "width": 128}),
    ("no_one", numbers.test_modulators_that_change_nothing, {"dtype": BF16, "norm": "rms"}),
    ("no_one", shapes.assert_width, {"dtype": F32, "width": 48}),
    ("shift_first", shapes.assert_width, {"dtype": F32, "width": 48}),
    ("no_gate", shapes.assert_width, {"dtype": F32, "width": 48}),
    ("no_residual", shapes.assert_width, {"dtype": F32, "width": 48}),
    ("pair_in_dtype", numbers.test_a_pair_is_added_in_fp32, {"slot": "scale"}),
    ("pair_in_dtype", numbers.test_a_pair_is_added_in_fp32, {"slot": "gate"}),
    ("temb_lost", modulators.test_form, {"form": "table and sample"}),
    ("unrounded_sum", numbers.test_one_rounding, {"dtype": BF16, "norm": "rms"}),
    ("unrounded_sum", numbers.test_the_rounded_sum_is_normalised, {"dtype": F16, "norm": "layer"}),
    ("weight_in_x_dtype", numbers.test_parameters_of_another_dtype, {"dtype": BF16, "norm": "rms"}),
    ("token_stride", modulators.test_form, {"form": "token"}),
    ("token_stride", modulators.test_form, {"form": "position"}),
    ("token_stride", modulators.test_fp32_slices_beside_half_precision, {"dtype": BF16, "tokens": 7}),
    ("batch_stride", modulators.test_form, {"form": "sample"}),
    ("batch_stride", modulators.test_two_dims_are_a_row_for_each_sample, {"shape": (3, 5, 40)}),
    ("batch_stride", modulators.test_groups, {"shape": (300, 2, 40)}),
    ("modulator_stride", modulators.test_form, {"form": "unbind"}),
    ("modulator_stride", modulators.test_form, {"form": "chunk"}),
    ("modulator_stride", modulators.test_fp32_slices_beside_half_precision, {"dtype": BF16, "tokens": 1}),
    ("row_stride", shapes.assert_layout, {"dtype": F32, "layout": "slice of a fused qkv"}),
    ("row_stride", shapes.assert_layout, {"dtype": BF16, "layout": "every second row"}),
    ("row_stride", shapes.assert_layout, {"dtype": F32, "layout": "every second column"}),
    ("batch_dependent", shapes.test_batch_invariant, {"dtype": F32, "width": 1031, "norm": "rms"}),
    ("batch_dependent", shapes.test_batch_invariant, {"dtype": F32, "width": 1031, "norm": "layer"}),
    ("no_mean_term", gradients.assert_width, {"dtype": BF16, "width": 33}),
    ("no_mean_term", gradients.assert_width, {"dtype": F32, "width": 769}),
    ("no_projection", gradients.assert_width, {"dtype": BF16, "width": 33}),
    ("no_gate", gradients.assert_width, {"dtype": F32, "width": 33}),
    ("no_one", gradients.assert_width, {"dtype": BF16, "width": 128}),
    ("no_eps", gradients.assert_width, {"dtype": F32, "width": 128}),
    ("bf16_rstd", gradients.test_statistics_are_not_saved_in_low_precision, {"norm": "rms", "mean": 1}),
    ("bf16_mean", gradients.test_statistics_are_not_saved_in_low_precision, {"norm": "layer", "mean": 100}),
    ("bf16_modulator_grad", gradients.test_sums_over_many_rows, {"shape": (1, 16384, 128), "other": BF16}),
    ("temb_lost", gradients.test_form, {"form": "table and token"}),
    ("batch_stride", gradients.test_form, {"form": "sample"}),
    ("token_stride", gradients.test_a_row_of_modulators_for_each_token, {"shape": (2, 300, 64)}),
    ("overwrites_grad", gradients.assert_width, {"dtype": F32, "width": 128}),
    ("overwrites_grad", training.test_gradient_is_not_overwritten_for_a_residual, {"norm": "rms"}),
    ("no_grad_residual", gradients.test_residual_grads, {"dtype": BF16, "which": "both"}),
    ("no_grad_residual", training.test_only_some_train, {"form": "sample"}),
    ("no_gate", training.test_gate_residual, {"dtype": F32}),
)


@pytest.mark.parametrize(("flaw", "test", "case"), CAUGHT, ids=lambda v: getattr(v, "__name__", None))
def test_flaw_is_caught(adaln, flaw, test, case):
    """The same code without the mistake passes, so it is the mistake that fails.

    On the CPU always: the mistakes are plain torch's, and on a GPU torch's own mean depends on the batch.
    """
    cpu = torch.device("cpu")
    test(flawed(adaln, None), cpu, **case)
    with pytest.raises(AssertionError):
        test(flawed(adaln, flaw), cpu, **case)
