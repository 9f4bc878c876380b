# SPDX-License-Identifier: Apache-2.0
"""Numbers of the forward: angles, sines and cosines, every dtype, layout and special value against fp64."""

from __future__ import annotations

import math

import pytest
import torch
from cases import kinds, layouts, make, positions, tables
from checks import assert_forward, assert_turned
from vendor.checks import HALF, dtypes, floats, randn, same_bits, short, ulp_distance

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


def unit_turned_by(rope3d, angles):
    """The cosine and the sine that the kernel computes of these fp32 angles: (1, 0) turned by them."""
    q = torch.zeros(1, len(angles), 1, 2, device=angles.device, dtype=angles.dtype)
    q[..., 0] = 1
    one = torch.ones(1, device=angles.device)
    return rope3d.rope3d(q, None, angles[:, None], one)[0, :, 0].unbind(-1)


@pytest.mark.kernels_ci
def test_reference_is_the_formula(rope3d):
    """The truth that everything is measured with, by hand and by complex multiplication."""
    quarter = torch.tensor([[math.pi / 2]], dtype=F64)
    x = torch.tensor([3.0, 4.0], dtype=F64).view(1, 1, 1, 2)
    turned = rope3d.reference.rope3d(x, quarter, torch.ones(1, dtype=F64))
    torch.testing.assert_close(turned.flatten(), torch.tensor([-4.0, 3.0], dtype=F64))
    x, (coords, inv_freq, axis) = randn(2, 5, 3, 16, dtype=F64), positions("cpu", 8, 5, batch=2)
    angle = rope3d.reference.angles(coords, inv_freq, axis, rounded=F64)
    numbers = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    expected = torch.view_as_real(numbers * torch.polar(torch.ones_like(angle), angle)[:, :, None]).flatten(
        -2
    )
    got = rope3d.reference.rope3d(x, coords, inv_freq, axis)
    torch.testing.assert_close(got, expected)
    # the halves of a head are the same pairs in another order
    order = torch.arange(16).view(8, 2).t().flatten()
    halves = rope3d.reference.rope3d(x[..., order], coords, inv_freq, axis, interleaved=False)
    torch.testing.assert_close(halves, expected[..., order])


@pytest.mark.kernels_ci
@pytest.mark.parametrize("largest", [1.0, 100.0, 20000.0, 4e5, 1e6, 3e9, 1e30])
def test_sine_and_cosine(rope3d, device, largest):
    """Within 1e-6 of the fp64 sine and cosine of the fp32 angle, however large: LTX reaches 15,700."""
    generator = torch.Generator().manual_seed(0)
    angles = (torch.rand(100_000, generator=generator) * 2 - 1) * largest
    # beside the multiples of pi/2, where a reduction is hardest
    multiples = torch.arange(-20_000, 20_000) * (math.pi / 2) * largest / 31416
    angles = torch.cat([angles, multiples.float()]).to(device)
    cosine, sine = unit_turned_by(rope3d, angles)
    assert float((cosine.double() - angles.double().cos()).abs().max()) <= 1e-6
    assert float((sine.double() - angles.double().sin()).abs().max()) <= 1e-6


@pytest.mark.kernels_ci
def test_every_angle_up_to_20000(rope3d, device):
    """The same, a dense sweep of the range that models use, both signs."""
    angles = torch.arange(0, 20000, 0.0173, dtype=F64).float().to(device)
    for signed in (angles, -angles):
        cosine, sine = unit_turned_by(rope3d, signed)
        assert float((cosine.double() - signed.double().cos()).abs().max()) <= 1e-6
        assert float((sine.double() - signed.double().sin()).abs().max()) <= 1e-6


@pytest.mark.kernels_ci
def test_angle_zero_is_the_identity(rope3d, device):
    """A frequency of zero (LTX's padded lanes) turns nothing, at any position."""
    for dtype in floats(device):
        x = randn(2, 5, 3, 16, dtype=dtype, device=device)
        for coords in (torch.zeros(5, 1, device=device), torch.full((5, 1), 15700.0, device=device)):
            inv_freq = torch.zeros(8, device=device)
            assert torch.equal(rope3d.rope3d(x, None, coords, inv_freq), x)
            assert torch.equal(rope3d.rope3d(x, None, coords, inv_freq, interleaved=False), x)


