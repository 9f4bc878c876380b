# SPDX-License-Identifier: Apache-2.0
"""Layers of ours in a Qwen3, or another model, by the ways that transformers and kernels have.

They replace one module or function at a time, and fuse nothing; ``inject`` does more for Qwen3.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from kernels import (  # type: ignore[import-untyped]
    LayerRepository,
    LocalLayerRepository,
    Mode,
    kernelize,
    use_kernel_mapping,
)
from transformers import KernelConfig

# What transformers calls a layer, and which of ours is to stand there: the kernel and its layer.
LAYERS = {"RMSNorm": ("rmsnorm", "LlamaRMSNorm"), "rotary_pos_emb": ("rope3d", "RotaryPosEmb")}


def local_builds(org: str = "kernelworks") -> dict[str, Path]:
    """The directories that ``LOCAL_KERNELS`` names for kernels of ``org``, by the kernels' names."""
    entries = (entry.partition("=") for entry in os.environ.get("LOCAL_KERNELS", "").split(":"))
    named = ((repo_id.partition("/"), path) for repo_id, _, path in entries)
    return {kernel: Path(path).absolute() for (owner, _, kernel), path in named if owner == org and kernel}


def kernel_config(*, org: str = "kernelworks", version: int = 1) -> Any:
    """The ``KernelConfig`` for ``from_pretrained(..., use_kernels=True, kernel_config=...)``, on GPUs.

    The layers come from the Hub, or the one at ``HF_ENDPOINT``; where ``LOCAL_KERNELS`` names all of the
    kernels, from there. transformers takes either, and not both at once; it knows no kernels for the CPU.

    Args:
        org: whose kernels they are; the code of these repositories is trusted, and no other.
        version: of all of them.
    """
    config: Any = KernelConfig
    local = local_builds(org)
    if all(kernel in local for kernel, _ in LAYERS.values()):
        paths: dict[str, Any] = {name: f"{local[kernel]}:{layer}" for name, (kernel, layer) in LAYERS.items()}
        return config(paths, use_local_kernel=True, inherit_mapping=False)
    trusted = {"version": version, "trust_remote_code": True}
    repositories: dict[str, Any] = {
        name: (f"{org}/{kernel}:{layer}", trusted) for name, (kernel, layer) in LAYERS.items()
    }
    return config(repositories, inherit_mapping=False)


def swap_layers(
    model: Any,
    *,
    layers: Mapping[str, tuple[str, str]] = LAYERS,
    compiled: bool = False,
    org: str = "kernelworks",
    version: int = 1,
) -> int:
    """Kernelize a model on a CPU or a GPU: how many of its modules are ours now, functions not counted.

    A layer is taken from the directory that ``LOCAL_KERNELS`` names for its kernel, else from the Hub. A
    function, ``rotary_pos_emb``, is swapped for every model of its kind in this process.

    Args:
        model: of transformers, in the mode that it is to run in, ``train()`` or ``eval()``.
        layers: as ``LAYERS``.
        compiled: for torch.compile.

    Raises:
        ValueError: a kernel has no such layer, or one that does not fit.
        OSError: a kernel cannot be had.
    """
    device = next(model.parameters()).device.type
    local = local_builds(org)
    repositories = {
        name: LocalLayerRepository(local[kernel], layer_name=layer)
        if kernel in local
        else LayerRepository(
            f"{org}/{kernel}", layer_name=layer, version=version, trust_remote_code=[f"{org}/{kernel}"]
        )
        for name, (kernel, layer) in layers.items()
    }
    mode = Mode.TRAINING if model.training else Mode.INFERENCE
    mapping = {name: {device: repository} for name, repository in repositories.items()}
    with use_kernel_mapping(mapping, inherit_mapping=False):
        kernelize(model, mode=mode | Mode.TORCH_COMPILE if compiled else mode, device=torch.device(device))
    forwards = {repository.load().forward for repository in repositories.values()}
    bound = (module.__dict__.get("forward") for module in model.modules())
    return sum(getattr(forward, "__func__", None) in forwards for forward in bound)
