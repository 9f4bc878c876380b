# SPDX-License-Identifier: Apache-2.0
"""The fixtures that every kernel's tests have, and this kernel under its name."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("cases", "checks", "vendor")  # before the first import of any

pytest_plugins = ["vendor.fixtures"]


@pytest.fixture(scope="session")
def rope3d(kernel):
    return kernel
