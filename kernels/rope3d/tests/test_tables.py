# SPDX-License-Identifier: Apache-2.0
"""Coordinates and tables in all the forms in which models give them."""

from __future__ import annotations

import pytest
import torch
from cases import layouts, make, positions, tables
from checks import assert_forward, assert_turned
from vendor.checks import all_same, dtypes, randn, same_bits, short

BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64
BATCH, TOKENS, HEADS, WIDTH = 2, 5, 3, 16

# From (B, T, n) numbers to what is given, which stands for the same or, if shared, for those of sample 0.
FORMS = {
    "per sample": lambda t: t,
    "shared": lambda t: t[0],
    "one sample": lambda t: t[:1],
    "expanded": lambda t: t[:1].expand_as(t),
    "tokens first": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "lanes outermost": lambda t: t.permute(2, 0, 1).contiguous().permute(1, 2, 0),
    "every second token": lambda t: t.repeat_interleave(2, 1)[:, ::2],
    "columns of a wider one": lambda t: torch.cat([t, t, t], -1)[..., t.shape[-1] : 2 * t.shape[-1]],
    "off by one": lambda t: torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape),
}
SHARED = ("shared", "one sample", "expanded")


def assert_form(rope3d, device, dtype, form, kind="rope3d", interleaved=True):
    case = make(rope3d.reference, device, dtype, kind, interleaved=interleaved, table_dtype=dtype)
    plain = case if form not in SHARED else case.map(lambda t: t[0], "coords", "cos", "sin")
    given = case.map(FORMS[form], "coords", "cos", "sin")
    outputs = assert_forward(rope3d, given)
    assert all_same(outputs, plain.run(rope3d))


@dtypes
@layouts
@pytest.mark.parametrize("form", short(FORMS, ("per sample", "shared", "expanded")))
def test_form(rope3d, device, dtype, form, interleaved):
    """Tables of a batch are ignored: every sample gets the first one's positions (S25, Liger-Kernel#477)."""
    for kind in ("rope3d", "apply_rotary", "head norm, tables"):
        assert_form(rope3d, device, dtype, form, kind, interleaved)


@pytest.mark.kernels_ci
@layouts
@pytest.mark.parametrize("source", ["rope3d", "apply_rotary"])
def test_per_sample_is_a_loop(rope3d, device, source, interleaved):
    """A batch with positions of each sample's own equals a call for each sample (S25)."""
    case = make(rope3d.reference, device, BF16, source, interleaved=interleaved)
    for b in range(BATCH):
        one = case.map(lambda t, b=b: t[b : b + 1], "q", "k").map(lambda t, b=b: t[b], "coords", "cos", "sin")
        assert all_same(one.run(rope3d), [t[b : b + 1] for t in case.run(rope3d)])


