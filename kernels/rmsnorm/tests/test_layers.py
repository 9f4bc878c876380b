# SPDX-License-Identifier: Apache-2.0
"""The layers stand in for the models' own classes: same numbers, same signature, swapped by kernelize."""

from __future__ import annotations

import inspect
from types import MethodType

import pytest
import torch
from kernels import Mode
from vendor.checks import randn, short, ulp_distance
from vendor.compiling import assert_one_graph
from vendor.layers import Layer, assert_stateless, imported, swapped

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
WIDTH = 512


class DiffusersRMSNorm(torch.nn.Module):
    """diffusers' RMSNorm (models/normalization.py), for machines without diffusers."""

    def __init__(self, dim, eps, elementwise_affine=True, bias=False):
        super().__init__()
        self.eps, self.dim, self.elementwise_affine = eps, torch.Size((dim,)), elementwise_affine
        self.weight = torch.nn.Parameter(torch.ones(dim)) if elementwise_affine else None
        self.bias = torch.nn.Parameter(torch.zeros(dim)) if elementwise_affine and bias else None

    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.eps)
        if self.weight is None:
            return hidden_states.to(input_dtype)
        if self.weight.dtype in [torch.float16, torch.bfloat16]:
            hidden_states = hidden_states.to(self.weight.dtype)
        hidden_states = hidden_states * self.weight
        return hidden_states if self.bias is None else hidden_states + self.bias


def from_transformers(model, name):
    return imported(f"transformers.models.{model}.modeling_{model}", name)


def from_diffusers(*args, **kwargs):
    return imported("diffusers.models.normalization", "RMSNorm")(*args, **kwargs)


MODELS = {  # the layer that stands in, and how to make the model's own
    "llama": ("LlamaRMSNorm", lambda: from_transformers("llama", "LlamaRMSNorm")(WIDTH, 1e-5)),
    "qwen3": ("LlamaRMSNorm", lambda: from_transformers("qwen3", "Qwen3RMSNorm")(WIDTH, 1e-6)),
    "gemma": ("GemmaRMSNorm", lambda: from_transformers("gemma", "GemmaRMSNorm")(WIDTH, 1e-6)),
    "torch": ("RMSNorm", lambda: torch.nn.RMSNorm(WIDTH, 1e-5)),
    "torch, eps None": ("RMSNorm", lambda: torch.nn.RMSNorm(WIDTH)),
    "torch, no weight": ("RMSNorm", lambda: torch.nn.RMSNorm(WIDTH, 1e-5, elementwise_affine=False)),
    "torch, two dims": ("RMSNorm", lambda: torch.nn.RMSNorm((4, WIDTH), 1e-5)),
    "diffusers": ("RMSNorm", lambda: from_diffusers(WIDTH, 1e-5)),
    "diffusers, bias": ("RMSNorm", lambda: from_diffusers(WIDTH, 1e-5, bias=True)),
    "diffusers, no weight": ("RMSNorm", lambda: from_diffusers(WIDTH, 1e-5, elementwise_affine=False)),
    "as diffusers": ("RMSNorm", lambda: DiffusersRMSNorm(WIDTH, 1e-5)),
    "as diffusers, bias": ("RMSNorm", lambda: DiffusersRMSNorm(WIDTH, 1e-5, bias=True)),
    "as diffusers, no weight": ("RMSNorm", lambda: DiffusersRMSNorm(WIDTH, 1e-5, elementwise_affine=False)),
}
models = pytest.mark.parametrize("model", MODELS)


def module_and_layer(rmsnorm, model, device, dtype):
    """The model's own module with random parameters, and the layer's forward bound to it."""
    layer, make = MODELS[model]
    module = make().to(device, dtype)
    for seed, parameter in enumerate(module.parameters()):
        parameter.data.copy_(randn(*parameter.shape, seed=seed + 1))
    return module, MethodType(getattr(rmsnorm.layers, layer).forward, module)


@pytest.mark.parametrize("dtype", short([BF16, F32], [BF16]), ids=["bfloat16", "float32"])
@models
def test_same_numbers_as_the_model(rmsnorm, device, model, dtype):
    """Model outputs drift because the cast order differs (N03, sglang#2258); eps by its attribute (N10)."""
    module, layer = module_and_layer(rmsnorm, model, device, dtype)
    x = randn(64, 4, WIDTH, dtype=dtype, device=device)
    x[:4] *= 1e-3  # rows where eps counts
    expected, got = module(x), layer(x)
    assert got.dtype == dtype
    if dtype == F32:
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
        return
    distance = ulp_distance(got, expected)
    assert float((distance == 0).float().mean()) >= 0.999
    if getattr(module, "bias", None) is None:
        assert int(distance.max()) <= 1
    else:  # the bias may cancel the product: an ulp of the product is then more than one of the sum
        torch.testing.assert_close(got, expected, rtol=0, atol=2.0**-7 * float(expected.detach().abs().max()))


