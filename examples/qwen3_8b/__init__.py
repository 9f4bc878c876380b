# SPDX-License-Identifier: Apache-2.0
"""Qwen3 with the kernels of this repository: text generation, before and after."""
