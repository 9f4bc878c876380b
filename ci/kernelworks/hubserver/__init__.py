# SPDX-License-Identifier: Apache-2.0
"""A Hub for kernel repositories on one machine: git repositories on disk behind a small web application."""
