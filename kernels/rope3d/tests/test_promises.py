# SPDX-License-Identifier: Apache-2.0
"""What the functions promise: call forms, names, schemas, and outputs of their own."""

from __future__ import annotations

import pytest
import torch
from cases import KINDS, kinds, make
from test_contract import FUNCTIONS
from vendor.checks import all_same, floats, same_bits
from vendor.contract import REQUIRED, assert_call_form, assert_functional

pytestmark = pytest.mark.kernels_ci

BF16 = torch.bfloat16


def test_meta_tensors(rope3d):
    """Inputs that are all on the meta device give their shapes back, for models built without memory."""
    for kind in KINDS:
        case = make(rope3d.reference, "cpu", BF16, kind)
        names = ("q", "k", "coords", "inv_freq", "axis", "cos", "sin", "q_weight", "k_weight")
        outputs = case.map(lambda t: t.to("meta"), *names).run(rope3d)
        shapes = [(t.shape, t.dtype, t.device.type) for t in outputs]
        assert shapes == [(x.shape, BF16, "meta") for x in (case.q, case.k)]


def test_call_forms(rope3d):
    """The options are keyword-only, so that a call is readable and can grow; names and defaults are fixed."""
    where = {"coords": REQUIRED, "inv_freq": REQUIRED, "axis": None}
    layout = {"interleaved": True, "heads_first": False}
    for function in (rope3d.rope3d, rope3d.rope3d_):
        assert_call_form(function, layout, q=REQUIRED, k=REQUIRED, **where)
    options = {"interleaved": REQUIRED, "heads_first": False, "per_pair": False}
    for function in (rope3d.apply_rotary, rope3d.apply_rotary_):
        assert_call_form(function, options, q=REQUIRED, k=REQUIRED, cos=REQUIRED, sin=REQUIRED)
    options = {"cos": None, "sin": None, "eps": 1e-6, "norm": "head", **layout, "per_pair": False}
    weights = {"q_weight": REQUIRED, "k_weight": REQUIRED}
    optional = dict.fromkeys(("coords", "inv_freq", "axis"))
    assert_call_form(rope3d.rms_norm_rope3d, options, q=REQUIRED, k=REQUIRED, **weights, **optional)


def test_public_names(rope3d):
    """What is documented can be imported, and __all__ says so."""
    assert {*FUNCTIONS, "Rotary", "grid", "presets", "layers"} == set(rope3d.__all__)
    assert all(hasattr(rope3d, name) for name in rope3d.__all__)
    for module in (rope3d.layers, rope3d.presets):
        assert all(hasattr(module, name) for name in module.__all__)
    assert all(getattr(rope3d, name).__doc__ for name in FUNCTIONS)


@kinds
def test_outputs_are_new_contiguous_tensors(rope3d, device, kind):
    """An op that returns an input is refused by functionalization (C05, pytorch#134278)."""
    for dtype in floats(device):
        case = make(rope3d.reference, device, dtype, kind)
        outputs = case.run(rope3d)
        for out, x in zip(outputs, (case.q, case.k), strict=True):
            assert (out.shape, out.dtype, out.device) == (x.shape, dtype, x.device)
            assert out.is_contiguous()
            assert out.data_ptr() not in (case.q.data_ptr(), case.k.data_ptr())
        assert outputs[0].data_ptr() != outputs[1].data_ptr()
        alone = case.but(k=None, k_weight=None).run(rope3d)
        assert same_bits(alone[0], outputs[0])


def test_identity_is_a_copy(rope3d, device):
    """A rotation by nothing, or of nothing, still returns tensors of its own (C05)."""
    q = torch.ones(2, 5, 3, 16, device=device)
    for pairs in (8, 0):
        out = rope3d.rope3d(q, None, torch.zeros(5, 1, device=device), torch.zeros(pairs, device=device))
        out.fill_(7)
        assert same_bits(q, torch.ones_like(q))


SCHEMAS = {
    "rope3d": (7, 2),
    "rope3d_train": (7, 2),
    "apply_rotary": (6, 2),
    "apply_rotary_train": (6, 2),
    "rms_norm_rope3d": (12, 2),
    "rms_norm_rope3d_train": (12, 4),
    "rms_norm_rope3d_backward": (17, 4),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_functional(ops, name):
    """No alias mark, no mutation, no wildcard in any schema (C05, pytorch#189523)."""
    assert_functional(getattr(ops, name), *SCHEMAS[name])


@pytest.mark.parametrize("name", ["rope3d_", "apply_rotary_"])
def test_schemas_in_place_mark_what_they_write(ops, name):
    """q and k, and nothing else; nothing is returned (C05)."""
    schema = getattr(ops, name).default._schema
    written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    assert written == ["q", "k"]
    assert not schema.returns


def test_raw_ops_are_the_public_ones(rope3d, ops, device):
    """The ops, and their training twins, are what the functions call: the same bits."""
    case = make(rope3d.reference, device, BF16, "rope3d")
    where = (case.coords, case.inv_freq, case.axis)
    for op in (ops.rope3d, ops.rope3d_train):
        assert all_same(op(case.q, case.k, *where, True, False), case.run(rope3d))
        q_out, nothing = op(case.q, None, *where, True, False)
        assert same_bits(q_out, case.run(rope3d)[0])
        assert nothing.shape == (0,)
        turned = op(case.q, case.k, *where, True, False)
        back = op(*turned, *where, True, True)
        torch.testing.assert_close(back[0].float(), case.q.float(), rtol=0.02, atol=0.02)


def test_parameters_are_taken_as_they_are(rope3d, device):
    """Non-contiguous weights, frequencies and axes need no preparation."""
    case = make(rope3d.reference, device, BF16, "head norm")
    spread = case.map(
        lambda t: t.repeat_interleave(2, -1)[..., ::2], "q_weight", "k_weight", "coords", "inv_freq", "axis"
    )
    assert not spread.inv_freq.is_contiguous()
    assert all_same(spread.run(rope3d), case.run(rope3d))
