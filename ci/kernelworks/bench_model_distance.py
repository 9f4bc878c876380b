# SPDX-License-Identifier: Apache-2.0
"""Judges what a variant of a model gives: no further from the truth than eager is, within a factor.

The truth is the same weights in a wider type. Eager itself is some distance from it, by rounding; a variant
that rounds elsewhere is about as far, in another direction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kernelworks.bench_model_record import Agreement, Distance

TIMES_OF_EAGER = 2.0  # how much further from the truth than eager a variant may be
APART = 3.0  # and how far from eager, in units of that distance: the sum of both
SLACK = 0.5  # in eps of the type: one rounding of what eager happens to get exactly


@dataclass(frozen=True)
class Generated:
    """New tokens `(batch, N)`, int64, and the logits `(batch, N, vocabulary)` that each was chosen from."""

    tokens: torch.Tensor
    logits: torch.Tensor


def relative(actual: torch.Tensor, other: torch.Tensor) -> float:
    """The norm of the difference over the norm of the other; infinite where anything is not finite."""
    wanted = other.double()
    norm = float((actual.double() - wanted).norm() / wanted.norm().clamp_min(1e-300))
    return norm if math.isfinite(norm) else math.inf


def judged(
    output: torch.Tensor, truth: torch.Tensor, eager: torch.Tensor | None, dtype: torch.dtype
) -> Distance:
    """One tensor beside the truth and, unless it is eager's own, beside eager's.

    Args:
        dtype: that the variant computes in.
    """
    from_truth = relative(output, truth)
    slack = SLACK * torch.finfo(dtype).eps
    if eager is None:
        complaint = None if math.isfinite(from_truth) else "eager's output is not finite"
        return Distance(from_truth, None, None, complaint=complaint)
    own = relative(eager, truth)
    allowed, from_eager = TIMES_OF_EAGER * own + slack, relative(output, eager)
    complaint = None
    if not math.isfinite(from_truth):
        complaint = "its output is not finite"
    elif from_truth > allowed:
        complaint = f"its output is {from_truth:.2e} from the truth where {allowed:.2e} is allowed"
    elif from_eager > APART * own + slack:
        complaint = f"its output is {from_eager:.2e} from eager's where {APART * own + slack:.2e} is allowed"
    return Distance(from_truth, from_eager, allowed, complaint=complaint)


def beside_eager(output: torch.Tensor, eager: torch.Tensor | None) -> Distance:
    """Where there is no truth: how far from eager, and refused only if not finite."""
    finite = bool(torch.isfinite(output).all())
    return Distance(
        truth=None,
        eager=None if eager is None else relative(output, eager),
        allowed=None,
        complaint=None if finite else "its output is not finite",
    )


def judged_tokens(
    output: Generated,
    truth: torch.Tensor,
    eager: Generated | None,
    eager_truth: torch.Tensor | None,
    dtype: torch.dtype,
) -> Distance:
    """Greedy tokens. A variant that once chose another one goes on with it, so each has a truth of its own.

    Args:
        truth: logits of the truth behind the prompt and the variant's own tokens, as `output.logits`.
        eager_truth: the same for eager's tokens.
    """
    from_truth = relative(output.logits, truth)
    same = int((output.tokens == truth.argmax(-1)).sum())
    positions = output.tokens.numel()
    if eager is None or eager_truth is None:
        complaint = None if math.isfinite(from_truth) else "eager's logits are not finite"
        return Distance(from_truth, None, None, Agreement(positions, same, None), complaint)
    differs = (output.tokens != eager.tokens).any(0).nonzero().flatten().tolist()
    common = differs[0] + 1 if differs else output.tokens.shape[1]  # up to where both had read the same
    allowed = TIMES_OF_EAGER * relative(eager.logits, eager_truth) + SLACK * torch.finfo(dtype).eps
    complaint = None
    if not math.isfinite(from_truth):
        complaint = "its logits are not finite"
    elif from_truth > allowed:
        complaint = f"its logits are {from_truth:.2e} from the truth where {allowed:.2e} is allowed"
    return Distance(
        truth=from_truth,
        eager=relative(output.logits[:, :common], eager.logits[:, :common]),
        allowed=allowed,
        agreement=Agreement(positions, same, differs[0] + 1 if differs else None),
        complaint=complaint,
    )