@models
def test_gradients_of_the_layer(rmsnorm, device, model):
    """Layers flagged has_backward train the parameters that the model's own would (A01, A07)."""
    module, layer = module_and_layer(rmsnorm, model, device, F32)
    x = randn(64, 4, WIDTH, device=device).requires_grad_()
    wanted, upstream = [x, *module.parameters()], randn(64, 4, WIDTH, device=device, seed=9)
    expected = torch.autograd.grad(module(x), wanted, upstream)
    got = torch.autograd.grad(layer(x), wanted, upstream)
    for actual, truth in zip(got, expected, strict=True):
        torch.testing.assert_close(actual, truth, rtol=1e-4, atol=1e-4 * float(truth.abs().max()))


@pytest.mark.kernels_ci
@models
def test_signature_and_statelessness(rmsnorm, model):
    """A layer's forward differs from the one it replaces (I08, kernels#143); layers carry no state."""
    name, make = MODELS[model]
    layer = getattr(rmsnorm.layers, name)
    own, ours = (inspect.signature(c.forward).parameters for c in (type(make()), layer))
    assert [p.kind for p in ours.values()] == [p.kind for p in own.values()]
    if not model.startswith("torch"):  # torch.nn calls it x, diffusers hidden_states; one layer serves both
        assert list(ours) == list(own)
    assert_stateless(layer)


@pytest.mark.parametrize("dtypes", [(BF16, F32), (F16, F32), (F32, BF16)], ids=str)
@pytest.mark.parametrize("name", ["LlamaRMSNorm", "GemmaRMSNorm", "RMSNorm"])
def test_dtype_of_a_mixed_layer(rmsnorm, device, name, dtypes):
    """A norm kept in fp32 beside bf16 activations (A15, diffusers#10992): the input's dtype comes back."""
    model = {"LlamaRMSNorm": "llama", "GemmaRMSNorm": "gemma", "RMSNorm": "torch"}[name]
    x_dtype, weight_dtype = dtypes
    module, layer = module_and_layer(rmsnorm, model, device, weight_dtype)
    x = randn(64, WIDTH, dtype=x_dtype, device=device)
    got = layer(x)
    assert got.dtype == x_dtype
    expected = module.to(F32)(x.float())
    torch.testing.assert_close(got.float(), expected, rtol=2.0**-6, atol=1e-3)


@pytest.mark.kernels_ci
@pytest.mark.parametrize("model", ["llama", "gemma", "torch", "torch, eps None", "as diffusers, bias"])
def test_no_graph_breaks_in_a_layer(rmsnorm, device, model):
    """Each layer compiles as one whole graph (C07, transformers#46039; C09, diffusers#13151)."""
    _, layer = module_and_layer(rmsnorm, model, device, BF16)
    x = randn(8, 4, WIDTH, dtype=BF16, device=device)
    torch._dynamo.reset()
    assert_one_graph(layer, x)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), layer(x))


# ---- a whole model -----------------------------------------------------------------------------------------


def tiny_qwen3(device, dtype, layers=2):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=layers, head_dim=32,
        num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.Qwen3ForCausalLM(config).to(device, dtype).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:  # ones would hide a weight that is not read
            parameter.data.copy_(1 + 0.2 * torch.randn(parameter.shape))
    return model


@pytest.fixture
def repository(kernel_path, backend, rmsnorm):
    return Layer(kernel_path, "LlamaRMSNorm", backend)


@pytest.mark.parametrize("dtype", short([F32, BF16], [BF16]), ids=["float32", "bfloat16"])
def test_kernelized_qwen3(repository, device, dtype):
    """RMSNorm under kernelize and compile gives wrong outputs (C07, transformers#46039)."""
    layers = 2
    eager, model = tiny_qwen3(device, dtype, layers), tiny_qwen3(device, dtype, layers)
    tokens = torch.randint(0, 256, (2, 33), generator=torch.Generator().manual_seed(1)).to(device)
    assert (
        swapped(model, "RMSNorm", repository, Mode.INFERENCE | Mode.TORCH_COMPILE, device) == 4 * layers + 1
    )
    torch._dynamo.reset()
    with torch.no_grad():
        truth, ours = eager(tokens).logits.float(), model(tokens).logits.float()
        compiled = torch.compile(model, backend="aot_eager")(tokens).logits.float()
    limit = 1e-4 if dtype == F32 else 1e-2
    for logits in (ours, compiled):
        assert float((logits - truth).abs().max()) < limit
        top = truth.topk(2).values
        clear = (top[..., 0] - top[..., 1]) > 2 * limit  # elsewhere the argmax is a toss-up
        assert clear.any()
        assert torch.equal(logits.argmax(-1)[clear], truth.argmax(-1)[clear])
    assert float((ours - compiled).abs().max()) < limit


def test_training_a_kernelized_qwen3(repository, device):
    """kernelize for training picks a layer with a backward; every norm gets its gradient (A01, A07)."""
    eager, model = tiny_qwen3(device, F32), tiny_qwen3(device, F32)
    assert swapped(model, "RMSNorm", repository, Mode.TRAINING, device) == 9
    tokens = torch.randint(0, 256, (2, 33), generator=torch.Generator().manual_seed(1)).to(device)
    for candidate in (eager, model):
        candidate.train()
        candidate(tokens, labels=tokens).loss.backward()
    for (name, ours), truth in zip(model.named_parameters(), eager.parameters(), strict=True):
        assert ours.grad is not None, name
        torch.testing.assert_close(
            ours.grad, truth.grad, rtol=1e-3, atol=1e-4 * float(truth.grad.abs().max())
        )
