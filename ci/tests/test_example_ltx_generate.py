# SPDX-License-Identifier: Apache-2.0
"""Text to video as a program: what it writes, what it refuses, and that random weights are LTX-Video's."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("diffusers")

import example_models
import numpy as np
from diffusers.models.transformers.transformer_ltx import LTXVideoTransformer3DModel
from examples.arguments import Refusal
from examples.ltx_video import video
from examples.ltx_video.generate import main
from examples.ltx_video.inject import KERNELS
from examples.ltx_video.model import (
    TRANSFORMERS,
    latent_sizes,
    prompt_embeds,
    random_pipeline,
    random_transformer,
    transformer_inputs,
)
from examples.ltx_video.settings import parse
from PIL import Image

TINY = ["--random-weights", "--size", "tiny"]


def generate(*words: str) -> subprocess.CompletedProcess[str]:
    """The program, in a process of its own, without a network."""
    switches = {
        "LOCAL_KERNELS": example_models.local_kernels(KERNELS),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        [sys.executable, "-m", "examples.ltx_video.generate", *words],
        cwd=example_models.ROOT,
        env={**os.environ, **switches},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_video_without_kernels_and_with_them(tmp_path: Path) -> None:
    output = tmp_path / "fox.gif"
    done = generate(*TINY, "--compare", "--steps", "3", "--output", str(output))
    assert done.returncode == 0, done.stderr
    said = "calls in one pass: 3 ada_norm, 4 gate_residual, 2 gate_residual_ada_norm, 4 rms_norm, "
    assert f"\n{said}2 rms_norm_rope3d, 1 rope\n" in done.stdout
    assert f"written: {output}, {tmp_path / 'fox.json'}\n" in done.stdout
    assert "Warning" not in done.stderr
    with Image.open(output) as image:
        assert (image.size, image.n_frames, image.is_animated) == ((96, 64), 17, True)
    record = json.loads((tmp_path / "fox.json").read_text())
    assert record["weights"] == "random, tiny"
    assert (record["seed"], record["steps"], record["dtype"], record["device"]) == (0, 3, "float32", "cpu")
    assert record["versions"]["torch"] == torch.__version__
    assert set(record["kernels"]) == set(KERNELS)
    assert all("-cpu-" in build for build in record["kernels"].values())
    assert record["with_kernels"]["replaced"]["rms_norm_rope3d"] == 2
    for run in ("without_kernels", "with_kernels"):
        times = record[run]
        assert len(times["seconds_of_steps"]) == 2  # the first warms up
        assert 0 < times["seconds_per_step"] < times["seconds"]
    # What fp32 rounds otherwise is far less than a level of 8 bits, and moves one now and then.
    assert len(record["differences"]) == 17
    assert all(frame["largest"] <= 1 for frame in record["differences"])
    assert all(frame["psnr"] is None or frame["psnr"] > 60 for frame in record["differences"])


def test_a_kernel_that_is_missing_is_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("LOCAL_KERNELS", example_models.local_kernels(["adaln", "rmsnorm"]))
    with pytest.warns(UserWarning, match="is not used, torch is in its place") as said:
        assert main([*TINY, "--steps", "2", "--output", str(tmp_path / "out.gif")]) == 0
    (text,) = [str(each.message) for each in said if "is not used" in str(each.message)]
    assert text.startswith("kernelworks/rope3d is not used, torch is in its place: ")
    assert "rope3d" not in capfd.readouterr().out
    assert set(json.loads((tmp_path / "out.json").read_text())["kernels"]) == {"adaln", "rmsnorm"}


def test_no_kernel_at_all_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nobody asked for what torch does alone; with --no-kernels one does."""
    output = str(tmp_path / "out.gif")
    empty = ":".join(f"kernelworks/{name}={tmp_path}" for name in KERNELS)
    monkeypatch.setenv("LOCAL_KERNELS", empty)
    with pytest.warns(UserWarning, match="is not used"):
        assert main([*TINY, "--output", output]) == 2
    assert capfd.readouterr().err.splitlines()[-1] == (
        "error: no kernel can be loaded; let LOCAL_KERNELS name builds, or use --no-kernels"
    )
    assert not Path(output).exists()
    assert main([*TINY, "--steps", "2", "--no-kernels", "--output", output]) == 0
    assert json.loads((tmp_path / "out.json").read_text())["kernels"] == {}
    assert "without kernels: " in capfd.readouterr().out


