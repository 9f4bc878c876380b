# SPDX-License-Identifier: Apache-2.0
"""What a kernel promises its callers, as read from its sources; and for the real ones, as Python sees it."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import small_kernel
from small_kernel import KERNEL, PACKAGE, write

from kernelworks import catalog, loader, release_api
from kernelworks.release_api import Api, Parameter, Signature

ROOT = catalog.find_root(Path(__file__))


def api_of(root: Path, name: str = "scale-it") -> Api:
    kernel = catalog.load(root, name)

    def read(path: str) -> str | None:
        file = kernel.directory / path
        return file.read_text() if file.is_file() else None

    return release_api.of_kernel(kernel, read)


def test_functions_classes_and_modules_are_found(tmp_path: Path) -> None:
    small_kernel.make(tmp_path)
    write(
        tmp_path,
        {
            f"{PACKAGE}/__init__.py": (
                "from . import _fake, layers, presets\nfrom ._functional import scale, turn as rotate\n"
                '__all__ = ["layers", "presets", "rotate", "scale"]\n'
            ),
            f"{PACKAGE}/_functional.py": (
                "from ._more import turn\ndef scale(x, /, factor: float = 2.0, *rest, wide=None, **more)"
                " -> torch.Tensor: ...\ndef _hidden(): ...\n"
            ),
            f"{PACKAGE}/_more.py": "def turn(q, k): ...\n",
            f"{PACKAGE}/presets.py": "def ltx(dim): ...\ndef _power(): ...\n",
            f"{PACKAGE}/layers/__init__.py": "from .scale import Scale, Size\n__all__ = ['Scale', 'Size']\n",
            f"{PACKAGE}/layers/scale.py": (
                "class Scale(nn.Module):\n    weight: torch.Tensor\n    can_torch_compile = True\n"
                "    def __init__(self, dim, eps=1e-6): ...\n    def forward(self, x): ...\n"
                "    def _own(self): ...\n"
                "@dataclass(frozen=True)\nclass Size:\n    rows: int\n    columns: int = 1\n"
                "    @staticmethod\n    def of(x): ...\n"
            ),
        },
    )
    found = api_of(tmp_path).names
    assert list(found) == [
        *("layers.Scale", "layers.Scale.forward", "layers.Scale.weight", "layers.Scale.can_torch_compile"),
        *("layers.Size", "layers.Size.of", "layers.Size.rows", "layers.Size.columns"),
        *("presets.ltx", "rotate", "scale"),
    ]
    assert found["scale"] == Signature(
        (
            Parameter("x", "positional only"),
            Parameter("factor", "positional", "2.0"),
            Parameter("rest", "*"),
            Parameter("wide", "keyword", "None"),
            Parameter("more", "**"),
        ),
        "Tensor",
    )
    assert found["layers.Scale"] == Signature(
        (Parameter("dim", "positional"), Parameter("eps", "positional", "1e-06"))
    )
    assert found["layers.Size"] == Signature(
        (Parameter("rows", "positional"), Parameter("columns", "positional", "1"))
    )
    assert found["layers.Size.of"] == Signature((Parameter("x", "positional"),))


def test_what_the_card_and_the_manifest_promise(tmp_path: Path) -> None:
    small_kernel.make(tmp_path)
    card = (
        small_kernel.CARD + "| dtypes | float16, bfloat16; float64 on the CPU; float8_e4m3fn |\n\nfloat32\n"
    )
    write(tmp_path, {f"{KERNEL}/CARD.md": card})
    found = api_of(tmp_path)
    assert found.dtypes == {"float16", "bfloat16", "float64", "float8_e4m3fn"}
    assert (found.backends, found.torch, found.depends) == ({"cpu", "cuda"}, (2, 11), frozenset())


@pytest.mark.parametrize("name", catalog.names(ROOT))
def test_of_the_kernels_here_it_is_what_python_sees(name: str) -> None:
    kernel = catalog.load(ROOT, name)
    found = api_of(ROOT, name)
    assert {"float16", "bfloat16", "float32", "float64"} <= found.dtypes, "the card states them"
    if not loader.loads(kernel):
        pytest.skip(f"not built: {name}; run `kernelworks build {name}`")
    from kernels import get_local_kernel

    module = get_local_kernel(kernel.directory)
    for dotted, signature in found.names.items():
        thing = module
        *path, last = dotted.split(".")
        for part in path:
            thing = getattr(thing, part)
        if signature is None or inspect.isclass(thing):
            continue
        real = inspect.signature(getattr(thing, last))
        names = [each.name for each in signature.parameters]
        assert [each for each in real.parameters if each != "self"] == names, dotted
        assert [
            each.default is not inspect.Parameter.empty
            for each in real.parameters.values()
            if each.name != "self"
        ] == [each.default is not None for each in signature.parameters], dotted
    assert set(module.__all__) == {dotted.partition(".")[0] for dotted in found.names}
