# SPDX-License-Identifier: Apache-2.0
"""The tests are able to fail: each mistake that a kernel could make is caught by its test."""

from __future__ import annotations

import pytest
import test_autograd as gradients
import test_geglu as numbers
import test_shapes as shapes
import test_training as training
import torch
from flawed import flawed

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
ERF = {"mode": "none", "expected": (-1.26685e-4, -9.385526e-3)}

# the mistake (see flawed.py), the test that must fail, and its parameters
CAUGHT = (
    ("modes_swapped", numbers.test_each_mode_has_its_own_numbers, ERF),
    ("modes_swapped", numbers.test_every_gate, {"dtype": F16, "mode": "tanh"}),
    ("sigmoid", numbers.test_each_mode_has_its_own_numbers, ERF),
    ("one_plus_erf", numbers.test_every_gate, {"dtype": F32, "mode": "none"}),
    ("one_plus_erf", numbers.test_every_gate, {"dtype": BF16, "mode": "tanh"}),
    ("tanh_of_exponentials", numbers.test_far_gates, {"dtype": F32, "mode": "tanh"}),
    ("clamped", numbers.test_far_gates, {"dtype": F16, "mode": "none"}),
    ("clamped", numbers.test_every_gate, {"dtype": BF16, "mode": "none"}),
    ("divides", numbers.test_zeros_stay_zero, {"dtype": F32, "mode": "none"}),
    ("gelu_rounded", numbers.test_a_value_beside_every_gate, {"dtype": BF16, "mode": "none"}),
    ("gelu_rounded", shapes.test_width, {"dtype": F16, "width": 1234}),
    ("order_swapped", numbers.test_conventions, {"dtype": F32}),
    ("order_swapped", shapes.test_width, {"dtype": BF16, "width": 33}),
    ("interleaved", numbers.test_conventions, {"dtype": BF16}),
    ("aligned_half", shapes.test_width, {"dtype": F16, "width": 3420}),
    ("aligned_half", shapes.test_width, {"dtype": F32, "width": 33}),
    ("no_tail", shapes.test_width, {"dtype": F32, "width": 769}),
    ("no_tail", shapes.test_width, {"dtype": BF16, "width": 33}),
    ("row_stride", shapes.test_layout, {"dtype": F32, "layout": "slice of a fused qkv"}),
    ("row_stride", shapes.test_layout, {"dtype": BF16, "layout": "every second row"}),
    ("row_stride", shapes.test_layout, {"dtype": F16, "layout": "every second column"}),
    ("batch_dependent", shapes.test_batch_invariant, {"dtype": F32, "width": 1031}),
    ("no_slope", gradients.test_grads, {"dtype": F32, "width": 33}),
    ("no_slope", gradients.test_grads_of_every_gate, {"dtype": BF16, "mode": "none"}),
    ("slope_of_erf", gradients.test_grads_of_every_gate, {"dtype": F16, "mode": "tanh"}),
    ("slope_of_erf", gradients.test_grads, {"dtype": F32, "width": 128}),
    ("unclamped_slope", numbers.test_finite_for_every_finite_input, {"dtype": F32, "mode": "tanh"}),
    ("saved_in_half", gradients.test_grads_of_every_gate, {"dtype": BF16, "mode": "none"}),
    ("saved_in_half", gradients.test_grads, {"dtype": F32, "width": 33}),
    ("grads_swapped", gradients.test_grads, {"dtype": F32, "width": 33}),
    (
        "grads_swapped",
        gradients.test_each_half_gets_its_own_gradient,
        {"options": {"approximate": "none", "gate": "last"}},
    ),
    ("overwrites_grad", gradients.test_grads, {"dtype": F32, "width": 128}),
    ("overwrites_grad", training.test_gradient_is_not_overwritten_for_a_residual, {}),
    ("row_stride", gradients.test_strided_inputs_and_gradients, {"dtype": F32, "layout": "transposed"}),
)


@pytest.mark.parametrize(("flaw", "test", "case"), CAUGHT, ids=lambda v: getattr(v, "__name__", None))
def test_flaw_is_caught(geglu, flaw, test, case):
    """The same code without the mistake passes, so it is the mistake that fails. On the CPU always."""
    cpu = torch.device("cpu")
    test(flawed(geglu, None), cpu, **case)
    with pytest.raises(AssertionError):
        test(flawed(geglu, flaw), cpu, **case)
