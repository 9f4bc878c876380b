# SPDX-License-Identifier: Apache-2.0
"""The arguments of a call, and modulators in all the forms in which models give them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from vendor.checks import randn

MODULATORS = ("gate", "scale", "shift")
INPUTS = ("x", "residual", *MODULATORS, "weight", "bias")

# n(*size) draws numbers, all different, of the dtype and on the device of the modulator that is made. x is
# (b, t, d), b and t differ, and i is 0, 1 or 2 for a gate, a scale or a shift: which of six slices it is.
FORMS = {
    "none": lambda n, b, t, d, i: None,
    "row": lambda n, b, t, d, i: n(d),
    "row, two dims": lambda n, b, t, d, i: n(1, d),
    "row, three dims": lambda n, b, t, d, i: n(1, 1, d),
    "sample": lambda n, b, t, d, i: n(b, 1, d),
    "sample, two dims": lambda n, b, t, d, i: n(b, d),
    "position": lambda n, b, t, d, i: n(t, d),
    "position, three dims": lambda n, b, t, d, i: n(1, t, d),
    "token": lambda n, b, t, d, i: n(b, t, d),
    "expanded": lambda n, b, t, d, i: n(b, 1, d).expand(b, t, d),
    "expanded over samples": lambda n, b, t, d, i: n(t, d).expand(b, t, d),
    "expanded columns": lambda n, b, t, d, i: n(b, 1, 1).expand(b, 1, d),
    "unbind": lambda n, b, t, d, i: n(b, 1, 6, d).unbind(2)[2 * i],
    "unbind, per token": lambda n, b, t, d, i: n(b, t, 6, d).unbind(2)[2 * i + 1],
    "chunk": lambda n, b, t, d, i: n(b, 6 * d).chunk(6, -1)[i + 1],
    "chunk, three dims": lambda n, b, t, d, i: n(b, 1, 6 * d).chunk(6, -1)[i],
    "transposed": lambda n, b, t, d, i: n(d, b).t(),
    "permuted": lambda n, b, t, d, i: n(t, b, d).permute(1, 0, 2),
    "every second column": lambda n, b, t, d, i: n(b, 1, 2 * d)[..., ::2],
    "off by one": lambda n, b, t, d, i: n(b * d + 1)[1:].view(b, 1, d),
    "table and sample": lambda n, b, t, d, i: (n(6, d)[i], n(b, 1, 6, d).unbind(2)[i]),
    "table and token": lambda n, b, t, d, i: (n(1, 6, d)[:, i], n(b, t, 6, d).unbind(2)[i]),
    "token and position": lambda n, b, t, d, i: (n(b, t, d), n(t, d)),
    "two rows": lambda n, b, t, d, i: (n(d), n(1, 1, d)),
}
PAIRS = ("table and sample", "table and token", "token and position", "two rows")


@dataclass(frozen=True)
class Case:
    """One call: of gate_residual_ada_norm where there is a residual, of ada_norm where there is none."""

    x: torch.Tensor
    residual: torch.Tensor | None = None
    gate: object = None
    scale: object = None
    shift: object = None
    weight: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    norm: str = "rms"
    eps: float = 1e-6

    def run(self, module, **options):
        """(y, residual_out) of the kernel, its reference or a flawed stand-in; None without a residual."""
        options |= {"norm": self.norm, "weight": self.weight, "bias": self.bias}
        modulated = (self.scale, self.shift, self.eps)
        if self.residual is None:
            return module.ada_norm(self.x, *modulated, **options), None
        return module.gate_residual_ada_norm(self.residual, self.x, self.gate, *modulated, **options)

    def but(self, **changes):
        return replace(self, **changes)

    def tensors(self):
        """Each tensor by its name; a pair's are scale[0] and scale[1]."""
        found = {}
        for field in INPUTS:
            value = getattr(self, field)
            if isinstance(value, tuple):
                found |= {f"{field}[{i}]": part for i, part in enumerate(value)}
            elif value is not None:
                found[field] = value
        return found

    def map(self, change, names=None):
        """The same call with `change` made to every tensor, or to those of these names."""
        changed = {k: change(t) if names is None or k in names else t for k, t in self.tensors().items()}
        return self.with_tensors(changed)

    def with_tensors(self, by_name):
        """The same call on other tensors of the same names."""
        fields = {}
        for name, tensor in by_name.items():
            field, _, part = name.partition("[")
            fields[field] = (*fields.get(field, ()), tensor) if part else tensor
        return replace(self, **fields)

    def rows(self, select):
        """The same call on some rows of x; its modulators are given for each token."""
        per_token = {"x", "residual", *(k for k in self.tensors() if k.startswith(MODULATORS))}
        return self.map(lambda t: select(expanded(t, self.x)), per_token)


def parts(modulator):
    """The tensors that a modulator is the sum of."""
    return () if modulator is None else modulator if isinstance(modulator, tuple) else (modulator,)


def expanded(part, x):
    """A part as a tensor of x's shape: as torch would, or (N, D) as a row for each sample."""
    if part.dim() == 2 and x.dim() >= 3 and part.shape[0] not in (1, x.shape[-2]):
        part = part.reshape(part.shape[0], *[1] * (x.dim() - 2), part.shape[1])
    return part.expand(x.shape)


def modulators(device, dtype, shape, forms):
    """A gate, a scale and a shift beside an x of (b, t, d): all of one form, or one of each of three."""
    names = (forms,) * 3 if isinstance(forms, str) else forms
    made = []
    for i, name in enumerate(names):
        seeds = iter(range(10 * i + 10, 10 * i + 20))
        made.append(
            FORMS[name](lambda *s, k=seeds: randn(*s, dtype=dtype, device=device, seed=next(k)), *shape, i)
        )
    return made


def make(device, dtype, shape, forms="sample", *, residual=True, affine=True, other=None, **options):
    """A call on x of `shape`: modulators of these forms; they, weight and bias of dtype `other`, or x's."""
    other = other or dtype
    gate, scale, shift = modulators(device, other, shape, forms)
    given = {"x": randn(*shape, dtype=dtype, device=device), "scale": scale, "shift": shift}
    if residual:
        given |= {"residual": randn(*shape, dtype=dtype, device=device, seed=1), "gate": gate}
    if affine:
        given |= {
            name: randn(shape[-1], dtype=other, device=device, seed=i)
            for i, name in enumerate(("weight", "bias"), 2)
        }
    return Case(**given, **options)
