# SPDX-License-Identifier: Apache-2.0
"""What the functions refuse, with which words."""

from __future__ import annotations

import math

import pytest
import torch
from vendor.contract import (
    FLOAT8,
    assert_refused,
    moved,
    quantized,
)
from vendor.machine import need_cuda

pytestmark = pytest.mark.kernels_ci

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
Q, K = torch.ones(2, 5, 3, 16), torch.ones(2, 5, 1, 16)
COORDS, INV_FREQ = torch.ones(5, 3), torch.ones(8)
AXIS, TABLE = torch.zeros(8, dtype=torch.int32), torch.ones(5, 16)


def no(*shape):
    return torch.ones(*shape, device="meta")


# What is given beside sound inputs; the error; the words: the argument, what was given, what is wanted.
REFUSED = {
    "q is None": ({"q": None}, TypeError, ["q", "NoneType", "Tensor"]),
    "q is a list": ({"q": [1.0]}, TypeError, ["q", "list", "Tensor"]),
    "k is a float": ({"k": 1.0}, TypeError, ["k", "float", "Tensor"]),
    "q is int64": ({"q": Q.long(), "k": None}, TypeError, ["q", "int64", "float32"]),
    "q is complex": ({"q": Q.to(torch.complex64), "k": None}, TypeError, ["q", "complex", "float32"]),
    "q is float8": ({"q": Q.to(FLOAT8), "k": None}, TypeError, ["q", "float8", "float32"]),
    "q is sparse": ({"q": Q.to_sparse()}, TypeError, ["q", "sparse"]),
    "q is quantized": ({"q": lambda: quantized().view(1, 1, 3, 8)}, TypeError, ["q", "qint8"]),
    "q has two dims": ({"q": torch.ones(5, 16), "k": None}, ValueError, ["q", "(5, 16)", "(B, T, H, D)"]),
    "q has five dims": (
        {"q": torch.ones(1, 2, 5, 3, 16)},
        ValueError,
        ["q", "(1, 2, 5, 3, 16)", "(B, T, H, D)"],
    ),
    "k has another dtype": ({"k": K.to(BF16)}, TypeError, ["k", "bfloat16", "float32", "q"]),
    "k has other tokens": (
        {"k": torch.ones(2, 7, 1, 16)},
        ValueError,
        ["k", "(2, 7, 1, 16)", "(2, 5, any, 16)", "own"],
    ),
    "k has another batch": (
        {"k": torch.ones(1, 5, 1, 16)},
        ValueError,
        ["k", "(1, 5, 1, 16)", "(2, 5, any, 16)"],
    ),
    "k has another width": (
        {"k": torch.ones(2, 5, 1, 8)},
        ValueError,
        ["k", "(2, 5, 1, 8)", "(2, 5, any, 16)"],
    ),
    "k is elsewhere": ({"k": no(2, 5, 1, 16)}, ValueError, ["k", "meta"]),
    "q is elsewhere": ({"q": no(2, 5, 3, 16)}, ValueError, ["meta"]),
}
REFUSED_COORDS = {
    "coords is None": ({"coords": None}, TypeError, ["coords", "NoneType"]),
    "coords is short": ({"coords": torch.ones(4, 3)}, ValueError, ["coords", "(4, 3)", "5"]),
    "coords of another batch": (
        {"coords": torch.ones(3, 5, 3)}, ValueError, ["coords", "(3, 5, 3)", "(2, 5"],
    ),
    "coords has one dim": ({"coords": torch.ones(5)}, ValueError, ["coords", "(5,)", "(5, A)"]),
    "coords has five axes": ({"coords": torch.ones(5, 5)}, ValueError, ["coords", "5", "1 to 4"]),
    "coords has no axis": ({"coords": torch.ones(5, 0)}, ValueError, ["coords", "0", "1 to 4"]),
    "coords is elsewhere": ({"coords": no(5, 3)}, ValueError, ["coords", "meta"]),
    "inv_freq is a list": ({"inv_freq": [1.0]}, TypeError, ["inv_freq", "list"]),
    "inv_freq is long": (
        {"inv_freq": torch.ones(9), "axis": torch.zeros(9).int()}, ValueError, ["9", "18", "16"],
    ),
    "inv_freq is a scalar": ({"inv_freq": torch.ones(())}, ValueError, ["inv_freq", "()", "pairs"]),
    "inv_freq of other heads": (
        {"inv_freq": torch.ones(2, 8), "axis": torch.zeros(2, 8).int()}, ValueError, ["heads", "2", "3"],
    ),
    "axis is None": ({"axis": None}, ValueError, ["axis", "None", "3"]),
    "axis is float": ({"axis": torch.zeros(8)}, TypeError, ["axis", "float32", "int32"]),
    "axis is short": ({"axis": AXIS[:7]}, ValueError, ["axis", "(7,)", "(8,)"]),
    "axis is elsewhere": ({"axis": AXIS.to("meta")}, ValueError, ["axis", "meta"]),
    "coords requires grad": (
        {"coords": COORDS.clone().requires_grad_()}, ValueError, ["coords", "grad", "detach"],
    ),
}  # fmt: skip
REFUSED_TABLES = {
    "cos is None": ({"cos": None}, TypeError, ["cos", "NoneType"]),
    "cos is int64": ({"cos": TABLE.long(), "sin": TABLE.long()}, TypeError, ["cos", "int64", "float32"]),
    "sin has another dtype": ({"sin": TABLE.to(BF16)}, TypeError, ["sin", "bfloat16", "float32", "cos"]),
    "sin has another shape": ({"sin": TABLE[:, :14]}, ValueError, ["sin", "(5, 7)", "(5, 8)", "cos"]),
    "tables are short": ({"cos": TABLE[:4], "sin": TABLE[:4]}, ValueError, ["cos", "(4, 8)", "5"]),
    "tables are wide": (
        {"cos": torch.ones(5, 18), "sin": torch.ones(5, 18)}, ValueError, ["cos", "9", "18", "16"],
    ),
    "tables are odd": (
        {"cos": torch.ones(5, 15), "sin": torch.ones(5, 15)}, ValueError, ["cos", "15", "even"],
    ),
    "tables of another batch": (
        {"cos": torch.ones(3, 5, 16), "sin": torch.ones(3, 5, 16)}, ValueError, ["cos", "(3, 5, 8)", "(2, 5"],
    ),
    "sin is elsewhere": ({"sin": no(5, 16)}, ValueError, ["sin", "meta"]),
    "cos requires grad": ({"cos": TABLE.clone().requires_grad_()}, ValueError, ["cos", "grad", "detach"]),
}  # fmt: skip
REFUSED_NORM = {
    "q_weight is long": ({"q_weight": torch.ones(17)}, ValueError, ["q_weight", "(17,)", "(16,)"]),
    "k_weight has two dims": ({"k_weight": torch.ones(1, 16)}, ValueError, ["k_weight", "(1, 16)", "(16,)"]),
    "q_weight of all heads": ({"q_weight": torch.ones(48)}, ValueError, ["q_weight", "(48,)", "(16,)"]),
    "q_weight of one head": (
        {"norm": "full", "k_weight": None}, ValueError, ["q_weight", "(16,)", "(48,)", "heads"],
    ),
    "q_weight is int": ({"q_weight": torch.ones(16).int()}, TypeError, ["q_weight", "int32", "float32"]),
    "q_weight is elsewhere": ({"q_weight": no(16)}, ValueError, ["q_weight", "meta"]),
    "k_weight without k": ({"k": None}, ValueError, ["k_weight", "k"]),
    "eps is a string": ({"eps": "1e-6"}, TypeError, ["eps", "str"]),
    "eps is negative": ({"eps": -1e-9}, ValueError, ["eps", "-1e-09"]),
    "eps is NaN": ({"eps": math.nan}, ValueError, ["eps", "nan"]),
    "norm is unknown": ({"norm": "layer"}, ValueError, ["norm", "layer", "head", "full"]),
    "tables besides": ({"cos": TABLE, "sin": TABLE}, ValueError, ["coords", "cos", "one"]),
    "no angles": ({"coords": None, "inv_freq": None, "axis": None}, ValueError, ["coords", "cos"]),
    "frequencies of each head": (
        {"inv_freq": torch.ones(3, 8), "axis": torch.zeros(3, 8).int()}, ValueError, ["inv_freq", "(3, 8)",
        "pairs"],
    ),
}  # fmt: skip
FUNCTIONS = {
    "rope3d": REFUSED | REFUSED_COORDS,
    "rope3d_": REFUSED | REFUSED_COORDS,
    "apply_rotary": REFUSED | REFUSED_TABLES,
    "apply_rotary_": REFUSED | REFUSED_TABLES,
    "rms_norm_rope3d": REFUSED_NORM,
}
CASES = [(function, case) for function, refused in FUNCTIONS.items() for case in refused]


