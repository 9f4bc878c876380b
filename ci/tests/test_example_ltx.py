# SPDX-License-Identifier: Apache-2.0
"""LTX-Video with the kernels in it gives the numbers of LTX-Video, and they run as often as is said."""

from __future__ import annotations

import copy
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

pytest.importorskip("diffusers")

import example_models
from example_models import assert_near, ops_of
from examples.ltx_video.inject import KERNELS, inject
from ltx_models import ADALN, ALL, LAYERS, ROPE3D, TEXT, TOKENS, inputs, tiny

BF16, F32 = torch.bfloat16, torch.float32


@pytest.fixture(scope="module")
def kernels() -> dict[str, ModuleType]:
    return example_models.load(KERNELS)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with example_models.OneThread():
        yield


def wide(given: dict[str, Any]) -> dict[str, Any]:
    half = (torch.bfloat16, torch.float16)
    return {k: v.float() if getattr(v, "dtype", None) in half else v for k, v in given.items()}


def coordinates() -> torch.Tensor:
    """``(2, 3, tokens)``, as the pipelines with conditions give them: not on a grid."""
    return 40 * torch.rand(2, 3, TOKENS, generator=torch.Generator().manual_seed(2))


REQUESTS = {
    "text": {},
    "a timestep for each token": {"timestep": torch.arange(2 * TOKENS).view(2, TOKENS) * 10},
    "coordinates": {"video_coords": coordinates(), "num_frames": None, "height": None, "width": None},
    "no interpolation": {"rope_interpolation_scale": None},
    "no mask": {"encoder_attention_mask": None},
    "a mask that is a bias": {"encoder_attention_mask": -3 * torch.rand(2, 1, TEXT)},
    "arguments of attention": {"attention_kwargs": {}},
    "an object": {"return_dict": True},
}


