# SPDX-License-Identifier: Apache-2.0
"""What the ops accept and refuse, with which words, and what they promise about their outputs."""

from __future__ import annotations

import math

import pytest
import torch
from cases import Case, make
from vendor.checks import all_same, floats, randn, same_bits, tensors
from vendor.contract import (
    FLOAT8,
    REQUIRED,
    SHAPES,
    assert_call_form,
    assert_functional,
    assert_new,
    assert_refused,
    moved,
    quantized,
)
from vendor.machine import need_cuda

pytestmark = pytest.mark.kernels_ci

BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64
NAN, INF = math.nan, math.inf
X, ROW, META = torch.ones(2, 3, 8), torch.ones(8), torch.ones(8, device="meta")
OPS = {
    "ada_norm": ("x", "scale", "shift", "eps", "norm", "weight", "bias"),
    "gate_residual": ("residual", "x", "gate"),
    "gate_residual_ada_norm": ("residual", "x", "gate", "scale", "shift", "eps", "norm", "weight", "bias"),
}

# An argument and what it is, beside sound ones; the error; its words: the argument, what is given and wanted.
REFUSED = {
    "x is a list": ("x", [1.0], TypeError, ["x", "list", "Tensor"]),
    "x is None": ("x", None, TypeError, ["x", "NoneType", "Tensor"]),
    "x is int64": ("x", X.long(), TypeError, ["x", "int64", "float32"]),
    "x is bool": ("x", X.bool(), TypeError, ["x", "bool", "float32"]),
    "x is complex": ("x", X.to(torch.complex64), TypeError, ["x", "complex", "float32"]),
    "x is float8": ("x", X.to(FLOAT8), TypeError, ["x", "float8_e4m3fn", "float32"]),
    "x is sparse": ("x", X.to_sparse(), TypeError, ["x", "sparse"]),
    "x is quantized": ("x", quantized, TypeError, ["x", "q"]),
    "x is a scalar": ("x", torch.ones(()), ValueError, ["x", "dim"]),
    "x is elsewhere": ("x", torch.ones(2, 3, 8, device="meta"), ValueError, ["meta"]),
    "residual is None": ("residual", None, TypeError, ["residual", "NoneType", "Tensor"]),
    "residual has another dtype": ("residual", X.to(BF16), TypeError, ["residual", "bfloat16", "float32"]),
    "residual is int": ("residual", X.long(), TypeError, ["residual", "int64", "float32"]),
    "residual has another shape": ("residual", X[:1], ValueError, ["residual", "1, 3, 8", "2, 3, 8"]),
    "residual is transposed": ("residual", X.mT, ValueError, ["residual", "2, 8, 3", "2, 3, 8"]),
    "residual is elsewhere": ("residual", X.to("meta"), ValueError, ["residual", "meta"]),
    "residual is sparse": ("residual", X.to_sparse(), TypeError, ["residual", "sparse"]),
    "eps is a string": ("eps", "1e-6", TypeError, ["eps", "str"]),
    "eps is None": ("eps", None, TypeError, ["eps", "NoneType"]),
    "eps is negative": ("eps", -1e-9, ValueError, ["eps", "-1e-09"]),
    "eps is NaN": ("eps", NAN, ValueError, ["eps", "nan"]),
    "eps is Inf": ("eps", INF, ValueError, ["eps", "inf"]),
    "norm is unknown": ("norm", "batch", ValueError, ["norm", "'batch'", "'rms'", "'layer'"]),
    "norm is no string": ("norm", True, ValueError, ["norm", "True", "'rms'", "'layer'"]),
    "norm is a list": ("norm", ["rms"], ValueError, ["norm", "'rms'", "'layer'"]),
}
# Of each modulator, under the name that stands in place of NAME.
REFUSED_MODULATOR = {
    "NAME is a float": (1.0, TypeError, ["NAME", "float", "Tensor", "tuple of two"]),
    "NAME is int32": (ROW.int(), TypeError, ["NAME", "int32", "float32"]),
    "NAME is float8": (ROW.to(FLOAT8), TypeError, ["NAME", "float8_e4m3fn", "float32"]),
    "NAME is sparse": (ROW.to_sparse(), TypeError, ["NAME", "sparse"]),
    "NAME is elsewhere": (META, ValueError, ["NAME", "meta"]),
    "NAME is a scalar": (torch.ones(()), ValueError, ["NAME", "()", "8"]),
    "NAME is one number": (torch.ones(1), ValueError, ["NAME", "(1,)", "(8,)"]),
    "NAME is too long": (torch.ones(9), ValueError, ["NAME", "9", "8"]),
    "NAME has another batch": (torch.ones(4, 1, 8), ValueError, ["NAME", "4, 1, 8", "2 or 1"]),
    "NAME has another length": (torch.ones(2, 4, 8), ValueError, ["NAME", "2, 4, 8", "3 or 1"]),
    "NAME has other rows": (torch.ones(4, 8), ValueError, ["NAME", "(4, 8)", "(2, 8)", "3 or 1"]),
    "NAME is columns": (torch.ones(2, 3, 1), ValueError, ["NAME", "2, 3, 1", "8"]),
    "NAME has four dims": (X[None], ValueError, ["NAME", "1, 2, 3, 8", "for x of shape (2, 3, 8)"]),
    "NAME is a tuple of one": ((ROW,), TypeError, ["NAME", "tuple"]),
    "NAME is a tuple of three": ((ROW, ROW, ROW), TypeError, ["NAME", "tuple"]),
    "NAME is an empty tuple": ((), TypeError, ["NAME", "tuple"]),
    "NAME[0] is None": ((None, ROW), TypeError, ["NAME[0]", "NoneType", "Tensor"]),
    "NAME[1] is None": ((ROW, None), TypeError, ["NAME[1]", "NoneType", "Tensor"]),
    "NAME[0] is a float": ((1.0, ROW), TypeError, ["NAME[0]", "float", "Tensor"]),
    "NAME[1] is int32": ((ROW, ROW.int()), TypeError, ["NAME[1]", "int32", "float32"]),
    "NAME[1] is too long": ((ROW, torch.ones(9)), ValueError, ["NAME[1]", "9", "8"]),
    "NAME[0] is six rows": ((torch.ones(6, 8), ROW), ValueError, ["NAME[0]", "(6, 8)", "(2, 8)"]),
    "NAME[1] is elsewhere": ((ROW, META), ValueError, ["NAME[1]", "meta"]),
}
REFUSED_COLUMNS = {
    "NAME is a float": (1.0, TypeError, ["NAME", "float", "Tensor"]),
    "NAME is a tuple": ((ROW, ROW), TypeError, ["NAME", "tuple", "Tensor"]),
    "NAME is int32": (ROW.int(), TypeError, ["NAME", "int32", "float32"]),
    "NAME is too long": (torch.ones(9), ValueError, ["NAME", "9", "8"]),
    "NAME has two dims": (torch.ones(1, 8), ValueError, ["NAME", "1, 8", "8"]),
    "NAME is elsewhere": (META, ValueError, ["NAME", "meta"]),
}


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:.*quantiz")
@pytest.mark.parametrize("case", REFUSED)
def test_refused(adaln, device, case):
    """Limits undocumented, errors from deep inside (S30, quack#23): each names argument, given and wanted."""
    name, value, error, words = REFUSED[case]
    assert_each_refuses(adaln, device, name, value, error, words)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("case", REFUSED_MODULATOR)
