# SPDX-License-Identifier: Apache-2.0
"""What the tests of every kernel share; copied from common/tests/."""
