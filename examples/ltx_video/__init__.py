# SPDX-License-Identifier: Apache-2.0
"""LTX-Video with the kernels of this repository: text to video, before and after."""