@pytest.mark.parametrize("dtype", [F32, BF16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_same_numbers(kernels: dict[str, ModuleType], dtype: torch.dtype, request_: dict[str, Any]) -> None:
    model, given = tiny(dtype), inputs(dtype, **request_)
    if given["encoder_attention_mask"] is not None and given["encoder_attention_mask"].is_floating_point():
        given["encoder_attention_mask"] = given["encoder_attention_mask"].to(dtype)
    with torch.no_grad():
        truth = copy.deepcopy(model).float()(**wide(given))[0] if dtype == BF16 else None
        theirs = model(**given)
        inject(model, kernels)
        ours = model(**given)
    assert type(ours) is type(theirs)
    assert_near(ours[0], theirs[0], truth)


@pytest.mark.parametrize("config", [
    {"norm_elementwise_affine": True, "norm_eps": 1e-3},
    {"attention_head_dim": 48},  # 96 lanes: 6 divides them, and none stands still
    {"attention_bias": False, "attention_out_bias": False},
], ids=["weights and eps", "no lane stands still", "no bias"])  # fmt: skip
def test_other_configurations(kernels: dict[str, ModuleType], config: dict[str, Any]) -> None:
    if "attention_head_dim" in config:
        config = config | {"cross_attention_dim": 2 * config["attention_head_dim"]}
    model = tiny(**config)
    with torch.no_grad():
        theirs = model(**inputs())[0]
        inject(model, kernels)
        assert_near(model(**inputs())[0], theirs)


def test_each_norm_has_its_own_eps(kernels: dict[str, ModuleType]) -> None:
    """Set far from what is usual, where inputs are small enough for it to count."""
    model = tiny()
    norms = {name: module for name, module in model.named_modules() if "norm" in name}
    assert len(norms) == 6 * LAYERS + 1
    for number, name in enumerate(norms):
        norms[name].eps = 0.1 * (1 + number)
        if name.endswith("norm_k"):  # as q's, which diffusers makes so
            norms[name].eps = norms[name.replace("norm_k", "norm_q")].eps
    with torch.no_grad():
        theirs = model(**inputs())[0]
        inject(model, kernels)
        assert_near(model(**inputs())[0], theirs)


def test_what_is_said_is_what_runs(kernels: dict[str, ModuleType]) -> None:
    model = tiny()
    assert ops_of(lambda: model(**inputs())).of_kernels() == {}
    injection = inject(model, kernels)
    assert ops_of(lambda: model(**inputs())).of_kernels() == ALL
    assert injection.replaced == ALL | {"rope": 1}
    assert injection.left == {}
    said = ", ".join(f"{count} {name}" for name, count in injection.replaced.items())
    assert str(injection) == f"calls in one pass: {said}"


def test_a_block_is_matrices_attention_gelu_and_kernels(kernels: dict[str, ModuleType]) -> None:
    """Of what is as large as the hidden states, views left out; coordinates and the mask are in no block."""
    large, views = 2 * TOKENS * 64, ("permute", "squeeze", "t", "unbind", "unsqueeze", "view")
    counts = []
    for layers in (1, 2):
        model = tiny(num_layers=layers)
        inject(model, kernels)
        seen = ops_of(lambda model=model: model(**inputs())).shapes
        names = [name for name, shapes in seen if any(math.prod(shape) >= large for shape in shapes)]
        counts.append(Counter(name.removesuffix("_for_cpu") for name in names))
    of_a_block = counts[1] - counts[0]
    for name in views:
        del of_a_block[f"aten::{name}"]
    assert of_a_block == {
        "aten::addmm": 10,
        "aten::_scaled_dot_product_flash_attention": 2,
        "aten::gelu": 1,
        "ada_norm": 1,
        "gate_residual": 2,
        "gate_residual_ada_norm": 1,
        "rms_norm": 1,  # of q; the keys of a text are few
        "rms_norm_rope3d": 1,
    }


def test_only_self_attention_is_turned(kernels: dict[str, ModuleType]) -> None:
    """q and k of the video's tokens; the norms of the other attention see the text as well."""
    model = tiny()
    inject(model, kernels)
    seen = ops_of(lambda: model(**inputs())).shapes
    turned = [shapes[:2] for name, shapes in seen if name == "rms_norm_rope3d"]
    assert turned == [[(2, TOKENS, 1, 64), (2, TOKENS, 1, 64)]] * LAYERS
    assert [shapes[0] for name, shapes in seen if name == "rms_norm"] == [
        (2, TOKENS, 64),
        (2, TEXT, 64),
    ] * LAYERS


SUBSETS = [names for count in (1, 2) for names in itertools.combinations(KERNELS, count)]


@pytest.mark.parametrize("names", SUBSETS, ids="+".join)
def test_a_kernel_that_is_missing_leaves_its_work_to_torch(
    kernels: dict[str, ModuleType], names: tuple[str, ...]
) -> None:
    model = tiny()
    with torch.no_grad():
        theirs = model(**inputs())[0]
        injection = inject(model, {name: kernels[name] for name in names})
        assert_near(model(**inputs())[0], theirs)
    # Norms that no other kernel takes in are rmsnorm's: two in each block, and q's and k's of self-attention.
    norms = 2 * LAYERS * (1 + ("adaln" not in names) + ("rope3d" not in names))
    wanted: dict[str, int] = {}
    wanted |= ADALN if "adaln" in names else {}
    wanted |= {"rms_norm": norms} if "rmsnorm" in names else {}
    wanted |= ROPE3D | {"rope": 1} if "rope3d" in names else {}
    assert injection.replaced == wanted
    assert ops_of(lambda: model(**inputs())).of_kernels() == {k: n for k, n in wanted.items() if k != "rope"}


@pytest.mark.parametrize("dtype", [F32, BF16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("checkpoints", [False, True], ids=["", "checkpoints"])
def test_training(kernels: dict[str, ModuleType], dtype: torch.dtype, checkpoints: bool) -> None:
    """Every parameter gets the gradient that it gets from the model alone, with checkpoints too."""
    truth = gradients(tiny(F32), F32)
    theirs = gradients(tiny(dtype), dtype)
    model = tiny(dtype)
    inject(model, kernels)
    blocks: list[Any] = []
    if checkpoints:
        model.enable_gradient_checkpointing()
        real = model._gradient_checkpointing_func
        model._gradient_checkpointing_func = lambda block, *given: blocks.append(block) or real(block, *given)
    ours = gradients(model, dtype)
    assert blocks == (list(model.transformer_blocks) if checkpoints else [])
    assert ours.keys() == theirs.keys()
    for name, right in truth.items():
        if dtype == F32:
            limit = 1e-4 * float(right.abs().max()) + 1e-8
            torch.testing.assert_close(ours[name], right, rtol=1e-3, atol=limit, msg=name)
            continue
        error, allowed = (float((g[name].float() - right).norm()) for g in (ours, theirs))
        # Two runs of the model in bf16 with other roundings differ by as much as either is off.
        assert error <= 1.5 * allowed + 0.005 * float(right.norm()), name


def gradients(model: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    model.train()(**inputs(dtype))[0].float().square().mean().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_compiles_as_one_graph(kernels: dict[str, ModuleType], mode: str) -> None:
    """The whole transformer, forward and backward: kernels are in the graph, and the numbers are eager's."""
    torch.compiler.reset()
    found: Counter[str] = Counter()

    def backend(graph: torch.fx.GraphModule, given: Any) -> Any:
        ops = [node.target for node in graph.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
        found.update(op._schema.name.partition("::")[2].removesuffix("_train") for op in ops)
        return torch._dynamo.lookup_backend("aot_eager")(graph, given)

    model = tiny()
    inject(model, kernels)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    if mode == "eval":
        with torch.no_grad():
            torch.testing.assert_close(compiled(**inputs())[0], model(**inputs())[0])
    else:
        expected = gradients(model, F32)
        model.zero_grad()
        got = gradients(compiled, F32)
        for name, right in expected.items():
            torch.testing.assert_close(got[f"_orig_mod.{name}"], right, rtol=1e-4, atol=1e-7, msg=name)
    assert found == ALL


def test_each_block_compiles_alone(kernels: dict[str, ModuleType]) -> None:
    """As diffusers' compile_repeated_blocks does it, which finds blocks by the name of their class."""
    torch.compiler.reset()
    model = tiny()
    with torch.no_grad():
        theirs = model(**inputs())[0]
        inject(model, kernels)
        model.compile_repeated_blocks(fullgraph=True, backend="aot_eager")
        assert_near(model(**inputs())[0], theirs)


def test_injection_after_compilation_is_noticed(kernels: dict[str, ModuleType]) -> None:
    torch.compiler.reset()
    graphs = []

    def backend(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        graphs.append("rms_norm_rope3d" in graph.code)
        return graph.forward

    model = tiny()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    with torch.no_grad():
        plain = compiled(**inputs())[0]
        injection = inject(model, kernels)
        compiled(**inputs())
        assert graphs == [False, True]
        injection.undo()
        torch.testing.assert_close(compiled(**inputs())[0], plain, rtol=0, atol=0)


def test_under_autocast(kernels: dict[str, ModuleType]) -> None:
    """Parameters of fp32, matrices multiplied in bf16: within bf16's own error of fp32."""
    model = tiny()
    with torch.no_grad():
        truth = model(**inputs())[0]
        with torch.autocast("cpu", dtype=BF16):
            theirs = model(**inputs())[0]
            inject(model, kernels)
            ours = model(**inputs())[0]
    assert_near(ours.float(), theirs.float(), truth)
