# SPDX-License-Identifier: Apache-2.0
"""The layers stand in for the models' own classes: same numbers, same signature, swapped by kernelize."""

from __future__ import annotations

import copy
import inspect
from types import MethodType, SimpleNamespace

import pytest
import torch
from kernels import Mode, replace_kernel_forward_from_hub
from vendor.checks import randn, short
from vendor.compiling import assert_one_graph
from vendor.layers import Layer, assert_stateless, imported, swapped

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
WIDTH, INNER = 64, 136
gelu = torch.nn.functional.gelu


class DiffusersGEGLU(torch.nn.Module):
    """diffusers' GEGLU (models/activations.py), for machines without diffusers."""

    def __init__(self):
        super().__init__()
        self.proj = torch.nn.Linear(WIDTH, 2 * INNER)

    def forward(self, hidden_states, *args, **kwargs):
        hidden_states, gate = self.proj(hidden_states).chunk(2, dim=-1)
        return hidden_states * gelu(gate)


class GatedMLP(torch.nn.Module):
    """transformers' GemmaMLP (models/gemma/modeling_gemma.py), for machines without transformers."""

    def __init__(self, approximate):
        super().__init__()
        self.gate_proj, self.up_proj = (torch.nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down_proj = torch.nn.Linear(INNER, WIDTH, bias=False)
        self.act_fn = torch.nn.GELU(approximate=approximate)

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class VllmGeluAndMul(torch.nn.Module):
    """vLLM's GeluAndMul (model_executor/layers/activation.py), which wants a GPU machine to be installed."""

    def __init__(self, approximate):
        super().__init__()
        self.approximate = approximate

    def forward(self, x):
        d = x.shape[-1] // 2
        return gelu(x[..., :d], approximate=self.approximate) * x[..., d:]


def diffusers():
    return imported("diffusers.models.activations", "GEGLU")(WIDTH, INNER)


def gemma(name, act="gelu_pytorch_tanh"):
    """The MLP of a model of transformers; those differ in the name of their activation's setting."""
    module = f"transformers.models.{name.removesuffix('MLP').lower()}"
    mlp = imported(f"{module}.modeling_{module.rpartition('.')[2]}", name)
    return mlp(
        SimpleNamespace(hidden_size=WIDTH, intermediate_size=INNER, hidden_act=act, hidden_activation=act)
    )


def modernbert(act="gelu", dropout=0.0):
    mlp = imported("transformers.models.modernbert.modeling_modernbert", "ModernBertMLP")
    return mlp(
        SimpleNamespace(
            hidden_size=WIDTH,
            intermediate_size=INNER,
            hidden_activation=act,
            mlp_bias=True,
            mlp_dropout=dropout,
        )
    )


MODELS = {  # the layer that stands in, how to make the model's own, and the width of its input
    "diffusers": ("GEGLU", diffusers, WIDTH),
    "gemma": ("GemmaMLP", lambda: gemma("GemmaMLP"), WIDTH),
    "gemma2": ("GemmaMLP", lambda: gemma("Gemma2MLP"), WIDTH),
    "gemma3": ("GemmaMLP", lambda: gemma("Gemma3MLP"), WIDTH),
    "gemma, erf": ("GemmaMLP", lambda: gemma("GemmaMLP", "gelu"), WIDTH),
    "gemma, new": ("GemmaMLP", lambda: gemma("GemmaMLP", "gelu_new"), WIDTH),
    "gemma, python": ("GemmaMLP", lambda: gemma("GemmaMLP", "gelu_python_tanh"), WIDTH),
    "modernbert": ("ModernBertMLP", modernbert, WIDTH),
    "modernbert, tanh": ("ModernBertMLP", lambda: modernbert("gelu_pytorch_tanh"), WIDTH),
    "as diffusers": ("GEGLU", DiffusersGEGLU, WIDTH),
    "as gemma": ("GemmaMLP", lambda: GatedMLP("tanh"), WIDTH),
    "as gemma, erf": ("GemmaMLP", lambda: GatedMLP("none"), WIDTH),
    "as vllm": ("GeluAndMul", lambda: VllmGeluAndMul("none"), 2 * WIDTH),
    "as vllm, tanh": ("GeluAndMul", lambda: VllmGeluAndMul("tanh"), 2 * WIDTH),
}
models = pytest.mark.parametrize("model", MODELS)
ONE_OF_EACH = ("diffusers", "gemma", "modernbert", "as vllm")


def module_and_layer(geglu, model, device, dtype):
    """The model's own module with random parameters, and the layer's forward bound to it."""
    layer, make, _ = MODELS[model]
    module = make().to(device, dtype)
    for seed, parameter in enumerate(module.parameters()):
        scale = 2 * parameter.shape[-1] ** -0.5
        parameter.data.copy_(randn(*parameter.shape, seed=seed + 1, scale=scale))
    return module, MethodType(getattr(geglu.layers, layer).forward, module)


def hidden(model, device, dtype, seed=0):
    return randn(3, 17, MODELS[model][2], dtype=dtype, device=device, seed=seed)


@pytest.mark.parametrize("dtype", short([BF16, F16, F32], [BF16]), ids=["bfloat16", "float16", "float32"])
@models
def test_same_numbers_as_the_model(geglu, device, model, dtype):
    """Conventions are mixed up (S29, N16), or roundings: ours is no further from fp64 than the model's own.

    In fp32 that is 1e-5. In half precision the model rounds where we do and once more; a quarter is room for
    chance, as the projections round too.
    """
    module, layer = module_and_layer(geglu, model, device, dtype)
    x = hidden(model, device, dtype)
    with torch.no_grad():
        truth, expected, got = copy.deepcopy(module).double()(x.double()), module(x), layer(x)
    assert (got.dtype, got.shape) == (dtype, expected.shape)
    largest = truth.abs().max()
    ours, theirs = ((t.double() - truth).abs() for t in (got, expected))
    if dtype == F32:
        assert bool(ours.max() <= 1e-5 * largest)
        return
    assert bool(ours.square().mean().sqrt() <= 1.25 * theirs.square().mean().sqrt())
    assert bool(ours.max() <= 1.25 * theirs.max() + torch.finfo(dtype).eps * largest)


@models
def test_gradients_of_the_layer(geglu, device, model):
    """Layers flagged has_backward train the parameters that the model's own would (A07)."""
    module, layer = module_and_layer(geglu, model, device, F32)
    x = hidden(model, device, F32).requires_grad_()
    wanted, y = [x, *module.parameters()], module(x)
    upstream = randn(*y.shape, device=device, seed=9)
    expected = torch.autograd.grad(y, wanted, upstream)
    for actual, truth in zip(torch.autograd.grad(layer(x), wanted, upstream), expected, strict=True):
        torch.testing.assert_close(actual, truth, rtol=1e-4, atol=1e-5 * float(truth.abs().max()))


@pytest.mark.kernels_ci
@models
def test_signature_and_statelessness(geglu, model):
    """A layer's forward differs from the one it replaces (I08, kernels#143); layers carry no state."""
    name, make, _ = MODELS[model]
    layer = getattr(geglu.layers, name)
    own, ours = (inspect.signature(c.forward).parameters for c in (type(make()), layer))
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [
        (p.name, p.kind, p.default) for p in own.values()
    ]
    assert_stateless(layer)


@pytest.mark.kernels_ci
@pytest.mark.parametrize("model", ["as diffusers", "diffusers"])
def test_the_deprecated_scale_is_ignored(geglu, device, model):
    """diffusers' GEGLU still takes a scale, by position and by name, and does nothing with it."""
    _, layer = module_and_layer(geglu, model, device, F32)
    x = hidden(model, device, F32)
    for again in (layer(x, 0.5), layer(x, scale=0.5), layer(x, scale=None)):
        assert torch.equal(again, layer(x))


@pytest.mark.kernels_ci
@pytest.mark.parametrize("act", ["silu", "relu", "quick_gelu", "gelu_10"])
def test_another_activation_is_refused(geglu, device, act):
    """A layer that computes GELU whatever the model's activation is gives wrong numbers without a word."""
    kind = type(imported("transformers.activations", "ACT2FN")[act]).__name__
    for name, attribute, make in (
        ("GemmaMLP", "act_fn", lambda a: gemma("GemmaMLP", a)),
        ("ModernBertMLP", "act", modernbert),
    ):
        layer = MethodType(getattr(geglu.layers, name).forward, make(act).to(device))
        with pytest.raises(ValueError, match=rf"^{name}: {attribute} is {kind}, wanted .*GELU"):
            layer(torch.ones(2, WIDTH, device=device))


def test_an_activation_of_torch_is_refused(geglu, device):
    """The same where transformers is not installed, and for an unknown mode of vLLM's."""
    module = GatedMLP("tanh").to(device)
    module.act_fn = torch.nn.SiLU()
    with pytest.raises(ValueError, match=r"^GemmaMLP: act_fn is SiLU, wanted .*GELU"):
        geglu.layers.GemmaMLP.forward(module, torch.ones(2, WIDTH, device=device))
    with pytest.raises(ValueError, match=r"^geglu: approximate is 'quick', wanted 'none' or 'tanh'"):
        geglu.layers.GeluAndMul.forward(VllmGeluAndMul("quick"), torch.ones(2, WIDTH, device=device))


def test_dropout_stays(geglu, device):
    """ModernBERT drops between the product and the last projection, in training alone."""
    pytest.importorskip("transformers")
    module = modernbert(dropout=0.5).to(device)
    layer = MethodType(geglu.layers.ModernBertMLP.forward, module)
    x = randn(5, WIDTH, device=device)
    results = []
    for forward in (module, layer):
        torch.manual_seed(3)
        results.append(forward(x))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    module.eval()
    torch.testing.assert_close(layer(x), module(x), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(layer(x), results[0], atol=1e-3)


@pytest.mark.parametrize("model", short(ONE_OF_EACH, ("diffusers", "gemma")))
def test_no_graph_breaks_in_a_layer(geglu, device, model, fresh_dynamo):
    """Each layer compiles as one whole graph (C07, transformers#46039; C09, diffusers#13151)."""
    _, layer = module_and_layer(geglu, model, device, F32)
    x = hidden(model, device, F32)
    with torch.no_grad():
        assert_one_graph(layer, x)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), layer(x))