def sound(function, device):
    given = {"q": Q, "k": K}
    if function.startswith("apply_rotary"):
        given |= {"cos": TABLE, "sin": TABLE}
    else:
        given |= {"coords": COORDS, "inv_freq": INV_FREQ, "axis": AXIS}
    if function == "rms_norm_rope3d":
        given |= {"q_weight": torch.ones(16), "k_weight": torch.ones(16)}
    given = {name: value.to(device, copy=True) for name, value in given.items()}
    return given | ({"interleaved": True} if function.startswith("apply_rotary") else {})


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:.*quantiz")
@pytest.mark.parametrize(("function", "case"), CASES)
def test_refused(rope3d, device, function, case):
    """Limits undocumented, errors from deep inside (S30, quack#23; S28, flash-linear-attention#1177)."""
    bad, error, words = FUNCTIONS[function][case]
    given = sound(function, device) | {name: moved(value, device) for name, value in bad.items()}
    if case in ("coords requires grad", "cos requires grad") and function.endswith("_"):
        return  # what is written in place has no gradient anyway
    if case == "inv_freq of other heads" and device.type != "cpu":
        given["axis"] = given["axis"].to(device)
    assert_refused(getattr(rope3d, function), given, error, words)
    # the refusal came before any launch: nothing is left behind
    assert torch.ones(3, device=device).sum().item() == 3