REFUSED = {
    "--width 100": "--width is 100, wanted a multiple of 32",
    "--height 0": "--height is 0, wanted a multiple of 32",
    "--frames 16": "--frames is 16, wanted one more than a multiple of 8",
    "--steps 1": "--steps is 1, wanted 2 or more",
    "--steps many": "argument --steps: invalid int value: 'many'",
    "--frame-rate 0": "--frame-rate is 0, wanted 1 or more",
    "--guidance 0.5": "--guidance is 0.5, wanted 1 or more",
    "--guidance nan": "--guidance is nan, wanted 1 or more",
    "--seed -1": "--seed is -1, wanted a number from 0 to 2**63 - 1",
    "--device toaster": "--device is 'toaster', wanted cuda, cuda:N or cpu",
    "--device mps": "--device is 'mps', and there are kernels for cuda and cpu",
    "--compare --no-kernels": "--compare runs without kernels and with them, so --no-kernels "
    "does not go with it",
    "--output out.avi": "--output is 'out.avi', wanted a name that ends in .mp4 or .gif",
    "--output nowhere/out.gif": "--output is 'nowhere/out.gif', and there is no folder 'nowhere'",
    "--bogus": "unrecognized arguments: --bogus",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_is_one_sentence(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is loaded."""
    given = ["--random-weights", "--output", "out.gif", *words.split()]
    assert main(given) == 2
    assert capsys.readouterr().err == f"error: {REFUSED[words]}\n"


def test_a_size_is_for_random_weights() -> None:
    with pytest.raises(Refusal, match=r"^--size is for --random-weights"):
        parse(["--size", "tiny", "--output", "out.gif"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_said() -> None:
    with pytest.raises(Refusal, match=r"^--device is cuda, and torch sees no GPU here$"):
        parse(["--random-weights", "--output", "out.gif", "--device", "cuda"])


def test_a_missing_encoder_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "imageio_ffmpeg" else name)
    with pytest.raises(
        Refusal, match=r"^writing \.mp4 needs .* pip install imageio imageio-ffmpeg, or name a "
    ):
        parse(["--random-weights", "--output", "out.mp4"])


def test_a_model_that_cannot_be_had_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    words = ["--no-kernels", "--model", str(tmp_path / "empty"), "--output", str(tmp_path / "out.gif")]
    assert main(words) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(said) == 1
    assert said[0].startswith(f"error: {tmp_path / 'empty'} cannot be loaded: ")


def test_full_size_is_that_of_ltx_video() -> None:
    """diffusers' defaults are LTX-Video's; 1.9 billion parameters, of which nothing is allocated."""
    ours = random_transformer("full", device="meta")
    with torch.device("meta"):
        theirs = LTXVideoTransformer3DModel()
    configs = [{k: v for k, v in each.config.items() if not k.startswith("_")} for each in (ours, theirs)]
    assert configs[0] == configs[1]
    assert len(ours.transformer_blocks) == 28
    assert round(sum(p.numel() for p in ours.parameters()) / 1e9, 2) == 1.92


def test_weights_follow_from_the_seed() -> None:
    before = torch.random.get_rng_state()
    states = [random_transformer("tiny", seed=seed).state_dict() for seed in (1, 1, 2)]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["proj_in.weight"], states[2]["proj_in.weight"])
    assert states[0]["transformer_blocks.0.attn1.norm_q.weight"].std() > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_pass_has_the_tokens_of_a_video(dtype: torch.dtype) -> None:
    transformer = random_transformer("tiny", dtype=dtype)
    assert {p.dtype for p in transformer.parameters()} == {dtype}
    given = transformer_inputs(transformer, frames=17, height=64, width=96)
    assert latent_sizes(17, 64, 96) == (3, 2, 3)
    with torch.no_grad():
        (out,) = transformer(**given)
    assert (out.shape, out.dtype) == ((2, 18, 8), dtype)
    assert latent_sizes(97, 480, 704)[0] * 15 * 22 == 4290


def test_a_size_that_is_not_known() -> None:
    with pytest.raises(ValueError, match=f"size is 'huge', wanted {' or '.join(map(repr, TRANSFORMERS))}"):
        random_pipeline("huge")


def test_prompts_are_told_apart() -> None:
    pipeline = random_pipeline("tiny")
    fox, again, cat = (prompt_embeds(pipeline, text) for text in ("a fox", "a fox", "a black cat"))
    assert torch.equal(fox["prompt_embeds"], again["prompt_embeds"])
    assert not torch.equal(fox["prompt_embeds"], cat["prompt_embeds"])
    assert [int(each["prompt_attention_mask"].sum()) for each in (fox, cat)] == [3, 4]
    assert int(fox["negative_prompt_attention_mask"].sum()) == 1


def levels(*numbers: int) -> Any:
    return np.array(numbers, dtype=np.uint8).reshape(-1, 2, 1, 1)


def test_differences_are_of_each_frame() -> None:
    found = video.differences(levels(0, 10, 255, 3), levels(0, 10, 0, 3))
    assert found[0] == video.Difference(None, 0)
    assert found[1].largest == 255
    assert found[1].psnr == pytest.approx(10 * np.log10(2))
    assert [str(each) for each in found] == [" the same        0", "   3.0 dB      255"]


def test_levels_round_and_saturate() -> None:
    given = np.array([-0.5, 0.0, 0.4999 / 255, 0.5001 / 255, 1.0, 2.0])
    assert video.to_levels(given).tolist() == [0, 0, 0, 1, 255, 255]


def test_an_mp4_is_written(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    frames = np.random.default_rng(0).integers(0, 256, (9, 32, 64, 3), dtype=np.uint8)
    video.write(frames, tmp_path / "out.mp4", 25)
    import imageio

    with imageio.get_reader(tmp_path / "out.mp4") as reader:
        assert len(list(itertools.islice(reader, 20))) == 9
        assert reader.get_meta_data()["size"] == (64, 32)
