# SPDX-License-Identifier: Apache-2.0
"""The variants that write q and k where they are."""

from __future__ import annotations

import pytest
import torch
from cases import layouts, make
from test_shapes import LAYOUTS, view
from vendor.checks import all_same, dtypes, leaf, randn, same_bits, short

BF16, F32 = torch.bfloat16, torch.float32
OVERLAPPING = ("expanded heads", "expanded samples", "expanded lanes", "overlapping tokens")
SEPARATE = [layout for layout in LAYOUTS if layout not in OVERLAPPING]
sources = pytest.mark.parametrize("source", ["rope3d", "apply_rotary"])


def call(rope3d, case, source, suffix="", **options):
    given = (case.coords, case.inv_freq, case.axis) if source == "rope3d" else (case.cos, case.sin)
    function = getattr(rope3d, source + suffix)
    return function(case.q, case.k, *given, interleaved=case.interleaved, **options)


@dtypes
@layouts
@sources
def test_same_bits_as_a_new_tensor(rope3d, device, source, interleaved, dtype):
    """In place or not, the numbers are the same, and what comes back are q and k themselves."""
    for width, pairs in ((16, 8), (128, 64), (80, 21), (33, 16)):
        given = {"shape": (2, 5, 3, width), "pairs": pairs, "interleaved": interleaved}
        case = make(rope3d.reference, device, dtype, source, **given)
        expected = call(rope3d, case, source)
        case = case.map(torch.clone, "q", "k")
        q, k = call(rope3d, case, source, "_")
        assert q is case.q
        assert k is case.k
        assert all_same((q, k), expected)
        alone = case.but(k=None, q=randn(*case.q.shape, dtype=dtype, device=device))
        assert call(rope3d, alone, source, "_") is alone.q
        assert same_bits(alone.q, expected[0])


@sources
@pytest.mark.parametrize("layout", short(SEPARATE, ("slice of a fused qkv",)))
def test_layout(rope3d, device, source, layout):
    """Any strides, those of a fused qkv first of all; what lies between is left alone."""
    case = make(rope3d.reference, device, BF16, source, shape=(2, 6, 4, 48), k_heads=4)
    case = case.but(q=view(layout, device, BF16), k=view(layout, device, BF16, 1))
    buffers = [t._base if t._base is not None else t for t in (case.q, case.k)]
    expected, before = call(rope3d, case, source), [t.clone() for t in buffers]
    call(rope3d, case, source, "_")
    assert all_same((case.q, case.k), expected)
    for buffer, old, x in zip(buffers, before, (case.q, case.k), strict=True):
        touched = torch.zeros_like(buffer, dtype=torch.bool)
        touched.as_strided(x.shape, x.stride(), x.storage_offset()).fill_(True)
        assert torch.equal(buffer[~touched], old[~touched])


@pytest.mark.kernels_ci
@sources
def test_one_fused_buffer(rope3d, device, source):
    """q and k of one qkv, whose v stays as it is."""
    qkv = randn(2, 6, 3, 4, 48, dtype=BF16, device=device)
    case = make(rope3d.reference, device, BF16, source, shape=(2, 6, 4, 48), k_heads=4)
    case = case.but(q=qkv[:, :, 0], k=qkv[:, :, 1])
    expected, v = call(rope3d, case, source), qkv[:, :, 2].clone()
    call(rope3d, case, source, "_")
    assert all_same(qkv.unbind(2), (*expected, v))


@layouts
@pytest.mark.parametrize("width", [64, 128, 256, 2048])
def test_no_half_reads_what_the_other_wrote(rope3d, device, width, interleaved):
    """Two warps read each other's half after it was overwritten (D11, FlagGems#5142)."""
    case = make(rope3d.reference, device, BF16, shape=(2, 33, 3, width), interleaved=interleaved)
    expected = call(rope3d, case, "rope3d")
    for _ in range(1000 if device.type == "cuda" else 5):
        again = case.map(torch.clone, "q", "k")
        assert all_same(call(rope3d, again, "rope3d", "_"), expected)


@pytest.mark.kernels_ci
@sources
@pytest.mark.parametrize("layout", OVERLAPPING)
def test_overlapping_elements_are_refused(rope3d, device, source, layout):
    """Elements that share memory would be turned more than once."""
    case = make(rope3d.reference, device, BF16, source, shape=(2, 6, 4, 48), k_heads=4)
    shared = view(layout, device, BF16)
    for name, bad in (("q", case.but(q=shared)), ("k", case.but(k=shared))):
        before = shared.clone()
        with pytest.raises(ValueError, match=rf"^{source}_: {name} has elements that share memory"):
            call(rope3d, bad, source, "_")
        assert same_bits(shared, before)
    with pytest.raises(ValueError, match=rf"^{source}_: k is q's own memory"):
        call(rope3d, case.but(k=case.q), source, "_")


@pytest.mark.kernels_ci
@sources
def test_what_trains_is_refused(rope3d, device, source):
    """Autograd would not know of it; without a graph to be kept, a parameter may be written."""
    case = make(rope3d.reference, device, F32, source)
    for name in ("q", "k"):
        with pytest.raises(ValueError, match=rf"^{source}_: {name} requires grad.* {source}$"):
            call(rope3d, case.map(leaf, name), source, "_")
    expected = call(rope3d, case, source)
    trained = case.map(leaf, "q")
    with torch.no_grad():
        got = call(rope3d, trained, source, "_")
    assert all_same([t.detach() for t in got], expected)


@sources
def test_dimensions(rope3d, device, source):
    """Three dimensions, and heads first."""
    case = make(rope3d.reference, device, BF16, source)
    expected = call(rope3d, case, source)
    first = case.map(lambda t: t.clone().transpose(1, 2), "q", "k")
    got = call(rope3d, first, source, "_", heads_first=True)
    assert all_same([t.transpose(1, 2) for t in got], expected)
    one = case.map(lambda t: t[:, :, 0].clone(), "q", "k")
    got = call(rope3d, one, source, "_")
    assert all_same(got, [t[:, :, 0] for t in expected])


def test_nothing_to_do(rope3d, device):
    """No tokens, no error (S14)."""
    q = torch.empty(2, 0, 3, 16, device=device)
    rope3d.rope3d_(q, None, torch.empty(0, 1, device=device), torch.ones(8, device=device))
    assert torch.ones(3, device=device).sum().item() == 3


@sources
def test_compiled(rope3d, device, source, fresh_dynamo):
    """The mutation is in the schema, so torch.compile keeps it (C05, pytorch#134278)."""
    case = make(rope3d.reference, device, BF16, source)
    expected = call(rope3d, case, source)

    def step(q, k):
        scaled = q * 2
        call(rope3d, case.but(q=scaled, k=k), source, "_")
        return scaled

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    k = case.k.clone()
    got = compiled(case.q / 2, k)
    assert all_same((got, k), expected)
