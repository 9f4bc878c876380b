# SPDX-License-Identifier: Apache-2.0
"""Gated GELU in plain torch with one deliberate mistake: the tests are run on it, and must fail.

`flawed(geglu, None)` makes no mistake and must pass, so a failure is due to the mistake alone.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from checks import derivative


def _cdf(gate, mode, flaw):
    """Of the fp64 gate, and the derivative of gelu."""
    if flaw == "modes_swapped":
        mode = "tanh" if mode == "none" else "none"
    cdf, slope, _ = derivative(gate.clamp(-1e6, 1e6), mode)  # the formula overflows further out
    u = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    if flaw == "sigmoid":
        cdf = torch.sigmoid(1.702 * gate)
    if flaw == "one_plus_erf":  # in fp32, where it cancels
        arg = gate.float() / math.sqrt(2) if mode == "none" else u.float()
        cdf = 0.5 * (1 + (torch.erf(arg) if mode == "none" else torch.tanh(arg))).double()
    if flaw == "tanh_of_exponentials" and mode == "tanh":
        power = torch.exp(2 * u.float())
        cdf = 0.5 * (1 + (power - 1) / (power + 1)).double()
    if flaw == "no_slope":
        slope = cdf
    if flaw == "slope_of_erf":
        slope = derivative(gate, "none")[1]
    if flaw == "unclamped_slope" and mode == "tanh":
        g = gate.float()
        slope = cdf + (g * (1 - torch.tanh(u.float()) ** 2) * (1 + 3 * 0.044715 * g * g)).double()
    return cdf, slope


def _product(value, gate, mode, dtype, flaw):
    cdf, _ = _cdf(gate, mode, flaw)
    gelu = gate * cdf
    if flaw == "gelu_rounded":
        gelu = gelu.to(dtype).double()
    if flaw == "clamped":
        gelu = gelu.clamp_max(10)
    if flaw == "divides" and mode == "none":
        gelu = gate.square() * cdf / gate
    return value * gelu


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, gate, mode, flaw):
        y = _product(value.double(), gate.double(), mode, value.dtype, flaw)
        if flaw == "no_tail":
            y[..., y.shape[-1] // 8 * 8 :] = 0
        if flaw == "batch_dependent" and y[..., 0].numel() > 255:
            y = y * (1 + 2.0**-6)
        ctx.options = mode, flaw
        ctx.save_for_backward(value, gate)
        return y.to(value.dtype)

    @staticmethod
    def backward(ctx, grad):
        mode, flaw = ctx.options
        value, gate = ctx.saved_tensors
        wide, x, dy = value.double(), gate.double(), grad.double()
        cdf, slope = _cdf(x, mode, flaw)
        gelu = x * cdf
        if flaw == "saved_in_half":
            gelu, slope = gelu.bfloat16().double(), slope.bfloat16().double()
        grads = [(dy * gelu).to(value.dtype), (dy * (wide * slope)).to(value.dtype)]
        if flaw == "overwrites_grad":
            grad.zero_()
        if flaw == "grads_swapped":
            grads.reverse()
        return (*grads, None, None)


def _halves(x, order, flaw):
    """(value, gate), read as the mistake has it."""
    if flaw == "row_stride":  # reads the rows as if they were packed
        strides = torch.empty(x.shape, device="meta").stride()
        x = x.as_strided(x.shape, strides, x.storage_offset())
    first, last = x.chunk(2, -1)
    if flaw == "interleaved":
        first, last = x[..., ::2], x[..., 1::2]
    if flaw == "aligned_half":  # the second half as if it began at 16 bytes
        per_vector, width = 16 // x.element_size(), x.shape[-1] // 2
        last = x.roll(-(width // per_vector * per_vector), -1)[..., :width]
    if (order == "first") != (flaw == "order_swapped"):
        return last, first
    return first, last


def flawed(geglu, flaw):
    """A stand-in for the kernel module, with the same reference beside it."""

    def split(value, gate, *, approximate="none"):
        if flaw == "frozen_value":
            value = value.detach()
        return _Gated.apply(value, gate, approximate, flaw)

    def packed(x, *, approximate="none", gate="last"):
        return split(*_halves(x, gate, flaw), approximate=approximate)

    return SimpleNamespace(geglu=packed, geglu_split=split, reference=geglu.reference)
