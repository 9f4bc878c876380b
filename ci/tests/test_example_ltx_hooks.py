# SPDX-License-Identifier: Apache-2.0
"""Hooks on an LTX-Video with kernels in it: torch's, diffusers' and accelerate's, before it and after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

pytest.importorskip("diffusers")

import example_models
from diffusers import FirstBlockCacheConfig
from diffusers.hooks import apply_group_offloading
from example_models import assert_near, ops_of
from examples.ltx_video.inject import KERNELS, inject
from ltx_models import ALL, LAYERS, TOKENS, assert_as_it_was, inputs, output, runs_kernels, tiny


@pytest.fixture(scope="module")
def kernels() -> dict[str, ModuleType]:
    return example_models.load(KERNELS)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with example_models.OneThread():
        yield


def every_call(model: Any, register: str) -> tuple[list[str], torch.Tensor]:
    """The names of the modules whose hooks fire in one pass, in order, and the output."""
    fired: list[str] = []
    handles = [
        getattr(module, register)(lambda *_, name=name: fired.append(name))
        for name, module in model.named_modules()
    ]
    try:
        return fired, output(model)
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_every_hook_fires_as_before(kernels: dict[str, ModuleType], register: str) -> None:
    """Those of norms that a kernel takes in, too; and when they are gone, the kernel is back."""
    model = tiny()
    theirs = every_call(model, register)
    injection = inject(model, kernels)
    ours = every_call(model, register)
    assert ours[0] == theirs[0]
    assert {"rope", "norm_out", "transformer_blocks.1.norm2", "transformer_blocks.0.attn1.norm_k"} < {
        *ours[0]
    }
    assert_near(ours[1], theirs[1])
    assert runs_kernels(model) == ALL
    injection.undo()
    assert every_call(model, register)[0] == theirs[0]


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("transformer_blocks.0.norm1", {"ada_norm": 1, "gate_residual": 2, "gate_residual_ada_norm": 1}),
        ("transformer_blocks.0.norm2", {"ada_norm": 1, "gate_residual": 2, "gate_residual_ada_norm": 1}),
        ("transformer_blocks.0.attn1.norm_q", {"rms_norm_rope3d": 1}),
        ("transformer_blocks.0.attn1.norm_k", {"rms_norm_rope3d": 1}),
        ("norm_out", {"ada_norm": 1}),
    ],
)
def test_a_hook_costs_the_kernel_that_it_is_in(
    kernels: dict[str, ModuleType], name: str, lost: dict[str, int]
) -> None:
    """What it returns is used; all else runs on."""
    model = tiny()
    inject(model, kernels)
    whole, calls = output(model), []
    handle = model.get_submodule(name).register_forward_hook(lambda *_: calls.append(name))
    assert_near(output(model), whole)
    assert calls == [name]
    assert runs_kernels(model) == {op: n - lost.get(op, 0) for op, n in ALL.items()}
    handle.remove()
    handle = model.get_submodule(name).register_forward_hook(
        lambda _module, _args, out: torch.zeros_like(out)
    )
    assert not torch.allclose(output(model), whole)
    handle.remove()
    assert torch.equal(output(model), whole)


def test_a_hook_on_the_rotary_embedding_sees_tables(kernels: dict[str, ModuleType]) -> None:
    model, seen = tiny(), []
    inject(model, kernels)
    whole = output(model)
    model.rope.register_forward_hook(lambda _module, _args, tables: seen.append([t.shape for t in tables]))
    assert_near(output(model), whole)
    assert seen == [[(2, TOKENS, 64), (2, TOKENS, 64)]]
    assert runs_kernels(model) == ALL


def offload_leaves(model: Any) -> None:
    cpu = torch.device("cpu")
    apply_group_offloading(model, onload_device=cpu, offload_device=cpu, offload_type="leaf_level")


def offload_blocks(model: Any) -> None:
    cpu = torch.device("cpu")
    apply_group_offloading(
        model, onload_device=cpu, offload_device=cpu, offload_type="block_level", num_blocks_per_group=1
    )


def offload_by_accelerate(model: Any) -> None:
    """As enable_sequential_cpu_offload does it: weights are elsewhere until a module is called."""
    pytest.importorskip("accelerate").cpu_offload(model, execution_device=torch.device("cpu"))


def store_in_eight_bits(model: Any) -> None:
    """Of linear maps; each is cast where it is called."""
    model.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=torch.float32)


HOOKS = [offload_leaves, offload_blocks, offload_by_accelerate, store_in_eight_bits]


@pytest.mark.parametrize("first", ["hooks", "kernels"])
@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_of_libraries(kernels: dict[str, ModuleType], hook: Callable[[Any], None], first: str) -> None:
    """They are respected in whichever order they and the kernels come, and stay when the kernels go."""
    plain, model = tiny(), tiny()
    hook(plain)
    theirs = output(plain)
    if first == "hooks":
        hook(model)
        injection = inject(model, kernels)
    else:
        injection = inject(model, kernels)
        hook(model)
    assert_near(output(model), theirs)
    assert runs_kernels(model)["gate_residual"] == 2 * LAYERS
    assert inject(model, kernels).replaced == injection.replaced == ALL | {"rope": 1}
    injection.undo()
    assert_as_it_was(model, theirs)


@pytest.mark.parametrize("first", ["cache", "kernels"])
def test_a_cache_that_skips_blocks(kernels: dict[str, ModuleType], first: str) -> None:
    """diffusers' hook for it calls the forward that it found, or does not; it knows blocks by their class."""
    config = FirstBlockCacheConfig(threshold=0.5)

    def steps(model: Any) -> torch.Tensor:
        with torch.no_grad(), model.cache_context("steps"):
            return torch.stack([model(**inputs(timestep=torch.tensor([t, t])))[0] for t in (100, 99, 98)])

    plain, model = tiny(), tiny()
    plain.enable_cache(config)
    theirs = steps(plain)
    if first == "cache":
        model.enable_cache(config)
    injection = inject(model, kernels)
    if first == "kernels":
        model.enable_cache(config)
    assert_near(steps(model), theirs)
    calls = ops_of(lambda: steps(model)).of_kernels()
    assert 0 < calls["rms_norm_rope3d"] < 3 * LAYERS
    injection.undo()
    assert ops_of(lambda: steps(model)).of_kernels() == {}
