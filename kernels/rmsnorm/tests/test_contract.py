# SPDX-License-Identifier: Apache-2.0
"""What the ops accept and refuse, with which words, and what they promise about their outputs."""

from __future__ import annotations

import math

import pytest
import torch
from vendor.checks import floats, same_bits, tensors
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
X, WEIGHT = torch.ones(3, 8), torch.ones(8)

# What is given beside sound inputs; the error; the words: the argument, what was given, what is wanted.
REFUSED = {
    "x is a list": ({"x": [1.0]}, TypeError, ["x", "list", "Tensor"]),
    "x is None": ({"x": None}, TypeError, ["x", "NoneType", "Tensor"]),
    "weight is a float": ({"weight": 1.0}, TypeError, ["weight", "float", "Tensor"]),
    "x is int64": ({"x": torch.ones(3, 8, dtype=torch.int64)}, TypeError, ["x", "int64", "float32"]),
    "x is bool": ({"x": torch.ones(3, 8, dtype=torch.bool)}, TypeError, ["x", "bool", "float32"]),
    "x is complex": ({"x": torch.ones(3, 8, dtype=torch.complex64)}, TypeError, ["x", "complex", "float32"]),
    "x is float8": ({"x": torch.ones(3, 8).to(FLOAT8)}, TypeError, ["x", "float8_e4m3fn", "float32"]),
    "weight is int32": (
        {"weight": torch.ones(8, dtype=torch.int32)},
        TypeError,
        ["weight", "int32", "float32"],
    ),
    "weight is float8": ({"weight": WEIGHT.to(FLOAT8)}, TypeError, ["weight", "float8_e4m3fn", "float32"]),
    "x is sparse": ({"x": X.to_sparse()}, TypeError, ["x", "sparse"]),
    "x is sparse csr": ({"x": X.to_sparse_csr}, TypeError, ["x", "sparse"]),
    "weight is sparse": ({"weight": WEIGHT.to_sparse()}, TypeError, ["weight", "sparse"]),
    "x is quantized": ({"x": quantized}, TypeError, ["x", "q"]),
    "eps is a string": ({"eps": "1e-6"}, TypeError, ["eps", "str"]),
    "eps is a list": ({"eps": [1e-6]}, TypeError, ["eps", "list"]),
    "eps is negative": ({"eps": -1e-9}, ValueError, ["eps", "-1e-09"]),
    "eps is NaN": ({"eps": NAN}, ValueError, ["eps", "nan"]),
    "eps is Inf": ({"eps": INF}, ValueError, ["eps", "inf"]),
    "weight_offset is NaN": ({"weight_offset": NAN}, ValueError, ["weight_offset", "nan"]),
    "weight_offset is Inf": ({"weight_offset": -INF}, ValueError, ["weight_offset", "inf"]),
    "rounding is unknown": (
        {"rounding": "twice"},
        ValueError,
        ["rounding", "twice", "once", "before_weight"],
    ),
    "x is a scalar": ({"x": torch.ones(())}, ValueError, ["x", "dim"]),
    "weight is too long": ({"weight": torch.ones(9)}, ValueError, ["weight", "9", "8"]),
    "weight is a scalar": ({"weight": torch.ones(())}, ValueError, ["weight", "8"]),
    "weight has two dims": ({"weight": torch.ones(1, 8)}, ValueError, ["weight", "1, 8", "8"]),
    "weight is elsewhere": ({"weight": torch.ones(8, device="meta")}, ValueError, ["weight", "meta"]),
    "x is elsewhere": ({"x": torch.ones(3, 8, device="meta")}, ValueError, ["meta"]),
}
REFUSED_RESIDUAL = {
    "residual is None": ({"residual": None}, TypeError, ["residual", "NoneType", "Tensor"]),
    "residual has another dtype": ({"residual": X.to(BF16)}, TypeError, ["residual", "bfloat16", "float32"]),
    "residual is int": ({"residual": X.long()}, TypeError, ["residual", "int64", "float32"]),
    "residual has another shape": ({"residual": torch.ones(1, 8)}, ValueError, ["residual", "1, 8", "3, 8"]),
    "residual is transposed": ({"residual": torch.ones(8, 3)}, ValueError, ["residual", "8, 3", "3, 8"]),
    "residual is elsewhere": (
        {"residual": torch.ones(3, 8, device="meta")},
        ValueError,
        ["residual", "meta"],
    ),
    "residual is sparse": ({"residual": X.to_sparse()}, TypeError, ["residual", "sparse"]),
}
CASES = [("rms_norm", case) for case in REFUSED] + [
    ("add_rms_norm", case) for case in REFUSED | REFUSED_RESIDUAL
]