def test_refused_modulators(adaln, device, case):
    """The same of a gate, a scale and a shift; a part of a pair is called by its number."""
    value, error, words = REFUSED_MODULATOR[case]
    for name in ("gate", "scale", "shift"):
        assert_each_refuses(adaln, device, name, value, error, [word.replace("NAME", name) for word in words])


@pytest.mark.parametrize("case", REFUSED_COLUMNS)
def test_refused_columns(adaln, device, case):
    """The same of weight and bias."""
    value, error, words = REFUSED_COLUMNS[case]
    for name in ("weight", "bias"):
        assert_each_refuses(adaln, device, name, value, error, [word.replace("NAME", name) for word in words])


def assert_each_refuses(adaln, device, name, value, error, words):
    """Every function that has an argument of this name, its others being sound."""
    for op in (op for op, accepted in OPS.items() if name in accepted):
        given = {"x": X} | ({} if op == "ada_norm" else {"residual": X, "gate": ROW})
        if op != "gate_residual":
            given |= {"scale": ROW, "shift": (ROW, X[:, :1]), "weight": ROW, "bias": None}
        given |= {name: value}
        given = {key: placed(kept, device) for key, kept in given.items()}
        assert_refused(getattr(adaln, op), given, error, words)
    # the refusal came before any launch: nothing is left behind
    assert same_bits(adaln.ada_norm(X.to(device), eps=0.0), X.to(device))


