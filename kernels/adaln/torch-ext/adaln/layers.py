# SPDX-License-Identifier: Apache-2.0
"""Layers that kernelize puts in place of a model's own: a forward each, and no state of their own."""

from __future__ import annotations

__all__: list[str] = []
