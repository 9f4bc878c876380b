# SPDX-License-Identifier: Apache-2.0
"""Examples load what can be loaded, and say once what cannot."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from kernelworks import catalog, loader

ROOT = catalog.find_root(Path(__file__))
sys.path.insert(0, str(ROOT))  # as `python -m` from there has it

from examples.loading import load_kernels  # noqa: E402


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    """adaln from its directory, and no other kernel from anywhere."""
    kernel = catalog.load(ROOT, "adaln")
    if not loader.loads(kernel, "cpu"):
        pytest.skip("not built: adaln; run `kernelworks build adaln`")
    monkeypatch.setenv("LOCAL_KERNELS", f"{kernel.repo_id}={kernel.directory}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.mark.usefixtures("local")
def test_a_local_build_is_loaded_for_the_cpu() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = load_kernels(["adaln"], "cpu")
    assert list(loaded) == ["adaln"]
    assert "-cpu-" in str(loaded["adaln"].__file__)
    x = torch.randn(2, 3, 8)
    torch.testing.assert_close(loaded["adaln"].gate_residual(x, x, None), x + x)


@pytest.mark.usefixtures("local")
def test_what_is_not_there_is_left_out_with_one_warning() -> None:
    with pytest.warns(UserWarning, match="is not used") as said:
        loaded = load_kernels(["adaln", "nothing_of_this_name"], torch.device("cpu"))
    assert list(loaded) == ["adaln"]
    (text,) = [str(each.message) for each in said]
    assert text.startswith("kernelworks/nothing_of_this_name is not used, torch is in its place: ")
    assert "Version 1" in text
    assert said[0].filename == __file__


@pytest.mark.parametrize(
    ("local_kernels", "wanted"),
    [
        ("kernelworks/adaln={folder}", "Cannot find a build variant for this system in {folder}"),
        ("nonsense", "Invalid LOCAL_KERNELS entry: nonsense"),
    ],
    ids=["no build", "bad setting"],
)
def test_the_reason_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, local_kernels: str, wanted: str
) -> None:
    (tmp_path / "build").mkdir()
    monkeypatch.setenv("LOCAL_KERNELS", local_kernels.format(folder=tmp_path))
    with pytest.warns(UserWarning, match="is not used") as said:
        assert load_kernels(["adaln"], "cpu") == {}
    (text,) = [str(each.message) for each in said]
    assert wanted.format(folder=tmp_path) in text
    assert "\n" not in text


def test_a_build_that_breaks_when_imported_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its name is that of adaln's build for the CPU, and its import fails."""
    variants = [path for path in (ROOT / "kernels/adaln/build").glob("*-cpu-*") if path.is_dir()]
    if not variants:
        pytest.skip("not built: adaln; run `kernelworks build adaln`")
    broken = tmp_path / "build" / variants[0].name
    broken.mkdir(parents=True)
    (broken / "metadata.json").write_bytes((variants[0] / "metadata.json").read_bytes())
    (broken / "__init__.py").write_text("raise ImportError('libnothing.so.1: cannot open it')\n")
    monkeypatch.setenv("LOCAL_KERNELS", f"kernelworks/adaln={tmp_path}")
    with pytest.warns(UserWarning, match="kernelworks/adaln is not used.*"):
        assert load_kernels(["adaln"], "cpu") == {}


@pytest.mark.usefixtures("local")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_here_gets_no_kernel_of_another() -> None:
    with pytest.warns(UserWarning, match="Invalid backend 'cuda'"):
        assert load_kernels(["adaln"], "cuda") == {}


def test_a_hub_that_cannot_be_reached_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From a process of its own, as an endpoint is read when the client is imported."""
    program = "from examples.loading import load_kernels; print(load_kernels(['adaln'], 'cpu'))"
    environment = {k: v for k, v in os.environ.items() if k not in ("LOCAL_KERNELS", "HF_HUB_OFFLINE")}
    environment |= {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "{}\n"), done.stderr
    assert done.stderr.count("kernelworks/adaln is not used") == 1
