# SPDX-License-Identifier: Apache-2.0
"""`python -m kernelworks`, for where the command is not on PATH."""

import sys

from kernelworks.cli import main

if __name__ == "__main__":
    sys.exit(main())