def sound(op, device):
    given = {"x": X, "weight": WEIGHT} | ({"residual": X} if op == "add_rms_norm" else {})
    return {name: value.to(device) for name, value in given.items()}


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:.*quantiz")
@pytest.mark.parametrize(("op", "case"), CASES)
def test_refused(rmsnorm, device, op, case):
    """Limits undocumented, errors from deep inside (S30, quack#23): each names argument, given and wanted."""
    bad, error, words = (REFUSED | REFUSED_RESIDUAL)[case]
    given = sound(op, device)
    given |= {
        name: moved(value, device) for name, value in bad.items() if (op, name) != ("rms_norm", "residual")
    }
    assert_refused(getattr(rmsnorm, op), given, error, words)
    # the refusal came before any launch: nothing is left behind
    assert same_bits(rmsnorm.rms_norm(X.to(device), eps=0.0), X.to(device))


def test_refused_on_cuda(rmsnorm, device):
    """fp64 on the GPU, and a weight on the other device (D03, TileKernels#28), are refused by name."""
    need_cuda(device)
    with pytest.raises(TypeError, match=r"^rms_norm: x .*float64"):
        rmsnorm.rms_norm(X.to(device, F64))
    with pytest.raises(TypeError, match=r"^rms_norm: weight .*float64"):
        rmsnorm.rms_norm(X.to(device), WEIGHT.to(device, F64))
    with pytest.raises(ValueError, match=r"^rms_norm: weight .*cpu.*cuda"):
        rmsnorm.rms_norm(X.to(device), WEIGHT)
    with pytest.raises(ValueError, match=r"^add_rms_norm: residual .*cpu.*cuda"):
        rmsnorm.add_rms_norm(X.to(device), X)
    assert same_bits(rmsnorm.rms_norm(X.to(device), eps=0.0), X.to(device))


def test_cpu_tensors_on_a_cuda_build(rmsnorm, device):
    """A build without code for the device of its inputs says so (D03), as TypeError or ValueError by name."""
    need_cuda(device)
    with pytest.raises(ValueError, match=r"^rms_norm: .*x .*cpu"):
        rmsnorm.rms_norm(X, WEIGHT)


def test_meta_tensors(rmsnorm):
    """Inputs that are all on the meta device give their shapes back, for models built without memory."""
    x, weight = torch.empty(3, 8, device="meta", dtype=BF16), torch.empty(8, device="meta")
    outputs = (rmsnorm.rms_norm(x, weight), *rmsnorm.add_rms_norm(x, x, weight))
    assert all((t.shape, t.dtype, t.device) == (x.shape, x.dtype, x.device) for t in outputs)


@pytest.mark.parametrize("eps", [0, 1, 0.0, 1e-12, True])
def test_eps_may_be_any_number(rmsnorm, device, eps):
    """An int is a number; a bool is one in Python, and refused or taken as such, never misread."""
    x = torch.full((2, 8), 3.0, device=device)
    try:
        y = rmsnorm.rms_norm(x, None, eps)
    except TypeError as error:
        assert eps is True and "eps" in str(error)  # noqa: PT017, PT018
        return
    torch.testing.assert_close(y, torch.full_like(x, 3 / math.sqrt(9 + float(eps))))


@pytest.mark.parametrize("op", ["rms_norm", "add_rms_norm"])
def test_call_forms(rmsnorm, device, op):
    """The options are keyword-only, so that a call is readable and can grow; names and defaults are fixed."""
    inputs = {"x": REQUIRED} | ({"residual": REQUIRED} if op == "add_rms_norm" else {})
    options = {"weight_offset": 0.0, "rounding": "once"}
    assert_call_form(getattr(rmsnorm, op), options, **inputs, weight=None, eps=1e-6)


