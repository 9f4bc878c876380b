# SPDX-License-Identifier: Apache-2.0
"""`kernelworks bench-model`: what it asks of its process, what it refuses, and one run from end to end."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from bench_model_records import model_record

from kernelworks import bench_model, bench_model_child, bench_read, catalog, loader
from kernelworks.bench_model_record import EAGER, KERNELS, VARIANTS, ModelRequest
from kernelworks.benchmarking import WRONG
from kernelworks.cli import main, parse
from kernelworks.errors import BuildError, RepositoryError, ToolchainError

ROOT = catalog.find_root(Path(__file__))
REQUEST = ModelRequest("ltx", "tiny", "cpu", "float32", VARIANTS, True, {"adaln": "kernelworks/adaln"}, 1)


def request_for(*words: str) -> ModelRequest:
    kernels = [catalog.load(ROOT, name) for name in bench_model.KERNELS_OF["ltx"]]
    return bench_model.request_for(kernels, parse(["bench-model", "ltx", *words]))


@pytest.mark.parametrize(
    ("sees_gpu", "words", "wanted"),
    [
        (True, [], ("full", "cuda", "bfloat16")),
        (False, [], ("tiny", "cpu", "float32")),
        (True, ["--device", "cpu"], ("tiny", "cpu", "float32")),
        (False, ["--size", "full", "--dtype", "float16"], ("full", "cpu", "float16")),
    ],
)
def test_defaults_are_of_the_device(
    monkeypatch: pytest.MonkeyPatch, sees_gpu: bool, words: list[str], wanted: tuple[str, ...]
) -> None:
    monkeypatch.setattr(loader, "sees_gpu", lambda: sees_gpu)
    request = request_for(*words)
    assert (request.size, request.device, request.dtype) == wanted
    assert request.variants == VARIANTS
    assert request.repos["rope3d"] == "kernelworks/rope3d"


def test_eager_always_runs_and_the_order_is_one() -> None:
    assert request_for("--variants", "compile,kernels").variants == (EAGER, KERNELS, "compile")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--variants", "fast"], "fast is none of eager, kernels, compile, kernels+compile"),
        (["--commit", "abc"], "abc is not 40 digits"),
        (["--size", "huge"], "invalid choice: 'huge'"),
    ],
)
def test_a_word_that_is_not_known(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["bench-model", "ltx", *words])
    assert said in capsys.readouterr().err


def test_the_command_of_a_record_asks_for_the_same() -> None:
    words = shlex.split(bench_model.command_of(REQUEST))
    assert words[0] == "kernelworks"
    arguments = parse(words[1:])
    kernels = [catalog.load(ROOT, "adaln")]
    assert bench_model.request_for(kernels, arguments) == REQUEST


def test_what_is_missing_is_said_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = [catalog.load(ROOT, "adaln")]
    with pytest.raises(RepositoryError, match="has no examples/"):
        bench_model.require(tmp_path, kernels, "cpu")
    monkeypatch.setattr(loader, "sees_gpu", lambda: False)
    with pytest.raises(ToolchainError, match="sees no CUDA GPU"):
        bench_model.require(ROOT, kernels, "cuda")
    monkeypatch.setattr(loader, "loads", lambda *_: False)
    with pytest.raises(BuildError, match="run `kernelworks build adaln --backend cpu`"):
        bench_model.require(ROOT, kernels, "cpu")


def test_the_process_finds_builds_examples_and_no_compiled_code(tmp_path: Path) -> None:
    kernels = [catalog.load(ROOT, name) for name in ("adaln", "rmsnorm")]
    found = bench_model.environment(ROOT, kernels, tmp_path, {"PYTHONPATH": "here", "OTHER": "1"})
    assert found["LOCAL_KERNELS"] == ":".join(f"{each.repo_id}={each.directory}" for each in kernels)
    paths = found["PYTHONPATH"].split(os.pathsep)
    assert paths[1:] == [os.path.abspath("here"), str(ROOT)]  # kernels/ there must not hide the package
    assert found["TORCHINDUCTOR_CACHE_DIR"].startswith(str(tmp_path))
    assert found["OTHER"] == "1"


def test_a_kernel_that_cannot_be_loaded_ends_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An example goes on with torch in its place; a measurement must not."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("LOCAL_KERNELS", f"kernelworks/adaln={tmp_path}")
    with pytest.raises(BuildError, match="kernelworks/adaln is not used"):
        bench_model_child.loaded(REQUEST)


def test_a_failed_variant_is_an_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failed = model_record(failures={"compile at step": "RuntimeError: no"})
    monkeypatch.setattr(bench_model, "require", lambda *_: None)
    monkeypatch.setattr(bench_model, "measure", lambda *_: None)
    monkeypatch.setattr(bench_model, "record_of", lambda *_: failed)
    out = tmp_path / "record.json"
    assert main(["bench-model", "ltx", "--device", "cpu", "--json", str(out), "--root", str(ROOT)]) == WRONG
    assert bench_read.read_model(out) == failed


@pytest.mark.slow
def test_a_run_from_end_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    if not all(loader.loads(catalog.load(ROOT, name), "cpu") for name in bench_model.KERNELS_OF["qwen3"]):
        pytest.skip("rmsnorm or rope3d is not built for the CPU")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    out = tmp_path / "record.json"
    words = ["--device", "cpu", "--variants", "kernels", "--quick", "--json", str(out)]
    assert main(["bench-model", "qwen3", *words, "--root", str(ROOT)]) == 0
    shown = capsys.readouterr()
    assert "prefill, kernels: first call" in shown.err
    assert "8 of 8" in shown.out
    record = bench_read.read_model(out)
    assert record.correct
    assert [work.name for work in record.works] == ["prefill", "decode"]
    assert record.variants == (EAGER, KERNELS)
    assert record.builds["rope3d"]["variant"].startswith("torch-stable-abi")
    assert "transformers" in record.packages
    assert str(ROOT) not in out.read_text()