def given_tables(rope3d, device, interleaved, dtype=F32, batch=BATCH):
    where = positions(device, WIDTH // 2, TOKENS, batch=batch)
    return where, tables(rope3d.reference, *where, interleaved=interleaved, dtype=dtype)


@layouts
def test_tables_with_a_dimension_of_heads(rope3d, device, interleaved):
    """(1, T, 1, W), as Wan makes them, and (B, 1, T, W): where q has its heads."""
    q = randn(BATCH, TOKENS, HEADS, WIDTH, device=device)
    _, (cos, sin) = given_tables(rope3d, device, interleaved)
    options = {"interleaved": interleaved}
    expected = rope3d.apply_rotary(q, None, cos, sin, **options)
    assert same_bits(rope3d.apply_rotary(q, None, cos[:, :, None], sin[:, :, None], **options), expected)
    got = rope3d.apply_rotary(
        q.transpose(1, 2), None, cos[:, None], sin[:, None], heads_first=True, **options
    )
    assert same_bits(got.transpose(1, 2), expected)
    shared = rope3d.apply_rotary(q, None, cos[:1, :, None], sin[:1, :, None], **options)
    assert same_bits(shared, rope3d.apply_rotary(q, None, cos[0], sin[0], **options))


@layouts
@pytest.mark.parametrize("heads_first", [False, True], ids=["tokens first", "heads first"])
def test_tables_of_each_heads_own(rope3d, device, interleaved, heads_first):
    """LTX-2's split tables, (B, H, T, pairs): a table for each head."""
    q, k = (randn(BATCH, TOKENS, HEADS, WIDTH, dtype=BF16, device=device, seed=i) for i in range(2))
    cos, sin = (randn(BATCH, TOKENS, HEADS, WIDTH // 2, device=device, seed=2 + i) for i in range(2))
    given = [t.transpose(1, 2) if heads_first else t for t in (q, k, cos, sin)]
    options = {"interleaved": interleaved, "heads_first": heads_first, "per_pair": True}
    got = rope3d.apply_rotary(*given, **options)
    case = make(rope3d.reference, device, BF16, interleaved=interleaved)
    for out, x in zip(got, (q, k), strict=True):
        truth = rope3d.reference.rotate(x, cos, sin, interleaved=interleaved)
        scale = torch.stack([cos, sin]).norm(dim=0).amax()
        out = out.transpose(1, 2) if heads_first else out
        assert out.shape == x.shape
        assert float((out.double() - truth).abs().max()) <= 2.0**-8 * float(truth.abs().max()) * float(scale)
    assert case.pairs == WIDTH // 2
    alone = rope3d.apply_rotary(given[0], None, *given[2:], **options)
    assert same_bits(alone, got[0])
    with pytest.raises(ValueError, match=r"^apply_rotary: k has 1 heads.* 3"):
        rope3d.apply_rotary(q, k[:, :, :1], cos, sin, interleaved=interleaved, per_pair=True)


@layouts
@dtypes
def test_frequencies_of_each_heads_own(rope3d, device, dtype, interleaved):
    """inv_freq and axis of (H, pairs): each head turns by its own."""
    case = make(rope3d.reference, device, dtype, k_heads=HEADS, interleaved=interleaved)
    inv_freq = torch.stack([case.inv_freq, case.inv_freq.flip(0), case.inv_freq * 0.7])
    axis = torch.stack([case.axis, case.axis.flip(0), case.axis])
    own = case.but(inv_freq=inv_freq, axis=axis)
    outputs = assert_forward(rope3d, own)
    for h in range(HEADS):
        one = case.but(inv_freq=inv_freq[h], axis=axis[h]).map(lambda t, h=h: t[:, :, h : h + 1], "q", "k")
        assert all_same(one.run(rope3d), [t[:, :, h : h + 1] for t in outputs])
    q, k = case.q.clone(), case.k.clone()
    rope3d.rope3d_(q, k, case.coords, inv_freq, axis, interleaved=interleaved)
    assert all_same((q, k), outputs)


@layouts
def test_one_entry_for_each_pair(rope3d, device, interleaved):
    """Tables of half the width: the same rotation; of wide ones the first lane's entry counts."""
    q = randn(BATCH, TOKENS, HEADS, WIDTH, dtype=BF16, device=device)
    _, wide = given_tables(rope3d, device, interleaved)
    first = slice(None, None, 2) if interleaved else slice(WIDTH // 2)
    narrow = [t[..., first] for t in wide]
    expected = rope3d.apply_rotary(q, None, *wide, interleaved=interleaved)
    for given in (narrow, [t.contiguous() for t in narrow]):
        assert same_bits(
            rope3d.apply_rotary(q, None, *given, interleaved=interleaved, per_pair=True), expected
        )
    second = slice(1, None, 2) if interleaved else slice(WIDTH // 2, None)
    spoilt = [t.clone() for t in wide]
    for t in spoilt:
        t[..., second] = 7.0
    assert same_bits(rope3d.apply_rotary(q, None, *spoilt, interleaved=interleaved), expected)


def test_the_last_entry_of_a_table_is_not_read(rope3d, device):
    """Entries beside the pairs' may lie outside of the memory: views that end with the last pair's."""
    q = randn(1, 1, 1, 64, device=device)
    cos, sin = (randn(63, device=device, seed=i)[::2].view(1, 32) for i in (1, 2))
    got = rope3d.apply_rotary(q, None, cos, sin, interleaved=True, per_pair=True)
    assert same_bits(
        got, rope3d.apply_rotary(q, None, cos.clone(), sin.clone(), interleaved=True, per_pair=True)
    )


@layouts
def test_partial(rope3d, device, interleaved):
    """Tables of width 64 beside heads of 128: 32 pairs turn (S27, vllm#51049)."""
    q = randn(1, TOKENS, HEADS, 128, dtype=BF16, device=device)
    where = positions(device, 32, TOKENS)
    cos, sin = tables(rope3d.reference, *where, interleaved=interleaved)
    case = make(rope3d.reference, device, BF16, shape=q.shape, pairs=32, interleaved=interleaved)
    got = rope3d.apply_rotary(q, None, cos, sin, interleaved=interleaved)
    truth = rope3d.reference.rope3d(q, *where, interleaved=interleaved)
    assert_turned(got, truth, BF16, case)
    assert same_bits(got[..., 64:], q[..., 64:])


@pytest.mark.parametrize("axes", [1, 2, 3, 4])
def test_axes(rope3d, device, axes):
    """One to four coordinates; with one, an axis may be left out."""
    where = positions(device, 8, TOKENS, batch=BATCH, axes=axes)
    case = make(rope3d.reference, device, F32).but(
        **dict(zip(("coords", "inv_freq", "axis"), where, strict=True))
    )
    outputs = assert_forward(rope3d, case)
    if axes == 1:
        assert all_same(case.but(axis=None).run(rope3d), outputs)


def test_tokens_of_its_own(rope3d, device):
    """q and k of different lengths (I12, transformers#45564): a call for each."""
    q, k = randn(1, 5, 3, 16, device=device), randn(1, 9, 2, 16, device=device, seed=1)
    coords = torch.arange(9, device=device)[:, None]
    inv_freq = positions(device, 8, 1)[1]
    k_out = rope3d.rope3d(k, None, coords, inv_freq)
    q_out = rope3d.rope3d(q, None, coords[4:], inv_freq)
    together = rope3d.rope3d(torch.nn.functional.pad(q, (0, 0, 0, 0, 4, 0)), k, coords, inv_freq)
    assert all_same((q_out, k_out), (together[0][:, 4:], together[1]))
    with pytest.raises(ValueError, match=r"k has shape \(1, 9, 2, 16\).* 5.*call of its own"):
        rope3d.rope3d(q, k, coords, inv_freq)