def test_public_names(rmsnorm):
    """What is documented can be imported, and __all__ says so."""
    assert {"rms_norm", "add_rms_norm"} <= set(rmsnorm.__all__)
    assert all(hasattr(rmsnorm, name) for name in rmsnorm.__all__)
    assert all(hasattr(rmsnorm.layers, name) for name in ("RMSNorm", "LlamaRMSNorm", "GemmaRMSNorm"))
    assert rmsnorm.rms_norm.__doc__
    assert rmsnorm.add_rms_norm.__doc__


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_outputs_are_new_contiguous_tensors(rmsnorm, device, shape):
    """An op that returns an input is refused by functionalization (C05, pytorch#134278)."""
    for dtype in floats(device):
        x, residual, weight = tensors(device, dtype, shape, shape, shape[-1:])
        inputs = (x, residual, weight)
        y = rmsnorm.rms_norm(x, weight)
        outputs = (y, rmsnorm.rms_norm(x, None), *rmsnorm.add_rms_norm(x, residual, weight))
        assert y.shape == shape
        assert y.dtype == dtype
        assert_new(outputs, inputs)
    assert torch.ones(3, device=device).sum().item() == 3


@pytest.mark.parametrize("shape", [(3, 8), (0, 8)], ids=str)
def test_identity_is_a_copy(rmsnorm, device, shape):
    """A norm that changes nothing (rms 1, eps 0, zero residual) still returns tensors of its own (C05)."""
    x = torch.ones(shape, device=device)
    y, total = rmsnorm.add_rms_norm(x, torch.zeros_like(x), None, 0.0)
    rmsnorm.rms_norm(x, None, 0.0).fill_(7)
    y.fill_(7)
    total.fill_(7)
    assert same_bits(x, torch.ones_like(x))


SCHEMAS = {
    "rms_norm": (5, 1),
    "rms_norm_train": (5, 2),
    "add_rms_norm": (6, 2),
    "add_rms_norm_train": (6, 3),
    "rms_norm_backward": (8, 2),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_functional(ops, name):
    """No alias mark, no mutation, no wildcard in any schema (C05, pytorch#189523)."""
    assert_functional(getattr(ops, name), *SCHEMAS[name])


def test_raw_ops_are_the_public_ones(rmsnorm, ops, device):
    """The forward ops, and their training twins, are what the functions call: the same bits."""
    x, residual, weight = tensors(device, BF16, (5, 96), (5, 96), 96)
    y, (added, total) = rmsnorm.rms_norm(x, weight), rmsnorm.add_rms_norm(x, residual, weight)
    options = (weight, 1e-6, 0.0, False)
    assert same_bits(ops.rms_norm(x, *options), y)
    assert same_bits(ops.rms_norm_train(x, *options)[0], y)
    for outputs in (ops.add_rms_norm(x, residual, *options), ops.add_rms_norm_train(x, residual, *options)):
        assert same_bits(outputs[0], added)
        assert same_bits(outputs[1], total)


def test_raw_backward_without_a_weight_gradient(ops, device):
    """grad_weight is an empty tensor when it is not wanted, and grad_x is the same either way."""
    x, grad, weight = tensors(device, F32, (5, 96), (5, 96), 96)
    _, rstd = ops.rms_norm_train(x, weight, 1e-6, 0.0, False)
    without, empty = ops.rms_norm_backward(grad, None, x, weight, rstd, 0.0, False, False)
    with_weight, full = ops.rms_norm_backward(grad, None, x, weight, rstd, 0.0, False, True)
    assert empty.shape == (0,)
    assert full.shape == (96,)
    assert same_bits(without, with_weight)


def test_parameters_are_taken_as_they_are(rmsnorm, device):
    """A Parameter, a buffer of a module in half precision and a non-contiguous weight need no preparation."""
    x, weight = tensors(device, BF16, (5, 96), 192)
    parameter = torch.nn.Parameter(weight[::2])
    assert not parameter.is_contiguous()
    with torch.no_grad():
        assert same_bits(rmsnorm.rms_norm(x, parameter), rmsnorm.rms_norm(x, weight[::2].contiguous()))
    one = torch.ones(1, device=device).expand(96)
    assert same_bits(rmsnorm.rms_norm(x, one), rmsnorm.rms_norm(x))
