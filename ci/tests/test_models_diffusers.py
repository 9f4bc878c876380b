# SPDX-License-Identifier: Apache-2.0
"""The same layers in other models of diffusers, put there as a user would: Wan, HunyuanVideo and Flux."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from types import MethodType, ModuleType
from typing import Any

import pytest
import torch
from kernels import LocalLayerRepository, Mode, get_local_kernel, kernelize, use_kernel_mapping
from kernels import replace_kernel_forward_from_hub as mark

pytest.importorskip("diffusers")

import diffusers
import example_models
from diffusers.models import embeddings, normalization
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers import transformer_flux, transformer_wan
from example_models import assert_near, ops_of, perturb

BF16, F32 = torch.bfloat16, torch.float32
dtypes = pytest.mark.parametrize("dtype", [F32, BF16], ids=["float32", "bfloat16"])
NORMS = {
    normalization.AdaLayerNormZero: "adaln",
    normalization.AdaLayerNormZeroSingle: "adaln",
    normalization.AdaLayerNormContinuous: "adaln",
    normalization.RMSNorm: "rmsnorm",
    torch.nn.RMSNorm: "rmsnorm",
}


@pytest.fixture(scope="module")
def kernels() -> dict[str, ModuleType]:
    return example_models.load(["adaln", "rmsnorm", "rope3d"])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with example_models.OneThread():
        yield


class Layer(LocalLayerRepository):  # type: ignore[misc]
    """A layer of a kernel's directory, for the CPU also where torch would choose CUDA."""

    def load(self) -> Any:
        return getattr(get_local_kernel(self._repo_path, backend="cpu").layers, self.layer_name)


