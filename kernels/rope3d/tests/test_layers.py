# SPDX-License-Identifier: Apache-2.0
"""The layers stand in for the models' own: same numbers, same signature, swapped by kernelize."""

from __future__ import annotations

import inspect
from types import MethodType

import pytest
import torch
from cases import positions, tables
from kernels import (
    LocalLayerRepository,
    Mode,
    kernelize,
    use_kernel_mapping,
)
from libraries import DIFFUSERS, TRANSFORMERS
from vendor.checks import randn, same_bits, short
from vendor.compiling import assert_one_graph
from vendor.layers import Layer, assert_stateless, imported, swapped

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
# One of each way in which transformers writes the function that is marked "rotary_pos_emb".
FUNCTIONS = ("llama", "qwen3", "qwen2_5_vl", "qwen3_vl", "olmo2", "esm", "gpt_oss")
functions = pytest.mark.parametrize("model", FUNCTIONS)


def own_function(model):
    """The module that kernels made of a model's apply_rotary_pos_emb."""
    return imported(f"{TRANSFORMERS}.{model}.modeling_{model}", "apply_rotary_pos_emb")


def original(model):
    """Its forward, whatever kernelize has put in its place."""
    function = own_function(model)
    return MethodType(type(function).forward, function)


def bound(rope3d, model):
    """The layer's forward, as kernelize binds it."""
    return MethodType(rope3d.layers.RotaryPosEmb.forward, own_function(model))


def arguments(rope3d, model, device, dtype, unsqueeze_dim=1):
    """q, k, cos and sin as the model calls it: heads of 64, two of k."""
    q, k = (
        randn(2, 5, 4, 64, dtype=dtype, device=device),
        randn(2, 5, 2, 64, dtype=dtype, device=device, seed=1),
    )
    cos, sin = tables(rope3d.reference, *positions(device, 32, 5, batch=2), interleaved=False, dtype=dtype)
    if model == "gpt_oss":
        cos, sin = cos[..., :32], sin[..., :32]
    if unsqueeze_dim == 1:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    return q, k, cos, sin, unsqueeze_dim


def wider(given, dtype):
    return [t.to(dtype) if isinstance(t, torch.Tensor) else t for t in given]


@pytest.mark.parametrize("unsqueeze_dim", [1, 2])
@pytest.mark.parametrize("model", short(FUNCTIONS, ("qwen3",)))
def test_same_numbers_as_the_function(rope3d, device, model, unsqueeze_dim):
    """Outputs drift because roundings differ (N03): in fp32 ours are the model's, in half nearer to fp64."""
    for dtype in (F32, BF16, F16):
        given = arguments(rope3d, model, device, dtype, unsqueeze_dim)
        truth = original(model)(*wider(given, F64))
        for got, expected, right in zip(
            bound(rope3d, model)(*given), original(model)(*given), truth, strict=True
        ):
            assert (got.dtype, got.shape) == (dtype, expected.shape)
            error, allowed = ((t.double() - right.double()).abs() for t in (got, expected))
            if dtype == F32:
                assert float(error.max()) <= 2e-6
            else:
                assert float(error.square().mean()) <= 1.01 * float(allowed.square().mean())


@functions
def test_gradients_of_the_function(rope3d, device, model):
    """Layers flagged has_backward train what the model's own would (A07)."""
    given = arguments(rope3d, model, device, F32)
    trained = [t.detach().requires_grad_() for t in given[:2]]
    grads = [randn(*t.shape, device=device, seed=7) for t in trained]
    expected = torch.autograd.grad(original(model)(*trained, *given[2:]), trained, grads)
    got = torch.autograd.grad(bound(rope3d, model)(*trained, *given[2:]), trained, grads)
    torch.testing.assert_close(got, expected, rtol=0, atol=3e-6)


@pytest.mark.kernels_ci
def test_signatures_and_statelessness(rope3d):
    """A layer's forward differs from the one it replaces (I08, kernels#143); layers carry no state."""
    pairs = [(rope3d.layers.RotaryPosEmb, type(own_function(model))) for model in FUNCTIONS]
    pairs.append(
        (
            rope3d.layers.LTXVideoRotaryPosEmbed,
            imported(f"{DIFFUSERS}.transformer_ltx", "LTXVideoRotaryPosEmbed"),
        )
    )
    for layer, own in pairs:
        theirs, ours = (inspect.signature(c.forward).parameters.values() for c in (own, layer))
        assert [(p.name, p.kind, p.default) for p in ours] == [(p.name, p.kind, p.default) for p in theirs]
        assert_stateless(layer)
    theirs = imported(f"{DIFFUSERS}.transformer_ltx", "LTXVideoAttnProcessor").__call__
    ours = rope3d.layers.LTXVideoAttnProcessor.__call__
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)


