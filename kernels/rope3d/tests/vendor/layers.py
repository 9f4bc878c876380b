# SPDX-License-Identifier: Apache-2.0
"""Layers in the place of a model's own: where those come from, and how they are swapped."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
from kernels import LocalLayerRepository, get_local_kernel, kernelize, use_kernel_mapping


def imported(module, name):
    """Something of a library's module; skips the test where the library is not installed."""
    pytest.importorskip(module.split(".")[0])
    return getattr(import_module(module), name)


class Layer(LocalLayerRepository):
    """The local repository, asked for the backend under test (a CUDA build of torch would choose its own)."""

    def __init__(self, path, layer_name, backend):
        super().__init__(path, layer_name=layer_name)
        self._backend = backend

    def load(self):
        return getattr(get_local_kernel(self._repo_path, backend=self._backend).layers, self.layer_name)


def swapped(model, name, repository, mode, device):
    """Kernelizes `model`, its layers of this name from `repository`, and counts those that are now ours."""
    mapping = {name: {device.type: repository}}
    with use_kernel_mapping(mapping, inherit_mapping=False):
        kernelize(model, mode=mode, device=device.type)
    ours = repository.load().forward
    return sum(getattr(m.forward, "__func__", None) is ours for m in model.modules())


def assert_stateless(layer):
    """kernelize takes the forward of a layer and nothing else."""
    assert layer.__init__ is torch.nn.Module.__init__
    assert layer.has_backward is True
    assert layer.can_torch_compile is True
    extra = set(dir(layer)) - set(dir(torch.nn.Module)) - {"has_backward", "can_torch_compile"}
    assert not {member for member in extra if not member.startswith("__")}
