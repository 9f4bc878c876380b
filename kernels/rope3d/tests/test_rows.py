# SPDX-License-Identifier: Apache-2.0
"""A row's sum is added up in an order of its own: what stands beside it, and where it lies, change no bit."""

from __future__ import annotations

import pytest
import torch
from cases import kinds, layouts, make
from vendor.checks import all_same, leaf, same_bits
from vendor.machine import need_memory

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
dtypes = pytest.mark.parametrize("dtype", [BF16, F32], ids=("bfloat16", "float32"))


def input_grads(module, case):
    """Of q and k, for a gradient of ones."""
    case = case.map(leaf, "q", "k")
    inputs = [t for t in (case.q, case.k) if t is not None]
    return torch.autograd.grad([t.sum() for t in case.run(module)], inputs)


@dtypes
@layouts
@pytest.mark.parametrize(("heads", "k_heads"), [(4, 24), (24, 4), (3, 80)])
def test_a_longer_row_beside_it(rope3d, device, dtype, interleaved, heads, k_heads):
    """Over all heads, rows of q and k may differ in length."""
    given = {"shape": (2, 5, heads, 128), "k_heads": k_heads, "interleaved": interleaved}
    case = make(rope3d.reference, device, dtype, "full norm", **given)
    q_alone = case.but(k=None, k_weight=None)
    k_alone = case.but(q=case.k, q_weight=case.k_weight, k=None, k_weight=None)
    assert all_same(case.run(rope3d), [q_alone.run(rope3d)[0], k_alone.run(rope3d)[0]])
    grads = [input_grads(rope3d, alone)[0] for alone in (q_alone, k_alone)]
    assert all_same(input_grads(rope3d, case), grads)


@dtypes
@layouts
@pytest.mark.parametrize("kind", ["head norm", "full norm"])
def test_weights_of_another_type_or_place(rope3d, device, dtype, interleaved, kind):
    case = make(rope3d.reference, device, dtype, kind, shape=(2, 5, 4, 128), interleaved=interleaved)
    case = case.map(lambda t: t.to(BF16).to(dtype), "q_weight", "k_weight")  # so that each type has them
    expected = case.run(rope3d)
    for other in (BF16, F16, F32):
        if other == F16 and not torch.equal(case.k_weight.to(F16).to(dtype), case.k_weight):
            continue
        assert all_same(case.map(lambda t, to=other: t.to(to), "k_weight").run(rope3d), expected)
        assert all_same(case.map(lambda t, to=other: t.to(to), "q_weight").run(rope3d), expected)
    moved = case.map(lambda t: torch.cat([t[:1], t])[1:], "k_weight")
    assert all_same(moved.run(rope3d), expected)


@dtypes
@kinds
def test_one_head_of_an_odd_buffer(rope3d, device, dtype, kind):
    """Of a single head nobody steps to the next, so it does not matter how far that is."""
    case = make(rope3d.reference, device, dtype, kind, shape=(2, 5, 1, 128), k_heads=1)
    odd = case.map(lambda t: t.as_strided(t.shape, (*t.stride()[:2], 131, 1)), "q", "k")
    assert all_same(odd.run(rope3d), case.run(rope3d))


@pytest.mark.parametrize("kind", ["rope3d", "head norm", "full norm"])
@pytest.mark.parametrize("strides", [(2**30, 256, 64, 1), (256, 128, 2**30, 1)], ids=["samples", "heads"])
def test_far_apart(rope3d, device, kind, strides):
    """Samples, or heads, more than 2^31 elements apart (S18, flashinfer#3391)."""
    need_memory(device, 6)
    shape = (3, 2, 2, 64) if strides[0] > 256 else (2, 1, 3, 64)
    case = make(rope3d.reference, device, F16, kind, shape=shape, k_heads=0, per_sample=False)
    buffer = torch.empty(2**31 + 512, dtype=F16, device=device)  # of which a CPU touches what is used
    q = buffer.as_strided(shape, strides)
    q.copy_(case.q)
    assert same_bits(case.but(q=q).run(rope3d)[0], case.run(rope3d)[0])


@pytest.mark.parametrize(
    ("shape", "word"),
    [
        ((2**15, 2**15 + 1, 1, 4), "tokens"),
        ((2**15, 1, 2**15 + 1, 4), "heads"),
        ((1, 1, 2**15 + 1, 2**15), "lanes"),
    ],
    ids=lambda value: str(value),
)
def test_more_than_32_bits_count(rope3d, device, shape, word):
    """Refused before anything is allocated."""
    q = torch.zeros(1, 1, 1, 1, device=device).expand(shape)
    coords, inv_freq = torch.zeros(1, 1, device=device).expand(shape[1], 1), torch.ones(2, device=device)
    for call in (
        lambda: rope3d.rope3d(q, None, coords, inv_freq),
        lambda: rope3d.rms_norm_rope3d(q, None, None, None, coords, inv_freq),
    ):
        with pytest.raises(ValueError, match=rf"q has shape .* {word} .*wanted at most 1073741824"):
            call()