def kernelized(model: Any, layers: dict[type, str]) -> int:
    """kernelize's work on modules of these classes, which diffusers does not mark; how many they are.

    A layer has the name of the class that it stands in for.
    """
    mapping, count = {}, 0
    for kind, kernel in layers.items():
        marked = type(kind.__name__, (kind,), {})
        mark(marked, kind.__name__)
        for module in model.modules():
            if type(module) is kind:
                module.__class__ = marked
                count += 1
        directory = example_models.ROOT / "kernels" / kernel
        mapping[kind.__name__] = {"cpu": Layer(directory, layer_name=kind.__name__)}
    with use_kernel_mapping(mapping, inherit_mapping=False):
        kernelize(model, mode=Mode.TRAINING, device="cpu")
    return count


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def made(kind: Any, **config: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return perturb(kind(**config)).eval()


def in_dtype(given: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    return {k: v.to(dtype) if getattr(v, "dtype", None) == F32 else v for k, v in given.items()}


def check(
    model: Any, given: dict[str, Any], dtype: torch.dtype, swap: Callable[[Any], None], ops: dict[str, int]
) -> None:
    """The model's numbers, these ops of kernels in one pass, and its gradients in fp32."""
    given = given | {"return_dict": False}
    with torch.no_grad():
        truth = model(**given)[0]
        model = copy.deepcopy(model).to(dtype)
        theirs = model(**in_dtype(given, dtype))[0]
    grads = gradients(model, given) if dtype == F32 else []
    swap(model)
    with torch.no_grad():
        ours = model(**in_dtype(given, dtype))[0]
    assert_near(ours, theirs, None if dtype == F32 else truth)
    assert ops_of(lambda: model(**in_dtype(given, dtype))).of_kernels() == ops
    if dtype == F32:
        for got, right in zip(gradients(model, given), grads, strict=True):
            limit = 1e-4 * float(right.abs().max()) + 1e-8
            torch.testing.assert_close(got, right, rtol=1e-3, atol=limit)


def gradients(model: Any, given: dict[str, Any]) -> list[torch.Tensor]:
    loss = model(**given)[0].square().mean()
    wanted = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss, wanted, allow_unused=True)
    return [torch.zeros(1) if g is None else g for g in found]


class WanProcessor(transformer_wan.WanAttnProcessor):  # type: ignore[misc]
    """Self-attention of Wan: norms over all heads and the rotation of each head, in one pass."""

    def __init__(self, rope3d: ModuleType) -> None:
        super().__init__()
        self.rope3d = rope3d

    def __call__(self, attn: Any, hidden: Any, _text: Any, _mask: Any, rotary: Any) -> Any:
        query, key, value = (
            linear(hidden).unflatten(2, (attn.heads, -1)) for linear in (attn.to_q, attn.to_k, attn.to_v)
        )
        query, key = self.rope3d.rms_norm_rope3d(
            query,
            key,
            attn.norm_q.weight,
            attn.norm_k.weight,
            *rotary.angles,
            eps=attn.norm_q.eps,
            norm="full",
        )
        attended = dispatch_attention_fn(query, key, value, backend=self._attention_backend)
        return attn.to_out[1](attn.to_out[0](attended.flatten(2, 3)))


@dtypes
@pytest.mark.parametrize("per_token", [False, True], ids=["2.1", "2.2 with a timestep for each token"])
def test_wan(kernels: dict[str, ModuleType], dtype: torch.dtype, per_token: bool) -> None:
    """Blocks by adaln, norms of q and k by rmsnorm and rope3d, coordinates in place of tables."""
    rope3d = kernels["rope3d"]
    model = made(
        diffusers.WanTransformer3DModel, num_attention_heads=2, attention_head_dim=32, in_channels=4,
        out_channels=4, text_dim=16, freq_dim=32, ffn_dim=64, num_layers=2,
    )  # fmt: skip
    tokens = 3 * 2 * 4
    given = {
        "hidden_states": seeded(2, 4, 3, 4, 8),
        "encoder_hidden_states": seeded(2, 6, 16, seed=1),
        "timestep": torch.arange(2 * tokens).view(2, tokens) if per_token else torch.tensor([3, 500]),
    }

    def swap(model: Any) -> None:
        layers = {transformer_wan.WanTransformerBlock: "adaln", torch.nn.RMSNorm: "rmsnorm"}
        assert kernelized(model, layers) == 2 + 2 * 4
        for block in model.blocks:
            block.attn1.set_processor(WanProcessor(rope3d))
        model.rope.forward = MethodType(
            lambda self, x: rope3d.presets.wan(
                self.attention_head_dim,
                *(size // patch for size, patch in zip(x.shape[2:], self.patch_size, strict=True)),
                device=x.device,
            ),
            model.rope,
        )

    of_each_block = {"ada_norm": 1, "gate_residual": 1, "gate_residual_ada_norm": 2, "rms_norm": 2}
    check(model, given, dtype, swap, {k: 2 * n for k, n in of_each_block.items()} | {"rms_norm_rope3d": 2})


@dtypes
def test_hunyuan_video(
    kernels: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """Every modulated norm by adaln, norms of q and k by rmsnorm; the video's tokens turn by coordinates."""
    rope3d = kernels["rope3d"]
    model = made(
        diffusers.HunyuanVideoTransformer3DModel, in_channels=4, out_channels=4, num_attention_heads=2,
        attention_head_dim=16, num_layers=1, num_single_layers=1, num_refiner_layers=1, patch_size=1,
        patch_size_t=1, guidance_embeds=True, text_embed_dim=16, pooled_projection_dim=8,
        rope_axes_dim=(4, 6, 6),
    )  # fmt: skip
    given = {
        "hidden_states": seeded(2, 4, 2, 3, 4),
        "encoder_hidden_states": seeded(2, 6, 16, seed=1),
        "encoder_attention_mask": torch.tensor([[1] * 6, [1, 1, 1, 1, 0, 0]]),
        "pooled_projections": seeded(2, 8, seed=2),
        "timestep": torch.tensor([3, 500]),
        "guidance": torch.tensor([6000.0, 6000.0]),
    }

    def swap(model: Any) -> None:
        assert kernelized(model, NORMS) == 4 + 6  # q and k of both streams, and of the single one
        model.rope.forward = MethodType(
            lambda self, x: rope3d.presets.hunyuan_video(
                *x.shape[2:], rope_dim=self.rope_dim, theta=self.theta, device=x.device
            ),
            model.rope,
        )
        monkeypatch.setattr(
            embeddings,
            "apply_rotary_emb",
            lambda x, rotary, sequence_dim: rope3d.rope3d(x, None, *rotary.angles),
        )

    check(model, given, dtype, swap, {"ada_norm": 4, "rms_norm": 6, "rope3d": 4})


@dtypes
def test_flux(kernels: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """Every modulated norm by adaln, norms of q and k by rmsnorm; tables of diffusers, turned by rope3d."""
    rope3d = kernels["rope3d"]
    model = made(
        diffusers.FluxTransformer2DModel, patch_size=1, in_channels=4, num_layers=1, num_single_layers=1,
        attention_head_dim=16, num_attention_heads=2, joint_attention_dim=16, pooled_projection_dim=8,
        axes_dims_rope=(4, 6, 6),
    )  # fmt: skip
    image = torch.cartesian_prod(torch.zeros(1), torch.arange(3.0), torch.arange(4.0))
    given = {
        "hidden_states": seeded(2, 12, 4),
        "encoder_hidden_states": seeded(2, 6, 16, seed=1),
        "pooled_projections": seeded(2, 8, seed=2),
        "timestep": torch.tensor([0.003, 0.5]),
        "img_ids": image,
        "txt_ids": torch.zeros(6, 3),
    }

    def swap(model: Any) -> None:
        assert kernelized(model, NORMS) == 4 + 6
        monkeypatch.setattr(
            transformer_flux,
            "apply_rotary_emb",
            lambda x, tables, sequence_dim: rope3d.apply_rotary(x, None, *tables, interleaved=True),
        )

    check(model, given, dtype, swap, {"ada_norm": 4, "rms_norm": 6, "apply_rotary": 4})


def test_the_preset_of_flux_is_its_tables(kernels: dict[str, ModuleType]) -> None:
    """Coordinates turn q and k as the tables of FluxPosEmbed do, with ids far apart too."""
    rope3d = kernels["rope3d"]
    ids = torch.cartesian_prod(torch.zeros(1), torch.arange(0.0, 2000.0, 97.0), torch.arange(5.0))
    tables = transformer_flux.FluxPosEmbed(theta=10000, axes_dim=[16, 56, 56])(ids)
    q = seeded(1, len(ids), 2, 128)
    rotary = rope3d.presets.flux(ids)
    turned = rope3d.rope3d(q, None, *rotary.angles)
    # An angle of up to 2,000 radians is rounded to fp32, and that is 6e-5 of a radian.
    torch.testing.assert_close(
        turned, rope3d.apply_rotary(q, None, *tables, interleaved=True), rtol=0, atol=5e-4
    )