def test_axis_out_of_range(rope3d, device):
    """An axis that no coordinate has is refused on the CPU; a GPU reads no other memory."""
    for bad in (-1, 3, 2**31 - 1):
        axis = AXIS.clone()
        axis[5] = bad
        given = sound("rope3d", device) | {"axis": axis.to(device)}
        if device.type == "cpu":
            assert_refused(rope3d.rope3d, given, ValueError, ["axis", str(bad), "0 to 2"])
        else:
            rope3d.rope3d(**given)
            torch.cuda.synchronize()


def test_refused_on_cuda(rope3d, device):
    """fp64 on the GPU, and angles on the other device (D03, TileKernels#28), are refused by name."""
    need_cuda(device)
    with pytest.raises(TypeError, match=r"^rope3d: q .*float64"):
        rope3d.rope3d(**(sound("rope3d", device) | {"q": Q.to(device, F64), "k": None}))
    for name in ("k", "coords", "inv_freq", "axis"):
        given = sound("rope3d", device)
        given[name] = given[name].cpu()
        with pytest.raises(ValueError, match=rf"^rope3d: {name} .*cpu.*cuda"):
            rope3d.rope3d(**given)
    for name in ("cos", "sin"):
        given = sound("apply_rotary", device)
        given[name] = given[name].cpu()
        with pytest.raises(ValueError, match=rf"^apply_rotary: {name} .*cpu.*cuda"):
            rope3d.apply_rotary(**given)


def test_cpu_tensors_on_a_cuda_build(rope3d, device):
    """A build without code for the device of its inputs says so (D03)."""
    need_cuda(device)
    with pytest.raises(ValueError, match=r"^rope3d: .*q .*cpu"):
        rope3d.rope3d(**sound("rope3d", "cpu"))


def test_frequencies_of_no_head_are_refused(rope3d, device):
    """None of them is not the same as one for all heads, and there is nothing to read."""
    q, coords = torch.zeros(1, 2, 1, 8, device=device), torch.zeros(2, 1, device=device)
    with pytest.raises(ValueError, match=r"inv_freq has shape \(0, 4\), wanted a row for each head of q"):
        rope3d.rope3d(q, None, coords, torch.empty(0, 4, device=device))


def test_no_heads_beside_some_leave_a_gradient_of_zero(rope3d, device):
    q, k = (torch.ones(1, 4, n, 64, device=device, requires_grad=True) for n in (8, 0))
    weight = torch.ones(64, device=device, requires_grad=True)
    coords, inv_freq = torch.zeros(4, 1, device=device), torch.ones(32, device=device)
    outputs = rope3d.rms_norm_rope3d(q, k, None, weight, coords, inv_freq)
    sum(t.sum() for t in outputs).backward()
    assert not weight.grad.any()
