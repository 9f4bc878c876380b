# SPDX-License-Identifier: Apache-2.0
"""What the ops accept and refuse, with which words, and what they promise about their outputs."""

from __future__ import annotations

import pytest
import torch
from checks import OPTIONS, halves
from vendor.checks import floats, leaf, same_bits, tensors
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
X, HALF = torch.ones(3, 8), torch.ones(3, 4)

# Of the first tensor of either function: what is given, the error, and the words: what is wanted.
LEAD = {
    "a list": ([1.0], TypeError, ["list", "Tensor"]),
    "None": (None, TypeError, ["NoneType", "Tensor"]),
    "int64": (torch.ones(3, 8, dtype=torch.int64), TypeError, ["int64", "float32"]),
    "bool": (torch.ones(3, 8, dtype=torch.bool), TypeError, ["bool", "float32"]),
    "complex": (torch.ones(3, 8, dtype=torch.complex64), TypeError, ["complex", "float32"]),
    "float8": (torch.ones(3, 8).to(FLOAT8), TypeError, ["float8_e4m3fn", "float32"]),
    "sparse": (X.to_sparse(), TypeError, ["sparse"]),
    "sparse csr": (X.to_sparse_csr, TypeError, ["sparse"]),
    "quantized": (quantized, TypeError, ["q"]),
    "a scalar": (torch.ones(()), ValueError, ["dim"]),
}
PACKED = {
    "x is odd": ({"x": torch.ones(3, 7)}, ValueError, ["x", "3, 7", "even"]),
    "x is one column": ({"x": torch.ones(3, 1)}, ValueError, ["x", "3, 1", "even"]),
    "gate is unknown": ({"gate": "second"}, ValueError, ["gate", "second", "last", "first"]),
    "gate is a tensor": ({"gate": HALF}, ValueError, ["gate", "last", "first"]),
}
SPLIT = {
    "value is elsewhere": ({"value": torch.ones(3, 8, device="meta")}, ValueError, ["value", "meta"]),
    "gate is None": ({"gate": None}, TypeError, ["gate", "NoneType", "Tensor"]),
    "gate has another dtype": ({"gate": X.to(BF16)}, TypeError, ["gate", "bfloat16", "float32 as value"]),
    "gate is int": ({"gate": X.long()}, TypeError, ["gate", "int64", "float32 as value"]),
    "gate has another shape": ({"gate": torch.ones(1, 8)}, ValueError, ["gate", "1, 8", "3, 8) as value"]),
    "gate is transposed": ({"gate": torch.ones(8, 3)}, ValueError, ["gate", "8, 3", "3, 8) as value"]),
    "gate is a row": ({"gate": torch.ones(8)}, ValueError, ["gate", "(8,)", "3, 8) as value"]),
    "gate is elsewhere": ({"gate": torch.ones(3, 8, device="meta")}, ValueError, ["gate", "meta"]),
    "gate is sparse": ({"gate": X.to_sparse()}, TypeError, ["gate", "sparse"]),
}
MODES = {
    "approximate is unknown": ({"approximate": "erf"}, ValueError, ["approximate", "erf", "none", "tanh"]),
    "approximate is None": ({"approximate": None}, ValueError, ["approximate", "None", "none", "tanh"]),
    "approximate is a bool": ({"approximate": True}, ValueError, ["approximate", "True", "none", "tanh"]),
    "approximate is a list": ({"approximate": ["none"]}, ValueError, ["approximate", "none", "tanh"]),
}


def cases():
    for op, name, others in (("geglu", "x", PACKED | MODES), ("geglu_split", "value", SPLIT | MODES)):
        for what, (given, error, words) in LEAD.items():
            yield pytest.param(op, {name: given}, error, [name, *words], id=f"{op}-{name} is {what}")
        for what, case in others.items():
            yield pytest.param(op, *case, id=f"{op}-{what}")


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:.*quantiz")
@pytest.mark.parametrize(("op", "bad", "error", "words"), list(cases()))
def test_refused(geglu, device, op, bad, error, words):
    """Limits undocumented, errors from deep inside (S30, quack#23): each names argument, given and wanted."""
    given = {"x": X.to(device)} if op == "geglu" else {"value": X.to(device), "gate": X.to(device)}
    given |= {name: moved(value, device) for name, value in bad.items()}
    assert_refused(getattr(geglu, op), given, error, words)
    # the refusal came before any launch: nothing is left behind
    assert not geglu.geglu(torch.zeros_like(X, device=device)).any()


def test_refused_on_cuda(geglu, device):
    """fp64 on the GPU, and halves on two devices (D03, TileKernels#28), are refused by name."""
    need_cuda(device)
    with pytest.raises(TypeError, match=r"^geglu: x .*float64"):
        geglu.geglu(X.to(device, F64))
    with pytest.raises(TypeError, match=r"^geglu_split: value .*float64"):
        geglu.geglu_split(X.to(device, F64), X.to(device, F64))
    with pytest.raises(ValueError, match=r"^geglu_split: gate .*cpu.*cuda"):
        geglu.geglu_split(X.to(device), X)
    assert not geglu.geglu(torch.zeros_like(X, device=device)).any()


