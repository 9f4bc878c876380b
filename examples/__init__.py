# SPDX-License-Identifier: Apache-2.0
"""Examples, run from the top of the repository: `python -m examples.ltx_video.generate`."""
