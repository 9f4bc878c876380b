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
from diffusers.hooks import apply_group_offloading
from example_models import assert_near
from examples.ltx_video.inject import KERNELS, inject
from ltx_models import ALL, LAYERS, TOKENS, assert_as_it_was, output, runs_kernels, tiny


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


def test_one_hook_costs_one_kernel(kernels: dict[str, ModuleType]) -> None:
    """What it returns is used; all else runs on."""
    model = tiny()
    inject(model, kernels)
    whole = output(model)
    handle = model.transformer_blocks[0].attn1.norm_q.register_forward_hook(
        lambda *_: torch.zeros(2, TOKENS, 64)
    )
    assert runs_kernels(model) == ALL | {"rms_norm_rope3d": LAYERS - 1}
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