@dtypes
@layouts
@kinds
def test_numbers(rope3d, device, kind, interleaved, dtype):
    """Every function, layout and dtype; angles for each sample, and shared."""
    for per_sample in (True, False):
        given = {"interleaved": interleaved, "per_sample": per_sample}
        assert_forward(rope3d, make(rope3d.reference, device, dtype, kind, shape=(2, 7, 3, 64), **given))
    assert_forward(rope3d, make(rope3d.reference, device, dtype, kind, k_heads=0, interleaved=interleaved))


@layouts
@pytest.mark.parametrize("dtype", HALF, ids=("float16", "bfloat16"))
def test_one_rounding(rope3d, device, interleaved, dtype):
    """Rope differs from transformers as the compiler fuses multiply-adds in bf16 (N14, lmdeploy#4133).

    Within an ulp of fp32-then-round, and almost everywhere the same; the eager expression in bf16 is
    further off.
    """
    case = make(
        rope3d.reference, device, dtype, "apply_rotary", shape=(2, 64, 8, 128), interleaved=interleaved
    )
    (q_out, _), (truth, _) = case.run(rope3d), case.truth(rope3d.reference)
    once = case.truth(rope3d.reference, compute=F32)[0].to(dtype)
    assert_turned(q_out, truth, dtype, case)
    distance = ulp_distance(q_out, once)
    assert float((distance == 0).float().mean()) >= 0.999
    largest = truth.abs().amax(-1, keepdim=True)
    assert float(((q_out.double() - once.double()).abs() / largest).max()) <= torch.finfo(dtype).eps
    eager = case.map(lambda t: t.to(dtype), "cos", "sin").truth(rope3d.reference, compute=dtype)[0]
    ours, theirs = ((t.double() - truth).square().mean() for t in (q_out, eager))
    assert float(ours) < 0.7 * float(theirs)


@dtypes
@kinds
def test_zeros(rope3d, device, kind, dtype):
    """A block of zeros gives 0/0 = NaN without the eps guard (N12, kernels-community#680)."""
    case = make(rope3d.reference, device, dtype, kind).map(torch.zeros_like, "q", "k")
    assert not any(t.any() for t in case.run(rope3d))


@dtypes
@kinds
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e25])
def test_special_values_stay_in_their_token(rope3d, device, kind, dtype, value):
    """The eager pattern of NaN and Inf; the other tokens untouched (N13, tt-metal#55159)."""
    case = make(rope3d.reference, device, dtype, kind, shape=(2, 5, 3, 64))
    clean = case.run(rope3d)
    q = case.q.clone()
    q[1, 2, 1, 20] = torch.tensor(value, dtype=F64).to(dtype)  # 1e25 is Inf in fp16
    case = case.but(q=q)
    got, truth = case.run(rope3d)[0], case.truth(rope3d.reference, compute=F64 if dtype == F64 else F32)[0]
    truth = truth.to(dtype)
    assert torch.equal(got.isnan(), truth.isnan())
    assert torch.equal(got.isinf(), truth.isinf())
    others = torch.ones(2, 5, dtype=torch.bool, device=device)
    others[1, 2] = False
    assert same_bits(got[others], clean[0][others])


@pytest.mark.parametrize("bad", [math.inf, math.nan, 1e38])
def test_a_bad_coordinate_stays_in_its_token(rope3d, device, bad):
    """A position that is no number gives NaN there, and nothing else notices."""
    case = make(rope3d.reference, device, F32, shape=(2, 5, 3, 64))
    clean = case.run(rope3d)
    coords = case.coords.clone()
    coords[1, 2] = bad
    got = case.but(coords=coords).run(rope3d)
    for out, expected in zip(got, clean, strict=True):
        assert bool(out[1, 2].isnan().any()) or math.isfinite(bad)
        assert same_bits(out[0], expected[0])
        assert same_bits(out[1, [0, 1, 3, 4]], expected[1, [0, 1, 3, 4]])


@layouts
@pytest.mark.parametrize("dtype", short((*HALF, F32), (BF16, F32)), ids=("float16", "bfloat16", "float32"))
def test_lanes_beyond_the_pairs(rope3d, device, dtype, interleaved):
    """A rotary width below the head's is ignored (S27, vllm#43676): the rest is copied, NaN's bits too."""
    for width, pairs in ((128, 32), (33, 16), (65, 3), (64, 0)):
        for kind in ("rope3d", "apply_rotary"):
            given = {"shape": (2, 5, 3, width), "pairs": pairs, "interleaved": interleaved}
            case = make(rope3d.reference, device, dtype, kind, **given)
            outputs = assert_forward(rope3d, case)
            for out, x in zip(outputs, (case.q, case.k), strict=True):
                assert same_bits(out[..., 2 * pairs :], x[..., 2 * pairs :])
    raw = torch.arange(2**16 - 64, 2**16, dtype=torch.int32).to(torch.int16)  # NaNs of every payload, in bf16
    x = raw.view(BF16).view(1, 1, 1, 64).to(device)
    out = rope3d.rope3d(x, None, torch.ones(1, 1, device=device), torch.ones(1, device=device))
    assert torch.equal(out.view(torch.int16)[..., 2:], x.view(torch.int16)[..., 2:])


