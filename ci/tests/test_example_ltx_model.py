# SPDX-License-Identifier: Apache-2.0
"""An LTX-Video with kernels in it is the model it was: copies, state, processors, and back again."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from types import MethodType, ModuleType
from typing import Any

import pytest
import torch

pytest.importorskip("diffusers")

import example_models
from diffusers import LTXConditionPipeline, LTXImageToVideoPipeline
from diffusers.models.transformers.transformer_ltx import LTXVideoAttnProcessor
from example_models import assert_near, ops_of
from examples.ltx_video.inject import KERNELS, inject
from examples.ltx_video.model import random_pipeline, random_transformer
from examples.rebinding import Injection
from ltx_models import ALL, LAYERS, assert_as_it_was, inputs, output, runs_kernels, tiny


@pytest.fixture(scope="module")
def kernels() -> dict[str, ModuleType]:
    return example_models.load(KERNELS)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with example_models.OneThread():
        yield


def test_undo_gives_everything_back(kernels: dict[str, ModuleType]) -> None:
    model = tiny()
    theirs, before = output(model), [(type(m), dict(m.__dict__)) for m in model.modules()]
    processors = model.attn_processors
    injection = inject(model, kernels)
    assert not torch.equal(output(model), theirs)  # another order of summation, somewhere
    injection.undo()
    assert [(type(m), dict(m.__dict__)) for m in model.modules()] == before
    assert all(model.attn_processors[name] is each for name, each in processors.items())
    assert_as_it_was(model, theirs)
    injection.undo()
    assert_as_it_was(model, theirs)


def test_a_second_injection_changes_nothing(kernels: dict[str, ModuleType]) -> None:
    model = tiny()
    theirs, first = output(model), inject(model, kernels)
    bound = [m.__dict__.get("forward") for m in model.modules()]
    second = inject(model, kernels)
    assert (second.replaced, second.left) == (first.replaced, first.left)
    assert all(m.__dict__.get("forward") is f for m, f in zip(model.modules(), bound, strict=True))
    second.undo()
    assert_as_it_was(model, theirs)


def test_kernels_may_come_one_after_the_other(kernels: dict[str, ModuleType]) -> None:
    """A norm that rmsnorm got first is taken in by the kernel that comes later."""
    model = tiny()
    theirs = output(model)
    done = [inject(model, {name: kernels[name] for name in names}) for names in (["rmsnorm"], KERNELS)]
    assert done[-1].replaced == ALL | {"rope": 1}
    assert runs_kernels(model) == ALL
    for injection in done:
        injection.undo()
    assert_as_it_was(model, theirs)


def test_state_and_looks(kernels: dict[str, ModuleType]) -> None:
    model, other = tiny(), tiny(seed=5)
    looks, keys = repr(model), list(model.state_dict())
    inject(model, kernels)
    assert repr(model) == looks
    assert list(model.state_dict()) == keys
    model.load_state_dict(other.state_dict())
    assert_near(output(model), output(other))
    saved = io.BytesIO()
    torch.save(model.state_dict(), saved)
    saved.seek(0)
    other.load_state_dict(torch.load(saved))
    assert_near(output(model), output(other))


def test_a_copy_has_the_kernels_and_is_its_own(kernels: dict[str, ModuleType]) -> None:
    model = tiny()
    theirs, injection = output(model), inject(model, kernels)
    copied = copy.deepcopy(model)
    for module in copied.modules():
        if isinstance(bound := module.__dict__.get("forward"), MethodType):
            assert bound.__self__ is module
    assert runs_kernels(copied) == ALL
    with torch.no_grad():
        copied.proj_in.weight.zero_()
    assert not torch.equal(output(copied), output(model))
    injection.undo()
    assert_as_it_was(model, theirs)
    assert runs_kernels(copied) == ALL
    inject(copied, kernels).undo()
    assert runs_kernels(copied) == {}


def test_what_is_pickled_is_the_plain_model(kernels: dict[str, ModuleType]) -> None:
    """Kernels are of this process; the model is read where there are none."""
    model = tiny()
    theirs = output(model)
    inject(model, kernels)
    read = pickle.loads(pickle.dumps(model))
    assert_as_it_was(read, theirs)
    assert inject(read, kernels).replaced == ALL | {"rope": 1}
    assert runs_kernels(read) == ALL


def test_to_another_dtype(kernels: dict[str, ModuleType]) -> None:
    model = tiny()
    inject(model, kernels)
    model.to(torch.float64)
    wide = {k: v.double() if k.endswith("hidden_states") else v for k, v in inputs().items()}
    with torch.no_grad():
        assert_near(model(**wide)[0].float(), output(tiny()))
    assert ops_of(lambda: model(**wide)).of_kernels() == ALL


class Loud(LTXVideoAttnProcessor):  # type: ignore[misc]
    """A processor of somebody else's, which knows tables only."""

    calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        type(self).calls += 1
        out: torch.Tensor = super().__call__(*args, **kwargs)
        return out


