# SPDX-License-Identifier: Apache-2.0
"""`python -m examples.qwen3_8b.generate`: what it makes, measures and refuses."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from model_checks import ROOT, local_kernels, one_thread
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CompileConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

# model_checks has made the examples importable
# isort: split
from examples.qwen3_8b import generate as program
from examples.qwen3_8b.inject import KERNELS, inject
from examples.qwen3_8b.model import random_model, random_tokens
from examples.qwen3_8b.timing import Generation, agreement, forced_logits, generate

F32 = torch.float32
TINY = ("--random-weights", "--size", "tiny", "--device", "cpu")


@pytest.fixture
def kernels() -> Iterator[dict[str, ModuleType]]:
    with local_kernels(KERNELS) as found:
        yield found


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    with one_thread():
        yield


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the program says where it does nothing."""
    capsys.readouterr()  # what came before
    assert program.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("error: ").rstrip("\n")


# ---- the program -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("kernels")
def test_a_process_of_its_own(tmp_path: Path) -> None:
    """As one runs it: what is printed is what is recorded."""
    record = tmp_path / "record.json"
    words = (*TINY, "--compare", "--new-tokens", "6", "--batch", "2", "--json", str(record))
    done = subprocess.run(
        [sys.executable, "-m", "examples.qwen3_8b.generate", *words],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    plain, counts, ours, agreed = done.stdout.splitlines()
    assert plain.startswith("without kernels: prefill ")
    assert counts == "calls in one pass: 8 add_rms_norm, 1 rms_norm, 4 rms_norm_rope3d"
    assert ours.startswith("with kernels:    prefill ")
    assert agreed.startswith("same token at 12 of 12 positions, at 12 of the 12 that are clear")
    assert agreed.endswith("none differs")
    written = json.loads(record.read_text())
    assert written["replaced"] == {"add_rms_norm": 8, "rms_norm": 1, "rms_norm_rope3d": 4}
    assert set(written["kernels"]) == set(KERNELS)
    assert (written["dtype"], written["batch"], written["weights"]) == ("float32", 2, "random, tiny")
    for name in ("without_kernels", "with_kernels"):
        times = written[name]
        assert times["prefill_seconds"] > 0
        assert times["seconds_per_token"] == pytest.approx(times["decode_seconds"] / 5)
    assert 0 < written["agreement"]["difference"] < 1e-5


def test_without_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """None is loaded."""
    monkeypatch.setattr(program, "load_kernels", None)
    record = tmp_path / "record.json"
    assert program.main((*TINY, "--no-kernels", "--new-tokens", "1", "--json", str(record))) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("without kernels: prefill ")
    assert "decode" not in line
    written = json.loads(record.read_text())
    assert "with_kernels" not in written
    assert written["without_kernels"]["seconds_per_token"] is None


def folder_of(model: Any, folder: Path) -> Path:
    """A model and a tokenizer of words, as the Hub would give them."""
    words = ["<pad>", "<end>", "user", "assistant", "why", "is", "the", "sky", "blue"]
    words += [f"w{number}" for number in range(len(words), model.config.vocab_size)]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, "<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>")
    fast.chat_template = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}assistant"
    fast.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