@layouts
def test_a_full_head_norm_with_lanes_beyond(rope3d, device, interleaved):
    """With a norm the lanes that do not turn are normalised and weighted like the others."""
    for kind in ("head norm", "full norm", "head norm, tables"):
        case = make(
            rope3d.reference, device, BF16, kind, shape=(2, 5, 3, 65), pairs=16, interleaved=interleaved
        )
        assert_forward(rope3d, case)
        assert_forward(rope3d, case.but(q_weight=None, k_weight=None))


@kinds
def test_weights_and_tables_of_other_dtypes(rope3d, device, kind):
    """A pointer reinterpreted (A15, sglang#32807): fp32 weights and tables beside bf16, and the reverse."""
    for dtype in floats(device):
        for other in floats(device):
            case = make(rope3d.reference, device, dtype, kind, weight_dtype=other, table_dtype=other)
            assert_forward(rope3d, case)


@pytest.mark.kernels_ci
@pytest.mark.parametrize(("eps", "expected"), [(1e-6, 0.70711), (1e-5, 0.30151)])
@pytest.mark.parametrize("norm", ["head", "full"])
def test_eps_is_forwarded(rope3d, device, norm, eps, expected):
    """A norm that hard-codes 1e-5 while the config says 1e-6 (N10, aprender#1606)."""
    q = torch.full((1, 4, 2, 64), 1e-3, device=device)
    still = {"coords": torch.zeros(4, 1, device=device), "inv_freq": torch.ones(32, device=device)}
    out = rope3d.rms_norm_rope3d(q, None, None, None, **still, eps=eps, norm=norm)
    assert float((out - expected).abs().max()) < 1e-4


def test_eps_none_is_torchs_default(rope3d, device):
    """eps=None documented as one number and computed as another (N08, pytorch#155527)."""
    q = randn(1, 4, 2, 64, device=device) * 1e-3
    still = {"coords": torch.zeros(4, 1, device=device), "inv_freq": torch.ones(32, device=device)}
    out = rope3d.rms_norm_rope3d(q, None, None, None, **still, eps=None)
    torch.testing.assert_close(out, torch.nn.functional.rms_norm(q, (64,)))


def test_squares_beyond_the_dtype(rope3d, device):
    """fp16 gives wrong numbers because each square already exceeds 65504 (N01, pytorch#133085)."""
    q = torch.full((1, 4, 2, 64), 300.0, dtype=F16, device=device)
    still = {"coords": torch.zeros(4, 1, device=device), "inv_freq": torch.ones(32, device=device)}
    for norm in ("head", "full"):
        out = rope3d.rms_norm_rope3d(q, None, None, None, **still, norm=norm)
        assert float((out - 1).abs().max()) < 1e-3


def test_integers_are_numbers(rope3d, device):
    """Positions as a model has them, int64 or half, and an axis of any integer type."""
    case = make(rope3d.reference, device, BF16)
    whole = case.coords.round()
    expected = case.but(coords=whole).run(rope3d)
    for coords in (whole.long(), whole.double(), whole.to(torch.int32)):
        other = case.but(coords=coords, axis=case.axis.long(), inv_freq=case.inv_freq.double())
        for got, out in zip(other.run(rope3d), expected, strict=True):
            assert same_bits(got, out)


def test_tables_of_the_same_angles_agree(rope3d, device):
    """Coordinates and fp32 tables made from them give the same rotation, to the last bits of fp32."""
    for interleaved in (True, False):
        case = make(rope3d.reference, device, F32, interleaved=interleaved)
        where = (case.coords, case.inv_freq, case.axis)
        cos, sin = tables(rope3d.reference, *where, interleaved=interleaved)
        by_tables = rope3d.apply_rotary(case.q, case.k, cos, sin, interleaved=interleaved)
        for got, expected in zip(case.run(rope3d), by_tables, strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=2e-6)
