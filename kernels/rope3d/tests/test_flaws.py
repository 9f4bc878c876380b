# SPDX-License-Identifier: Apache-2.0
"""The tests are able to fail: each mistake that a kernel could make is caught by its test."""

from __future__ import annotations

import pytest
import test_autograd as gradients
import test_in_place as in_place
import test_presets as presets
import test_rope3d as numbers
import test_shapes as shapes
import test_tables as tables
import test_training as training
import torch
from flawed import flawed

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
PLAIN = {"interleaved": True, "dtype": F32}
NORMED = {"kind": "head norm", "interleaved": True, "dtype": F32}
SMALL = {"shape": (1, 5, 4, 16), "k_heads": 1, "dtype": F32}

# the mistake (see flawed.py), the test that must fail, and its parameters
CAUGHT = (
    ("angle_in_dtype", numbers.test_numbers, {"kind": "rope3d", "interleaved": True, "dtype": BF16}),
    ("single_step_reduction", numbers.test_sine_and_cosine, {"largest": 20000.0}),
    ("single_step_reduction", numbers.test_every_angle_up_to_20000, {}),
    ("sign", numbers.test_numbers, {"kind": "rope3d", **PLAIN}),
    ("sign", numbers.test_sine_and_cosine, {"largest": 1.0}),
    ("other_layout", numbers.test_numbers, {"kind": "rope3d", **PLAIN}),
    ("other_layout", numbers.test_numbers, {"kind": "apply_rotary", **PLAIN}),
    ("other_layout", presets.test_equals_its_library, {"model": "ltx_video"}),
    ("other_layout", presets.test_equals_its_library, {"model": "qwen3"}),
    ("axis_ignored", numbers.test_numbers, {"kind": "rope3d", **PLAIN}),
    ("axis_ignored", presets.test_equals_its_library, {"model": "qwen3_vl"}),
    ("axis_ignored", tables.test_axes, {"axes": 2}),
    ("shifted_tokens", presets.test_equals_its_library, {"model": "wan"}),
    ("no_angle_of_its_own", presets.test_equals_its_library, {"model": "flux"}),
    ("single_step_reduction", presets.test_equals_its_library, {"model": "ltx_video"}),
    ("first_heads_frequencies", presets.test_equals_its_library, {"model": "ltx2, split"}),
    ("batch_stride", tables.test_per_sample_is_a_loop, {"source": "rope3d", "interleaved": True}),
    ("batch_stride", tables.test_per_sample_is_a_loop, {"source": "apply_rotary", "interleaved": False}),
    ("batch_stride", presets.test_equals_its_library, {"model": "ltx_video, coordinates"}),
    ("table_stride", tables.test_form, {"form": "lanes outermost", **PLAIN}),
    ("table_stride", tables.test_form, {"form": "every second token", **PLAIN}),
    ("entries_misread", tables.test_partial, {"interleaved": True}),
    ("entries_misread", tables.test_partial, {"interleaved": False}),
    ("table_in_dtype", numbers.test_one_rounding, {"dtype": BF16, "interleaved": True}),
    ("products_in_dtype", numbers.test_numbers, {"kind": "head norm", "interleaved": True, "dtype": BF16}),
    ("reads_what_it_wrote", numbers.test_numbers, {"kind": "rope3d", **PLAIN}),
    ("rest_is_lost", tables.test_partial, {"interleaved": True}),
    ("rest_is_lost", shapes.assert_width, {"dtype": F32, "width": 33}),
    ("one_head_is_skipped", shapes.test_one_of_anything, SMALL),
    ("row_stride", shapes.assert_layout, {"dtype": F32, "layout": "slice of a fused qkv"}),
    ("row_stride", shapes.assert_layout, {"dtype": BF16, "layout": "every second token"}),
    ("row_stride", shapes.assert_layout, {"dtype": F16, "layout": "every second lane"}),
    ("batch_dependent", shapes.test_batch_invariant, {"kind": "rope3d", "dtype": F32}),
    ("k_is_not_written", in_place.test_no_half_reads_what_the_other_wrote,
     {"width": 64, "interleaved": True}),
    ("no_weight", numbers.test_numbers, NORMED),
    ("weight_of_q", numbers.test_numbers, NORMED),
    ("norm_of_each_head", numbers.test_numbers, {**NORMED, "kind": "full norm"}),
    ("no_eps", numbers.test_eps_is_forwarded, {"eps": 1e-6, "expected": 0.70711, "norm": "head"}),
    ("no_eps", numbers.test_zeros, {"kind": "head norm", "dtype": F32}),
    ("fixed_eps", numbers.test_eps_is_forwarded, {"eps": 1e-6, "expected": 0.70711, "norm": "full"}),
    ("squares_in_dtype", numbers.test_squares_beyond_the_dtype, {}),
    ("rounds_before_weight", numbers.test_numbers, {"kind": "full norm", "interleaved": True, "dtype": BF16}),
    ("turns_on", gradients.test_grads, {"kind": "rope3d", **PLAIN}),
    ("turns_on", gradients.test_there_and_back, {"interleaved": False}),
    ("turns_on", gradients.test_grads, NORMED),
    ("overwrites_grad", gradients.test_grads, {"kind": "apply_rotary", **PLAIN}),
    ("overwrites_grad", training.test_gradient_is_not_overwritten, {"kind": "rope3d"}),
    ("no_mean_term", gradients.test_grads, NORMED),
    ("no_mean_term", gradients.test_width, {"kind": "full norm", "dtype": BF16, "width": 33}),
    ("no_weight", gradients.test_grads, NORMED),
    ("no_weight_grad", gradients.test_grads, NORMED),
    ("bf16_weight_grad", gradients.test_weight_grads_over_many_tokens,
     {"kind": "head norm", "shape": (3, 1365, 1, 128)}),
    ("bf16_rstd", gradients.test_statistic_is_not_saved_in_low_precision, {"kind": "head norm"}),
    ("row_stride", gradients.test_strided_inputs_and_gradients,
     {"kind": "rope3d", "layout": "every second head"}),
)  # fmt: skip


@pytest.mark.parametrize(("flaw", "test", "case"), CAUGHT, ids=lambda v: getattr(v, "__name__", None))
def test_flaw_is_caught(rope3d, flaw, test, case):
    """The same code without the mistake passes, so it is the mistake that fails.

    On the CPU always: the mistakes are plain torch's, and on a GPU torch's own sums depend on the batch.
    """
    cpu = torch.device("cpu")
    test(flawed(rope3d, None), cpu, **case)
    with pytest.raises(AssertionError):
        test(flawed(rope3d, flaw), cpu, **case)
