# SPDX-License-Identifier: Apache-2.0
"""The tool that takes a kernel from source to a build that `get_kernel` loads."""

__version__ = "0.1.0"
