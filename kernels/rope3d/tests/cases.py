# SPDX-License-Identifier: Apache-2.0
"""The arguments of a call: of the rotation from coordinates, of that by tables, and of both with a norm."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from vendor.checks import randn

# What is called: coordinates or tables, and the norm in front.
KINDS = {
    "rope3d": ("coords", None),
    "apply_rotary": ("tables", None),
    "head norm": ("coords", "head"),
    "full norm": ("coords", "full"),
    "head norm, tables": ("tables", "head"),
}
kinds = pytest.mark.parametrize("kind", KINDS)
layouts = pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "halves"])


@dataclass(frozen=True)
class Case:
    """One call: of rope3d, apply_rotary or rms_norm_rope3d, whichever its fields ask for."""

    q: torch.Tensor
    k: torch.Tensor | None = None
    coords: torch.Tensor | None = None
    inv_freq: torch.Tensor | None = None
    axis: torch.Tensor | None = None
    cos: torch.Tensor | None = None
    sin: torch.Tensor | None = None
    q_weight: torch.Tensor | None = None
    k_weight: torch.Tensor | None = None
    norm: str | None = None
    eps: float = 1e-6
    interleaved: bool = True

    def run(self, module, **options):
        """The outputs for q, and for k if there is one, of the kernel or of a flawed stand-in."""
        options = {"interleaved": self.interleaved, **options}
        positions = (self.coords, self.inv_freq, self.axis)
        if self.norm is not None:
            tables = {"cos": self.cos, "sin": self.sin} if self.coords is None else {}
            weights = (self.q_weight, self.k_weight)
            options |= {"eps": self.eps, "norm": self.norm, **tables}
            out = module.rms_norm_rope3d(self.q, self.k, *weights, *positions, **options)
        elif self.coords is not None:
            out = module.rope3d(self.q, self.k, *positions, **options)
        else:
            out = module.apply_rotary(self.q, self.k, self.cos, self.sin, **options)
        return [out] if self.k is None else list(out)

    def truth(self, reference, compute=torch.float64):
        """The same in fp64, not rounded; differentiable."""
        return [
            self._true(reference, x, weight, compute)
            for x, weight in ((self.q, self.q_weight), (self.k, self.k_weight))
            if x is not None
        ]

    def _true(self, reference, x, weight, compute):
        options = {"interleaved": self.interleaved, "compute": compute}
        wide = self.q.dtype == torch.float64
        if self.norm is not None:
            x = reference.rms_norm(x, weight, self.eps, norm=self.norm, compute=compute)
        if self.coords is None:
            first = slice(None, None, 2) if self.interleaved else slice(self.cos.shape[-1] // 2)
            return reference.rotate(x, self.cos[..., first], self.sin[..., first], **options)
        rounded = torch.float64 if wide else torch.float32
        angle = reference.angles(self.coords, self.inv_freq, self.axis, rounded=rounded, compute=compute)
        return reference.rotate(x, angle.cos(), angle.sin(), **options)

    @property
    def pairs(self):
        return self.cos.shape[-1] // 2 if self.coords is None else self.inv_freq.shape[-1]

    @property
    def inputs(self):
        """What may have a gradient."""
        return [t for t in (self.q, self.k, self.q_weight, self.k_weight) if t is not None]

    def but(self, **changes):
        return replace(self, **changes)

    def map(self, change, *names):
        """The same call with `change` made to these of its tensors."""
        present = {name: getattr(self, name) for name in names}
        return self.but(**{name: change(t) for name, t in present.items() if t is not None})

    def with_inputs(self, inputs):
        """The same call on others in the place of `inputs`."""
        names = [n for n in ("q", "k", "q_weight", "k_weight") if getattr(self, n) is not None]
        return self.but(**dict(zip(names, inputs, strict=True)))

    def tokens(self, start, stop):
        """The same call on some tokens; coordinates and tables are (B, T, n) or (T, n)."""
        case = self.map(lambda t: t[:, start:stop], "q", "k")
        return case.map(lambda t: t[..., start:stop, :], "coords", "cos", "sin")


def positions(device, pairs, tokens, *, batch=None, axes=3, largest=100.0, seed=10):
    """Coordinates of all sizes up to `largest`, frequencies from 1 down, and an axis for each pair."""
    shape = (tokens, axes) if batch is None else (batch, tokens, axes)
    coords = randn(*shape, device=device, seed=seed) * largest / 3
    inv_freq = 100.0 ** -(torch.arange(pairs, device=device) / max(1, pairs))
    return coords, inv_freq, torch.arange(pairs, dtype=torch.int32, device=device) % axes


def tables(reference, coords, inv_freq, axis, *, interleaved, dtype=torch.float32):
    """An entry for each lane that turns, as the libraries have them."""
    angle = reference.angles(coords, inv_freq, axis)
    both = [
        t.repeat_interleave(2, -1) if interleaved else torch.cat([t, t], -1)
        for t in (angle.cos(), angle.sin())
    ]
    return [t.to(dtype) for t in both]


def make(
    reference, device, dtype, kind="rope3d", *, shape=(2, 5, 3, 16), k_heads=2, pairs=None, interleaved=True,
    per_sample=True, weights=True, weight_dtype=None, table_dtype=torch.float32, **options,
):  # fmt: skip
    """A call of this kind on a q of `shape`, (B, T, H, D), and a k of `k_heads` heads (0: none)."""
    source, norm = KINDS[kind]
    batch, tokens, heads, width = shape
    pairs = width // 2 if pairs is None else pairs
    given = {"q": randn(*shape, dtype=dtype, device=device), "interleaved": interleaved, "norm": norm}
    if k_heads:
        given["k"] = randn(batch, tokens, k_heads, width, dtype=dtype, device=device, seed=1)
    where = positions(device, pairs, tokens, batch=batch if per_sample else None)
    if source == "coords":
        given |= dict(zip(("coords", "inv_freq", "axis"), where, strict=True))
    else:
        made = tables(reference, *where, interleaved=interleaved, dtype=table_dtype)
        given |= dict(zip(("cos", "sin"), made, strict=True))
    if norm is not None and weights:
        for i, (name, count) in enumerate((("q_weight", heads), ("k_weight", k_heads))):
            size = width * count if norm == "full" else width
            if count:
                given[name] = randn(size, dtype=weight_dtype or dtype, device=device, seed=2 + i)
    return Case(**{**given, **options})