def test_fp32_tables_beside_half_precision(rope3d, device):
    """fp32 tables promote bf16 q and k in eager; the layer keeps their dtype (I02, diffusers#13918)."""
    q, k, cos, sin, _ = arguments(rope3d, "llama", device, BF16)
    outputs = bound(rope3d, "llama")(q, k, cos.float(), sin.float())
    assert [t.dtype for t in outputs] == [BF16, BF16]


@pytest.mark.kernels_ci
def test_no_graph_breaks_in_a_layer(rope3d, device, fresh_dynamo):
    """The layer compiles as one whole graph (C07, C09, diffusers#13151)."""
    given, layer = arguments(rope3d, "qwen3", device, BF16), bound(rope3d, "qwen3")
    assert_one_graph(layer, *given)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert all(same_bits(a, b) for a, b in zip(compiled(*given), layer(*given), strict=True))


# ---- a whole model of transformers -------------------------------------------------------------------------


def tiny_qwen3(device, dtype):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, head_dim=32,
        num_attention_heads=4, num_key_value_heads=2, attn_implementation="eager",
    )  # fmt: skip
    return transformers.Qwen3ForCausalLM(config).to(device, dtype).eval()


@pytest.fixture
def own_forward_afterwards():
    """kernelize swaps the function of the whole process, so it is put back."""
    pytest.importorskip("transformers")
    yield
    for model in FUNCTIONS:
        function = own_function(model)
        function.forward = MethodType(type(function).forward, function)


def tokens_on(device):
    return torch.randint(0, 256, (2, 33), generator=torch.Generator().manual_seed(1)).to(device)


@pytest.mark.usefixtures("own_forward_afterwards", "fresh_dynamo")
@pytest.mark.parametrize("dtype", short([F32, BF16], [BF16]), ids=["float32", "bfloat16"])
def test_kernelized_qwen3(rope3d, device, kernel_path, backend, dtype):
    """The function is swapped, gives the model's logits, and does so compiled (C07, transformers#46039)."""
    model, tokens = tiny_qwen3(device, dtype), tokens_on(device)
    repository = Layer(kernel_path, "RotaryPosEmb", backend)
    with torch.no_grad():
        truth = model(tokens).logits.float()
        swapped(model, "rotary_pos_emb", repository, Mode.INFERENCE | Mode.TORCH_COMPILE, device)
        assert own_function("qwen3").forward.__func__ is repository.load().forward
        ours = model(tokens).logits.float()
        compiled = torch.compile(model, backend="aot_eager")(tokens).logits.float()
    limit = 1e-4 if dtype == F32 else 1e-2
    for logits in (ours, compiled):
        assert float((logits - truth).abs().max()) < limit
    assert float((ours - compiled).abs().max()) < limit


@pytest.mark.usefixtures("own_forward_afterwards")
def test_training_a_kernelized_qwen3(rope3d, device, kernel_path, backend):
    """kernelize for training picks a layer with a backward; every parameter gets its gradient (A07, I10)."""
    grads = []
    for swap in (False, True):
        model = tiny_qwen3(device, F32)
        if swap:
            repository = Layer(kernel_path, "RotaryPosEmb", backend)
            swapped(model, "rotary_pos_emb", repository, Mode.TRAINING, device)
            assert own_function("qwen3").forward.__func__ is repository.load().forward
        model.train()(tokens_on(device), labels=tokens_on(device)).loss.backward()
        grads.append([p.grad for p in model.parameters()])
    for ours, truth in zip(*reversed(grads), strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-3, atol=1e-4 * float(truth.abs().max()))


@pytest.mark.usefixtures("own_forward_afterwards")
def test_a_missing_layer_is_said(device, kernel_path):
    """A silent fall-back to a slower path (I07, transformers#48185): a name that is not there is an error."""
    if device.type != "cpu":
        pytest.skip("only with --device cpu")
    model, missing = tiny_qwen3(device, F32), LocalLayerRepository(kernel_path, layer_name="Missing")
    mapping = {"rotary_pos_emb": {"cpu": missing}}
    with (
        use_kernel_mapping(mapping, inherit_mapping=False),
        pytest.raises(ValueError, match="`Missing` not found"),
    ):
        kernelize(model, mode=Mode.INFERENCE, device="cpu")
