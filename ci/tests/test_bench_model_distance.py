# SPDX-License-Identifier: Apache-2.0
"""What is as far from the truth as eager passes, and what is further, or not finite, does not."""

from __future__ import annotations

import math

import pytest
import torch

from kernelworks.bench_model_distance import Generated, beside_eager, judged, judged_tokens, relative

DTYPE = torch.bfloat16
GENERATOR = torch.Generator().manual_seed(0)
TRUTH = torch.randn(64, 256, generator=GENERATOR, dtype=torch.float64)


def off_by(share: float) -> torch.Tensor:
    """The truth with noise, whose norm is this share of the truth's."""
    noise = torch.randn(TRUTH.shape, generator=GENERATOR, dtype=torch.float64)
    return TRUTH + share * noise * TRUTH.norm() / noise.norm()


def test_a_relative_distance() -> None:
    assert relative(torch.tensor([3.0, 5.0]), torch.tensor([3.0, 4.0])) == pytest.approx(0.2)
    assert relative(torch.tensor([math.nan, 4.0]), torch.tensor([3.0, 4.0])) == math.inf


def test_eager_is_only_measured() -> None:
    found = judged(off_by(0.3), TRUTH, None, DTYPE)
    assert found.truth == pytest.approx(0.3)
    assert (found.eager, found.allowed, found.complaint) == (None, None, None)


def test_another_rounding_passes() -> None:
    found = judged(off_by(0.2), TRUTH, off_by(0.2), DTYPE)
    assert found.complaint is None
    assert found.allowed == pytest.approx(0.4, abs=0.05)
    assert found.eager == pytest.approx(0.28, abs=0.02)  # two that are at right angles


@pytest.mark.parametrize(
    ("output", "eager", "said"),
    [
        (off_by(0.3), off_by(0.1), "3.00e-01 from the truth where"),
        (torch.full_like(TRUTH, math.nan), off_by(0.1), "not finite"),
    ],
)
def test_a_wrong_output_does_not(output: torch.Tensor, eager: torch.Tensor, said: str) -> None:
    complaint = judged(output, TRUTH, eager, DTYPE).complaint
    assert complaint is not None
    assert said in complaint


def test_an_eager_that_is_not_finite_is_no_measure() -> None:
    complaint = judged(torch.full_like(TRUTH, math.inf), TRUTH, None, DTYPE).complaint
    assert complaint == "eager's output is not finite"


def test_a_float32_that_is_exact_needs_no_luck() -> None:
    """Where eager happens to be the truth itself, to round once is no error, and two ulps are."""
    assert judged(TRUTH.float(), TRUTH, TRUTH, torch.float32).complaint is None
    assert judged(TRUTH * (1 + 2.4e-7), TRUTH, TRUTH, torch.float32).complaint is not None


def test_without_a_truth_only_what_is_not_finite_is_refused() -> None:
    assert beside_eager(off_by(0.5), TRUTH).complaint is None
    assert beside_eager(off_by(0.5), TRUTH).eager == pytest.approx(0.5)
    assert beside_eager(TRUTH / 0, None).complaint == "its output is not finite"


def generated(tokens: list[int], noise: float = 0.0) -> Generated:
    """Tokens with logits in which each is the best."""
    logits = torch.nn.functional.one_hot(torch.tensor([tokens]), 10).double()
    return Generated(torch.tensor([tokens]), logits + noise)


def test_tokens_that_agree() -> None:
    eager, truth = generated([1, 2, 3, 4], 0.01), generated([1, 2, 3, 4])
    found = judged_tokens(generated([1, 2, 3, 4], -0.01), truth.logits, eager, truth.logits, DTYPE)
    assert found.complaint is None
    assert found.agreement is not None
    assert (found.agreement.same, found.agreement.positions, found.agreement.diverges) == (4, 4, None)


def test_tokens_that_part_are_counted_and_not_refused() -> None:
    """Behind a near tie both go on with other tokens; each is right by the truth of its own tokens."""
    eager, ours = generated([1, 2, 3, 4], 0.01), generated([1, 2, 5, 6])
    found = judged_tokens(ours, ours.logits + 0.01, eager, eager.logits + 0.01, DTYPE)
    assert found.agreement is not None
    assert (found.agreement.same, found.agreement.diverges) == (4, 3)
    # The common part ends with the position at which both had read the same and chose differently.
    assert found.eager == pytest.approx(relative(ours.logits[:, :3], eager.logits[:, :3]))
    assert found.complaint is None


def test_wrong_logits_are_refused() -> None:
    eager = generated([1, 2, 3, 4])
    found = judged_tokens(generated([1, 2, 3, 4], 0.5), eager.logits, eager, eager.logits, DTYPE)
    assert found.complaint is not None
    assert "its logits are" in found.complaint
