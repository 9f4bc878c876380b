# SPDX-License-Identifier: Apache-2.0
"""Every error has one base class and an exit code of its own."""

from __future__ import annotations

import inspect

from kernelworks import errors


def test_exit_codes_are_distinct_and_never_argparse_s() -> None:
    classes = [each for _, each in inspect.getmembers(errors, inspect.isclass)]
    assert all(issubclass(each, errors.KernelworksError) for each in classes)
    codes = [each.exit_code for each in classes]
    assert len(set(codes)) == len(codes)
    assert not {0, 2} & set(codes)  # 2 is what argparse exits with