# ---- kernelize ---------------------------------------------------------------------------------------------


class Stack(torch.nn.Module):
    """Three layers of a model, each on the same hidden states."""

    def __init__(self, geglu, model, device):
        super().__init__()
        blocks = [module_and_layer(geglu, model, device, F32)[0] for _ in range(3)]
        for block in blocks:  # their classes are not marked, so the marks are on these three
            marked(block, MODELS[model][0])
        self.blocks = torch.nn.ModuleList(blocks)

    def forward(self, x):
        return sum(block(x) for block in self.blocks)


def marked(module, layer):
    """Lets kernelize find `module`: its class becomes one of its own that names the layer."""
    module.__class__ = type(type(module).__name__, (type(module),), {})
    replace_kernel_forward_from_hub(type(module), layer)


@pytest.mark.parametrize("model", short(ONE_OF_EACH, ("diffusers",)))
def test_kernelize(geglu, device, kernel_path, backend, model):
    """Every layer is swapped, in inference and in training, and trains as the model's own would (I10, A07).

    Kernelized for inference, train() and backward still give the right gradients, and eval() the kernel back.
    """
    own, x = Stack(geglu, model, device), hidden(model, device, F32)
    name = MODELS[model][0]
    repository = Layer(kernel_path, name, backend)
    x.requires_grad_()
    truth = own.eval()(x).detach()
    expected = torch.autograd.grad(own.train()(x).square().sum(), [x, *own.parameters()])
    for mode in (Mode.INFERENCE, Mode.TRAINING, Mode.TRAINING | Mode.TORCH_COMPILE):
        ours = Stack(geglu, model, device)
        assert swapped(ours, name, repository, mode, device) == 3
        with torch.no_grad():
            torch.testing.assert_close(ours(x), truth, rtol=1e-5, atol=1e-5 * float(truth.abs().max()))
        got = torch.autograd.grad(ours.train()(x).square().sum(), [x, *ours.parameters()])
        for actual, wanted in zip(got, expected, strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))
        with torch.no_grad():
            again = ours.eval()(x)
        torch.testing.assert_close(again, truth, rtol=1e-5, atol=1e-5 * float(truth.abs().max()))


