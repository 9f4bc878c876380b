# SPDX-License-Identifier: Apache-2.0
"""Layers in a Qwen3 by transformers' and kernels' own ways: from directories, and from a Hub of one's own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any

import pytest
import torch
from hub_process import RunningHub
from huggingface_hub import CommitOperationAdd, HfApi
from model_checks import CLOSE, ROOT, local_kernels, logits, one_thread, ops
from transformers.models.qwen3 import modeling_qwen3

# model_checks has made the examples importable
# isort: split
from examples.qwen3_8b.inject import KERNELS, inject
from examples.qwen3_8b.layers import kernel_config, local_builds, swap_layers
from examples.qwen3_8b.model import random_model, random_tokens

F32 = torch.float32
LAYERS = 4
SWAPPED = {"rms_norm": 4 * LAYERS + 1, "apply_rotary": LAYERS}


@pytest.fixture(scope="module")
def kernels() -> Iterator[dict[str, ModuleType]]:
    with local_kernels(KERNELS) as found:
        yield found


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """The function is of the whole process, and is put back."""
    function = modeling_qwen3.apply_rotary_pos_emb
    with one_thread():
        yield
    function.forward = MethodType(type(function).forward, function)


@pytest.fixture
def model() -> Any:
    return random_model("tiny", "cpu", F32)


@pytest.fixture
def ids(model: Any) -> torch.Tensor:
    return random_tokens(model, 2, 19)


def test_kernelized(kernels: dict[str, ModuleType], model: Any, ids: torch.Tensor) -> None:
    plain = logits(model, ids)
    assert swap_layers(model) == SWAPPED["rms_norm"]
    assert ops(model, ids) == SWAPPED
    torch.testing.assert_close(logits(model, ids), plain, **CLOSE)


def test_injected_after_kernelized(kernels: dict[str, ModuleType], model: Any, ids: torch.Tensor) -> None:
    """kernelize has bound the very forward that inject would, so all fuses."""
    swap_layers(model)
    plain = logits(model, ids)
    injection = inject(model, kernels)
    assert injection.left == {}
    assert injection.replaced == ops(model, ids)
    torch.testing.assert_close(logits(model, ids), plain, **CLOSE)


@pytest.mark.usefixtures("kernels")
def test_local_builds_are_those_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert local_builds() == {name: ROOT / "kernels" / name for name in KERNELS}
    assert local_builds("acme") == {}
    monkeypatch.setenv("LOCAL_KERNELS", "acme/rmsnorm=here:kernelworks/rope3d=/there")
    assert local_builds("acme") == {"rmsnorm": Path.cwd() / "here"}
    assert local_builds() == {"rope3d": Path("/there")}
    monkeypatch.delenv("LOCAL_KERNELS")
    assert local_builds() == {}


def test_transformers_takes_the_configuration(
    kernels: dict[str, ModuleType], model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows no kernels for the CPU: here it judges, and makes what kernelize would get on a GPU."""
    monkeypatch.setattr("transformers.utils.kernel_config.infer_device", lambda _: "cuda")
    for local in (True, False):
        if not local:
            monkeypatch.delenv("LOCAL_KERNELS")
        config = kernel_config()
        assert config.use_local_kernel is local
        config.sanitize_kernel_mapping(model)
        config.create_compatible_mapping(model)
        assert set(config.kernel_mapping) == {"RMSNorm", "rotary_pos_emb"}
        for name, layer in (("RMSNorm", "LlamaRMSNorm"), ("rotary_pos_emb", "RotaryPosEmb")):
            (repository,) = config.kernel_mapping[name]["cuda"].values()
            assert repository.layer_name == layer
            if local:
                assert repository.load().__name__ == layer


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_use_kernels_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    named = ":".join(f"kernelworks/{name}={ROOT / 'kernels' / name}" for name in KERNELS)
    monkeypatch.setenv("LOCAL_KERNELS", named)
    model = random_model("tiny", "cuda", torch.bfloat16)
    ids = random_tokens(model, 2, 19)
    plain = logits(model, ids)
    model.set_use_kernels(True, kernel_config())
    assert ops(model, ids) == SWAPPED
    assert float((logits(model, ids) - plain).abs().max()) < 0.02


@pytest.mark.usefixtures("kernels")
def test_programs_in_the_readme_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    text = (ROOT / "examples/qwen3_8b/README.md").read_text()
    programs = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(programs) == 2
    for program in programs:
        exec(compile(program, "README.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "calls in one pass: 8 add_rms_norm, 1 rms_norm, 4 rms_norm_rope3d"
    assert lines[-1] == str(SWAPPED["rms_norm"])


def upload(hub: RunningHub, name: str) -> None:
    """The build for the CPU, as any client would put it on a Hub."""
    repo_id = f"kernelworks/{name}"
    api = HfApi(endpoint=hub.endpoint, token=False)
    api.create_repo(repo_id, repo_type="kernel")
    api.create_branch(repo_id, branch="v1", repo_type="kernel")
    folder = ROOT / "kernels" / name
    files = [
        path
        for variant in (folder / "build").glob("*-cpu-*")
        for path in variant.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    operations = [CommitOperationAdd(str(path.relative_to(folder)), path) for path in files]
    api.create_commit(repo_id, operations, commit_message="build", repo_type="kernel", revision="v1")


@pytest.mark.usefixtures("kernels")
def test_from_a_hub(hub: RunningHub, tmp_path: Path) -> None:
    """From an empty cache, by get_kernel and by kernelize; LOCAL_KERNELS is not set there."""
    for name in KERNELS:
        upload(hub, name)
    words = ("--random-weights", "--size", "tiny", "--device", "cpu", "--layers-only", "--compare")
    done = subprocess.run(
        [sys.executable, "-m", "examples.qwen3_8b.generate", *words, "--new-tokens", "4"],
        cwd=ROOT,
        env=hub.environment(tmp_path / "home", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES=""),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    _, said, _, agreed = done.stdout.splitlines()
    assert said == "layers swapped: 17, and the function that rotates"
    assert agreed.startswith("same token at 4 of 4 positions")
    asked = [each["path"] for each in hub.requests()]
    assert all(any(name in path and path.endswith(".so") for path in asked) for name in KERNELS)