@pytest.mark.usefixtures("kernels")
def test_a_text_and_weights_from_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the model itself generates is what is printed, up to the end that it chooses."""
    model = random_model("tiny", "cpu", F32)
    prompt = torch.tensor([[2, 4, 5, 6, 7, 8, 3]])  # user why is the sky blue assistant
    tokens = model.generate(prompt, max_new_tokens=9, do_sample=False)[0, prompt.shape[1] :].tolist()
    end = tokens[4]
    model.generation_config.eos_token_id = end
    wanted = tokens[: tokens.index(end) + 1]
    folder = folder_of(model, tmp_path / "model")
    text = ("--prompt", "why is the sky blue", "--new-tokens", "9", "--device", "cpu")
    assert program.main(("--model", str(folder), *text, "--compare")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith(f"same token at {len(wanted)} of {len(wanted)} positions")
    assert [int(word.removeprefix("w")) for word in lines[-1].split()] == wanted
    (folder / "chat_template.jinja").unlink()
    assert program.main(("--model", str(folder), *text, "--no-kernels")) == 0
    prompt = torch.tensor([[4, 5, 6, 7, 8]])
    wanted = model.generate(prompt, max_new_tokens=9, do_sample=False)[0, prompt.shape[1] :].tolist()
    line = capsys.readouterr().out.splitlines()[-1]
    assert [int(word.removeprefix("w")) for word in line.split()] == wanted


def test_another_model_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    folder = folder_of(LlamaForCausalLM(config), tmp_path / "llama")
    said = refusal(capsys, "--model", str(folder), "--no-kernels", "--device", "cpu")
    assert said == f"{folder} is a llama, wanted a qwen3"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    said = refusal(capsys, "--model", "./empty", "--no-kernels", "--device", "cpu")
    assert said.startswith("./empty cannot be loaded: ")


def test_no_kernel_at_all_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "load_kernels", lambda *_: {})
    assert "let LOCAL_KERNELS name builds, or use --no-kernels" in refusal(capsys, *TINY)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("--size tiny", "--size is for --random-weights"),
        ("--random-weights --prompt hello", "--prompt needs the tokenizer of real weights"),
        ("--prompt hello --prompt-tokens 3", "wanted one of them"),
        ("--prompt=", "--prompt is empty, wanted a text"),
        ("--prompt-tokens 0", "--prompt-tokens is 0, wanted 1 or more"),
        ("--new-tokens 0", "--new-tokens is 0, wanted 1 or more"),
        ("--batch -1", "--batch is -1, wanted 1 or more"),
        ("--batch two", "invalid int value: 'two'"),
        ("--prompt-tokens 40000 --new-tokens 961", "more than the 40960 that Qwen3 has positions for"),
        ("--seed -1", "--seed is -1, wanted a number from 0"),
        ("--device gpu", "--device is 'gpu', wanted cuda, cuda:N or cpu"),
        ("--device mps", "--device is 'mps', and there are kernels for cuda and cpu"),
        ("--dtype int8", "invalid choice: 'int8'"),
        ("--no-kernels --compare", "--compare runs with kernels"),
        ("--no-kernels --layers-only", "--layers-only runs with kernels"),
        ("--json nowhere/record.json", "there is no folder 'nowhere'"),
        ("--frames 3", "unrecognized arguments"),
    ],
)
def test_refusals(capsys: pytest.CaptureFixture[str], words: str, wanted: str) -> None:
    assert wanted in refusal(capsys, *words.split())


@pytest.mark.parametrize(("memory", "dtype"), [(32e9, "float32"), (16e9, "bfloat16")])
def test_weights_that_do_not_fit_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], memory: float, dtype: str
) -> None:
    monkeypatch.setattr("examples.qwen3_8b.settings._memory", lambda: memory)
    said = refusal(capsys, "--random-weights", "--device", "cpu", "--dtype", dtype)
    size = 33 if dtype == "float32" else 16
    assert said.startswith(
        f"the weights take {size} GB in {dtype}, and this machine has {memory / 1e9:.0f} GB"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, "--device", "cuda") == "--device is cuda, and torch sees no GPU here"


# ---- what it measures --------------------------------------------------------------------------------------


def test_timed_tokens_are_the_models_own(kernels: dict[str, ModuleType]) -> None:
    model = random_model("tiny", "cpu", F32)
    ids = random_tokens(model, 2, 7)
    wanted = model.generate(ids, max_new_tokens=5, do_sample=False)[:, 7:]
    inject(model, kernels)
    got = generate(model, ids, 5)
    assert torch.equal(got.tokens, wanted)
    model.generation_config.eos_token_id = int(wanted[0, 1])
    assert generate(model, ids[:1], 5).tokens.shape == (1, 5)
    assert generate(model, ids[:1], 5, to_the_end=False).tokens.shape == (1, 2)


def test_compiled_tokens_are_the_models_own(
    kernels: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without inductor, which would take a minute; the model is compiled whole all the same, and once."""
    config = functools.partial(CompileConfig, backend="aot_eager", mode=None)
    monkeypatch.setattr("examples.qwen3_8b.timing.CompileConfig", config)
    model = random_model("tiny", "cpu", F32)
    ids = random_tokens(model, 2, 7)
    wanted = model.generate(ids, max_new_tokens=5, do_sample=False)[:, 7:]
    inject(model, kernels)
    torch._dynamo.utils.counters.clear()
    assert torch.equal(generate(model, ids, 5, compiled=True).tokens, wanted)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_times_in_words() -> None:
    tokens = torch.zeros(4, 11, dtype=torch.int64)
    assert str(Generation(tokens, 0.25, 0.2)) == "prefill 250.00 ms, decode 20.00 ms a token, 200.0 tokens/s"
    assert str(Generation(tokens[:, :1], 0.25, 0.0)) == "prefill 250.00 ms"


def test_a_wrong_model_does_not_agree() -> None:
    """One with a norm that lost its weight: seen in tokens, also where the choice was clear."""
    model = random_model("tiny", "cpu", F32)
    ids = random_tokens(model, 1, 9)
    plain = generate(model, ids, 12)
    logits = forced_logits(model, ids, plain.tokens)
    assert torch.equal(logits.argmax(-1), plain.tokens)
    same = agreement(logits, logits, plain.tokens, plain.tokens)
    assert (same.positions, same.same, same.clear, same.difference, same.diverges) == (12, 12, 12, 0.0, None)
    with torch.no_grad():
        model.model.norm.weight.copy_(model.model.norm.weight.flip(0))
        model.model.layers[0].mlp.down_proj.weight.zero_()
    wrong = agreement(
        logits, forced_logits(model, ids, plain.tokens), plain.tokens, generate(model, ids, 12).tokens
    )
    assert wrong.same < 12
    assert wrong.diverges is not None
    assert wrong.difference > 0.01


def test_agreement_of_texts_that_end_elsewhere() -> None:
    logits = torch.zeros(1, 3, 5)
    tokens = torch.tensor([[1, 2, 3]])
    assert agreement(logits, logits, tokens, tokens[:, :2]).diverges == 3
    assert agreement(logits, logits, tokens, torch.tensor([[1, 4, 3]])).diverges == 2