def tiny_gemma(device):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GemmaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, head_dim=32,
        num_attention_heads=2, num_key_value_heads=1, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.GemmaForCausalLM(config).to(device)
    for layer in model.model.layers:
        marked(layer.mlp, "GemmaMLP")
    return model


@pytest.mark.kernels_ci
def test_kernelized_gemma(geglu, device, kernel_path, backend, fresh_dynamo):
    """A whole model, swapped, compiled and trained: the logits and gradients of its own (C07, I06)."""
    own, ours = tiny_gemma(device), tiny_gemma(device)
    repository = Layer(kernel_path, "GemmaMLP", backend)
    assert swapped(ours, "GemmaMLP", repository, Mode.TRAINING | Mode.TORCH_COMPILE, device) == 2
    tokens = torch.randint(0, 256, (2, 33), generator=torch.Generator().manual_seed(1)).to(device)
    with torch.no_grad():
        truth = own(tokens).logits
        for model in (ours, torch.compile(ours, backend="aot_eager")):
            torch.testing.assert_close(model(tokens).logits, truth, rtol=1e-4, atol=1e-4)
    for model in (own, ours):
        model(tokens, labels=tokens).loss.backward()
    for (name, actual), truth in zip(ours.named_parameters(), own.parameters(), strict=True):
        assert actual.grad is not None, name
        torch.testing.assert_close(
            actual.grad, truth.grad, rtol=1e-3, atol=1e-4 * float(truth.grad.abs().max())
        )
