# SPDX-License-Identifier: Apache-2.0
"""The fixtures that every kernel's tests have, and this kernel under its name."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("checks", "vendor")  # before the first import of either

pytest_plugins = ["vendor.fixtures"]


@pytest.fixture(scope="session")
def geglu(kernel):
    return kernel