def placed(value, device):
    return tuple(moved(v, device) for v in value) if isinstance(value, tuple) else moved(value, device)


@pytest.mark.parametrize("slot", ["gate", "scale", "shift", "gate[0]", "scale[1]"])
def test_a_shape_that_means_two_things(adaln, device, slot):
    """(N, D) beside (N, N, D): a row for each sample, or for each token (S12)? It is refused."""
    name, _, part = slot.partition("[")
    op = adaln.gate_residual_ada_norm
    for shape in ((3, 3, 8), (3, 5, 3, 8)):
        x, row = torch.ones(shape, device=device), torch.ones(8, device=device)
        given = {"residual": x, "x": x, "gate": None}
        square = torch.ones(3, 8, device=device)
        pair = {"": square, "0]": (square, row), "1]": (row, square)}[part]
        words = [slot, "(3, 8)", "two dimensions", "(3, 1, 8)", "(1, 3, 8)"]
        assert_refused(op, given | {name: pair}, ValueError, words)
        for clear in (square[:, None], square[None], square[:1], square[0]):
            value = (row, clear) if part else clear
            if len(shape) == 3 or clear.dim() < 3:
                op(**given | {name: value})


def test_refused_on_cuda(adaln, device):
    """fp64 on the GPU, and a modulator on the other device (D03, TileKernels#28), are refused by name."""
    need_cuda(device)
    x = X.to(device)
    with pytest.raises(TypeError, match=r"^ada_norm: x .*float64"):
        adaln.ada_norm(x.double())
    with pytest.raises(TypeError, match=r"^ada_norm: scale .*float64"):
        adaln.ada_norm(x, ROW.to(device, F64))
    with pytest.raises(ValueError, match=r"^ada_norm: shift\[1\] .*cpu.*cuda"):
        adaln.ada_norm(x, None, (ROW.to(device), ROW))
    with pytest.raises(ValueError, match=r"^gate_residual: residual .*cpu.*cuda"):
        adaln.gate_residual(X, x, None)
    assert same_bits(adaln.ada_norm(x, eps=0.0), x)


def test_cpu_tensors_on_a_cuda_build(adaln, device):
    """A build without code for the device of its inputs says so (D03), as TypeError or ValueError by name."""
    need_cuda(device)
    with pytest.raises(ValueError, match=r"^ada_norm: .*x .*cpu"):
        adaln.ada_norm(X, ROW)


def test_meta_tensors(adaln):
    """Inputs that are all on the meta device give their shapes back, for models built without memory."""
    case = make("cpu", BF16, (2, 3, 8), "table and sample").map(lambda t: t.to("meta"))
    outputs = (*case.run(adaln), adaln.ada_norm(case.x), adaln.gate_residual(case.x, case.x, case.gate))
    assert all((t.shape, t.dtype, t.device) == (case.x.shape, BF16, case.x.device) for t in outputs)


@pytest.mark.parametrize("eps", [0, 1, 0.0, 1e-12, True])
def test_eps_may_be_any_number(adaln, device, eps):
    """An int is a number; a bool is one in Python, and refused or taken as such, never misread."""
    x = torch.full((2, 8), 3.0, device=device)
    try:
        y = adaln.ada_norm(x, None, None, eps)
    except TypeError as error:
        assert eps is True and "eps" in str(error)  # noqa: PT017, PT018
        return
    torch.testing.assert_close(y, torch.full_like(x, 3 / math.sqrt(9 + float(eps))))


