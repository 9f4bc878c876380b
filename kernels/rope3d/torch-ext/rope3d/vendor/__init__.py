# SPDX-License-Identifier: Apache-2.0
"""What the Python packages of every kernel share; copied from common/package/."""
