# SPDX-License-Identifier: Apache-2.0
"""Loads kernels for one device, and goes on without those that are not to be had."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from types import ModuleType

import torch
from kernels import get_kernel  # type: ignore[import-untyped]


def load_kernels(
    names: Iterable[str], device: torch.device | str, *, org: str = "kernelworks", version: int = 1
) -> dict[str, ModuleType]:
    """The kernels of these names that can be had for ``device``, by name.

    Each comes through ``kernels.get_kernel``: from the Hub, from the one at ``HF_ENDPOINT``, or from the
    build that ``LOCAL_KERNELS`` names. One that cannot be loaded is left out, with a warning that says why.

    Args:
        names: such as ``["adaln", "rmsnorm"]``.
        device: where the tensors will be. Its type is the backend that is asked for, as one build serves one.
        org: whose kernels they are on the Hub; these repositories are trusted, and no others.
        version: of all of them.

    Raises:
        RuntimeError: ``device`` is no device to torch.
    """
    backend = torch.device(device).type
    loaded = {}
    for name in names:
        repo_id = f"{org}/{name}"
        try:
            loaded[name] = get_kernel(repo_id, version=version, backend=backend, trust_remote_code=[repo_id])
        except Exception as error:  # the loader, its HTTP client and a build's own import each have theirs
            warnings.warn(f"{repo_id} is not used, torch is in its place: {reason(error)}", stacklevel=2)
    return loaded


def reason(error: Exception) -> str:
    """The first line of what went wrong."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(" .:") if lines else type(error).__name__