def test_call_forms(adaln):
    """The options are keyword-only, so that a call is readable and can grow; names and defaults are fixed."""
    options = {"norm": "rms", "weight": None, "bias": None}
    modulated = {"scale": None, "shift": None, "eps": 1e-6}
    sums = dict.fromkeys(OPS["gate_residual"], REQUIRED)
    assert_call_form(adaln.ada_norm, options, x=REQUIRED, **modulated)
    assert_call_form(adaln.gate_residual, {}, **sums)
    assert_call_form(adaln.gate_residual_ada_norm, options, **sums, **modulated)


def test_public_names(adaln):
    """What is documented can be imported, and __all__ says so."""
    assert set(OPS) <= set(adaln.__all__)
    assert all(hasattr(adaln, name) for name in adaln.__all__)
    assert all(getattr(adaln, name).__doc__ for name in OPS)
    assert all(hasattr(adaln.layers, name) for name in adaln.layers.__all__)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_outputs_are_new_contiguous_tensors(adaln, device, shape):
    """An op that returns an input is refused by functionalization (C05, pytorch#134278)."""
    for dtype in floats(device):
        x, residual, *row = tensors(device, dtype, shape, shape, *[shape[-1:]] * 3)
        for norm in ("rms", "layer"):
            case = Case(x, residual, *row, norm=norm)
            outputs = (*case.run(adaln), adaln.ada_norm(x, norm=norm), adaln.gate_residual(residual, x, None))
            assert_new(outputs, [x, residual, *row])
    assert torch.ones(3, device=device).sum().item() == 3


@pytest.mark.parametrize("shape", [(3, 8), (0, 8)], ids=str)
def test_identity_is_a_copy(adaln, device, shape):
    """A call that changes nothing (rms 1, eps 0, a gate of zeros) still returns tensors of its own (C05)."""
    x = torch.ones(shape, device=device)
    y, total = adaln.gate_residual_ada_norm(x, x, torch.zeros(8, device=device), eps=0.0)
    for out in (y, total, adaln.ada_norm(x, eps=0.0), adaln.gate_residual(x, torch.zeros_like(x), None)):
        assert same_bits(out, x)
        out.fill_(7)
    assert same_bits(x, torch.ones_like(x))


SCHEMAS = {
    "ada_norm": (9, 1),
    "ada_norm_train": (9, 3),
    "gate_residual": (4, 1),
    "gate_residual_train": (4, 1),
    "gate_residual_ada_norm": (12, 2),
    "gate_residual_ada_norm_train": (12, 4),
    "ada_norm_backward": (17, 7),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_functional(ops, name):
    """No alias mark, no mutation, no wildcard in any schema (C05, pytorch#189523)."""
    assert_functional(getattr(ops, name), *SCHEMAS[name])


def test_raw_ops_are_the_public_ones(adaln, ops, device):
    """The forward ops, and their training twins, are what the functions call: the same bits."""
    case = make(device, BF16, (2, 5, 96), "table and sample", norm="layer")
    y, total = case.run(adaln)
    modulated = (*case.scale, *case.shift, case.weight, case.bias, 1e-6, True)
    sums = (case.residual, case.x, *case.gate)
    plain = adaln.ada_norm(case.x, case.scale, case.shift, norm="layer", weight=case.weight, bias=case.bias)
    assert same_bits(ops.ada_norm(case.x, *modulated), plain)
    assert same_bits(ops.ada_norm_train(case.x, *modulated)[0], plain)
    assert same_bits(ops.gate_residual(*sums), total)
    assert same_bits(ops.gate_residual_train(*sums), total)
    for op in (ops.gate_residual_ada_norm, ops.gate_residual_ada_norm_train):
        assert all_same(op(*sums, *modulated)[:2], (y, total))


def test_parameters_are_taken_as_they_are(adaln, device):
    """A Parameter, a list in place of a tuple and a non-contiguous weight need no preparation."""
    x, wide, table = (
        randn(5, 96, dtype=BF16, device=device),
        randn(192, device=device),
        randn(96, device=device),
    )
    parameter = torch.nn.Parameter(wide[::2])
    assert not parameter.is_contiguous()
    with torch.no_grad():
        expected = adaln.ada_norm(x, (table, wide[::2].contiguous()), weight=wide[::2].contiguous())
        assert same_bits(adaln.ada_norm(x, (table, parameter), weight=parameter), expected)
        assert same_bits(adaln.ada_norm(x, [table, parameter], weight=parameter), expected)
