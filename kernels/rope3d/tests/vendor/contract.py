# SPDX-License-Identifier: Apache-2.0
"""What every function promises: refusals in words, outputs of its own, a functional schema, its call form."""

from __future__ import annotations

import inspect

import pytest
import torch

FLOAT8 = torch.float8_e4m3fn
REQUIRED = inspect.Parameter.empty
SHAPES = [(3, 8), (8,), (2, 3, 8), (1, 1), (0, 8), (2, 0, 8), (3, 0), (0,), (0, 0)]


def quantized():  # made on demand, as torch warns of it
    return torch.quantize_per_tensor(torch.ones(3, 8), 0.1, 0, torch.qint8)


def moved(value, device):
    """A case's value where the tensors live; what was put elsewhere on purpose stays there."""
    value = value() if callable(value) else value
    on_host = isinstance(value, torch.Tensor) and value.device.type == "cpu" and not value.is_quantized
    return value.to(device) if on_host else value


def assert_refused(function, given, error, words):
    """The sentence names the function, and has every word: the argument, what was given, what is wanted."""
    with pytest.raises(error) as caught:
        function(**given)
    sentence = str(caught.value)
    assert sentence.startswith(f"{function.__name__}: ")
    assert all(word.lower() in sentence.lower() for word in words), sentence


def assert_call_form(function, keyword_only, **others):
    """Names and defaults are fixed, options are keyword-only; an argument without a default is REQUIRED."""
    parameters = inspect.signature(function).parameters
    assert {name: p.default for name, p in parameters.items()} == others | keyword_only
    assert list(parameters) == [*others, *keyword_only]
    assert {name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY} == set(keyword_only)


def assert_new(outputs, inputs):
    """Contiguous tensors like the first input, and each in memory of its own."""
    x = inputs[0]
    for out in outputs:
        assert (out.shape, out.dtype, out.device) == (x.shape, x.dtype, x.device)
        assert out.is_contiguous()
        assert out.data_ptr() == 0 or out.data_ptr() not in [t.data_ptr() for t in inputs]
        assert not any(out is t or out._base is t for t in inputs)
    filled = [t.data_ptr() for t in outputs if t.numel()]
    assert len(set(filled)) == len(filled)


def assert_functional(op, arguments, returns):
    """No alias mark and no mutation in the schema, which has so many arguments and results."""
    schema = op.default._schema
    assert (len(schema.arguments), len(schema.returns)) == (arguments, returns)
    assert not schema.is_mutable
    assert all(item.alias_info is None for item in (*schema.arguments, *schema.returns))