def test_a_processor_of_another_is_left_alone(kernels: dict[str, ModuleType]) -> None:
    """Said, and it gets tables, as the rotary embedding of the model stays diffusers'."""
    model, theirs = tiny(), output(tiny())
    processor = Loud()
    model.transformer_blocks[0].attn1.set_processor(processor)
    injection = inject(model, kernels)
    assert injection.left == {"LTXAttention with a Loud": 1}
    assert str(injection).endswith("; left to torch: 1 LTXAttention with a Loud")
    assert "rope" not in injection.replaced
    assert injection.replaced["rms_norm_rope3d"] == LAYERS - 1
    calls = Loud.calls
    assert_near(output(model), theirs)
    assert Loud.calls == calls + 1
    assert model.transformer_blocks[0].attn1.processor is processor


def test_a_processor_set_later_is_used(kernels: dict[str, ModuleType]) -> None:
    model, theirs = tiny(), output(tiny())
    inject(model, kernels)
    model.set_attn_processor(Loud())
    calls = Loud.calls
    assert_near(output(model), theirs)
    assert Loud.calls == calls + 2 * LAYERS


def test_another_attention_backend_is_used(
    kernels: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    from examples.ltx_video import forwards

    real = forwards.dispatch_attention_fn
    monkeypatch.setattr(
        forwards, "dispatch_attention_fn", lambda *a, **kw: asked.append(kw["backend"]) or real(*a, **kw)
    )
    model = tiny()
    inject(model, kernels)
    model.set_attention_backend("_native_math")
    assert_near(output(model), output(tiny()))
    assert [each.value for each in asked] == ["_native_math"] * 2 * LAYERS


def test_a_forward_of_another_is_left_alone(kernels: dict[str, ModuleType]) -> None:
    model = tiny()
    block = model.transformer_blocks[1]
    block.forward = lambda hidden_states, **_: hidden_states
    theirs = output(model)
    injection = inject(model, kernels)
    assert injection.left == {"LTXVideoTransformerBlock with another forward": 1}
    assert_near(output(model), theirs)
    injection.undo()
    assert torch.equal(output(model), theirs)


def another_norm(model: Any) -> str:
    model.transformer_blocks[0].norm2 = torch.nn.LayerNorm(64)
    return "LTXVideoTransformerBlock with a LayerNorm"


def another_last_norm(model: Any) -> str:
    model.norm_out = torch.nn.Identity()
    return "LTXVideoTransformer3DModel with a Identity"


def norms_of_two_kinds(model: Any) -> str:
    model.transformer_blocks[1].attn1.norm_k.eps = 0.1
    return "LTXAttention with an eps for each norm"


@pytest.mark.parametrize("change", [another_norm, another_last_norm, norms_of_two_kinds])
def test_norms_that_are_not_ltx_videos(kernels: dict[str, ModuleType], change: Callable[[Any], str]) -> None:
    """What has been changed so is left alone, and said."""
    model = tiny()
    changed = change(model)
    theirs = output(model)
    assert inject(model, kernels).left == {changed: 1}
    assert_near(output(model), theirs)


@pytest.mark.parametrize("kind", [None, LTXConditionPipeline, LTXImageToVideoPipeline])
def test_pipelines(kernels: dict[str, ModuleType], kind: Any) -> None:
    pipeline = random_pipeline("tiny")
    if kind is not None:
        pipeline = kind(**pipeline.components)
    injection = inject(pipeline, kernels)
    assert isinstance(injection, Injection)
    assert injection.replaced == ALL | {"rope": 1}
    assert "forward" in pipeline.transformer.__dict__


def test_the_model_at_full_size(kernels: dict[str, ModuleType]) -> None:
    """As examples/ltx_video/README.md has it; nothing is allocated, and nothing runs."""
    said = str(inject(random_transformer("full", device="meta"), kernels))
    assert said.startswith("calls in one pass: 29 ada_norm, 56 gate_residual, 28 gate_residual_ada_norm, ")
    assert said.endswith("56 rms_norm, 28 rms_norm_rope3d, 1 rope")


def test_a_wrapped_transformer(kernels: dict[str, ModuleType]) -> None:
    model = torch.nn.Sequential(tiny())
    assert inject(model, kernels).replaced == ALL | {"rope": 1}


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        (torch.nn.Linear(2, 2), "model is a Linear, wanted a pipeline of LTX-Video or its LTXVideoTransf"),
        ("Lightricks/LTX-Video", "model is a str, wanted"),
    ],
    ids=["module", "name"],
)
def test_what_is_no_ltx_video_is_refused(kernels: dict[str, ModuleType], model: Any, wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        inject(model, kernels)


@pytest.mark.parametrize("names", [(), ("geglu",)], ids=["none", "of no use"])
def test_nothing_to_replace_is_an_error(kernels: dict[str, ModuleType], names: tuple[str, ...]) -> None:
    """LTX-Video's feed-forward has no gate, so geglu has nothing to do there."""
    given = dict.fromkeys(names, kernels["adaln"])
    with pytest.raises(ValueError, match=rf"kernels given \({', '.join(names) or 'none'}\), wanted some of"):
        inject(tiny(), given)