def test_cpu_tensors_on_a_cuda_build(geglu, device):
    """A build without code for the device of its inputs says so (D03), as TypeError or ValueError by name."""
    need_cuda(device)
    with pytest.raises(ValueError, match=r"^geglu: .*x .*cpu"):
        geglu.geglu(X)


def test_too_wide(geglu, device):
    """A half of more than 2^30 columns is refused before anything is made of it."""
    value = torch.ones(1, dtype=torch.float16, device=device)
    with pytest.raises(ValueError, match=r"^geglu: x .*2147483650.*2147483648"):
        geglu.geglu(value.expand(2**31 + 2))
    wide = value.expand(2**30 + 1)
    with pytest.raises(ValueError, match=r"^geglu_split: value .*1073741825.*1073741824"):
        geglu.geglu_split(wide, wide)


def test_raw_backward_refuses(ops, device):
    """The backward ops check what they are given too: a gradient of x's own shape is one half too many."""
    x = X.to(device)
    with pytest.raises(RuntimeError, match=r"ValueError: geglu_backward: grad .*3, 8.*half of x"):
        ops.geglu_backward(x, x, False, False)
    with pytest.raises(RuntimeError, match=r"TypeError: geglu_backward: grad .*bfloat16.*float32 as x"):
        ops.geglu_backward(HALF.to(device, BF16), x, False, False)
    with pytest.raises(RuntimeError, match=r"ValueError: geglu_split_backward: grad .*3, 4.*as value"):
        ops.geglu_split_backward(HALF.to(device), x, x, False)


def test_meta_tensors(geglu):
    """Inputs that are all on the meta device give their shapes back, for models built without memory."""
    x = torch.empty(3, 8, device="meta", dtype=BF16)
    y, split = geglu.geglu(x), geglu.geglu_split(x, x)
    assert (y.shape, y.dtype, y.device) == ((3, 4), BF16, x.device)
    assert (split.shape, split.dtype, split.device) == ((3, 8), BF16, x.device)
    with pytest.raises(ValueError, match="even"):
        geglu.geglu(x[:, 1:])


def test_call_forms(geglu):
    """The options are keyword-only, so that a call is readable and can grow; names and defaults are fixed."""
    assert_call_form(geglu.geglu, {"approximate": "none", "gate": "last"}, x=REQUIRED)
    assert_call_form(geglu.geglu_split, {"approximate": "none"}, value=REQUIRED, gate=REQUIRED)


def test_public_names(geglu):
    """What is documented can be imported, and __all__ says so."""
    assert {"geglu", "geglu_split"} <= set(geglu.__all__)
    assert all(hasattr(geglu, name) for name in geglu.__all__)
    assert all(hasattr(geglu.layers, name) for name in geglu.layers.__all__)
    assert geglu.geglu.__doc__
    assert geglu.geglu_split.__doc__


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_outputs_are_new_contiguous_tensors(geglu, device, shape):
    """An op that returns an input is refused by functionalization (C05, pytorch#134278)."""
    for dtype in floats(device):
        value, gate = tensors(device, dtype, shape, shape)
        assert_new([geglu.geglu_split(value, gate)], (value, gate))
        (x,) = tensors(device, dtype, (*shape[:-1], 2 * shape[-1]))
        for options in OPTIONS:
            y = geglu.geglu(x, **options)
            assert y.shape == shape
            assert_new([y], halves(x, options["gate"]))
    assert torch.ones(3, device=device).sum().item() == 3


SCHEMAS = {
    "geglu": (3, 1),
    "geglu_train": (3, 1),
    "geglu_backward": (4, 1),
    "geglu_split": (3, 1),
    "geglu_split_train": (3, 1),
    "geglu_split_backward": (4, 2),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_functional(ops, name):
    """No alias mark, no mutation, no wildcard in any schema (C05, pytorch#189523)."""
    assert_functional(getattr(ops, name), *SCHEMAS[name])


def test_raw_ops_are_the_public_ones(geglu, ops, device):
    """The forward ops, and their training twins, are what the functions call: the same bits."""
    x, grad = tensors(device, BF16, (5, 192), (5, 96))
    for options in OPTIONS:
        tanh, first = options["approximate"] == "tanh", options["gate"] == "first"
        y = geglu.geglu(x, **options)
        assert same_bits(ops.geglu(x, tanh, first), y)
        assert same_bits(ops.geglu_train(x, tanh, first), y)
        value, gate = halves(x, options["gate"])
        assert same_bits(ops.geglu_split(value, gate, tanh), y)
        assert same_bits(ops.geglu_split_train(value, gate, tanh), y)
        given = leaf(x)
        (got,) = torch.autograd.grad(geglu.geglu(given, **options), given, grad)
        assert same_bits(ops.geglu_backward(grad, x, tanh, first), got)
        for actual, half in zip(
            ops.geglu_split_backward(grad, value, gate, tanh), halves(got, options["gate"]), strict=True
        ):
            assert same_bits(actual, half)
