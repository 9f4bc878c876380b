# SPDX-License-Identifier: Apache-2.0
"""The command line: one verb a module, each with a `register` that adds it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from kernelworks import (
    __version__,
    bench_model,
    benchmarking,
    building,
    checking,
    hosting,
    hub_status,
    listing,
    matrix_view,
    prefetching,
    publishing,
    releasing,
    reporting,
    rolling_back,
    testing,
    vendoring,
    verifying,
)
from kernelworks.errors import KernelworksError

INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended

# A new verb is a module with `register(subparsers)`, which calls `add_parser` and `set_defaults(run=...)`;
# `run(arguments)` returns the exit code.
VERBS = (
    *(vendoring, building, checking, listing, matrix_view, testing, benchmarking, bench_model, reporting),
    *(releasing, publishing, verifying, hub_status, rolling_back, prefetching, hosting),
)


def parser() -> argparse.ArgumentParser:
    """The whole command line, every verb included."""
    top = argparse.ArgumentParser(
        prog="kernelworks", description="Compute kernels, from source to get_kernel."
    )
    top.add_argument("--version", action="version", version=f"kernelworks {__version__}")
    subparsers = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for verb in VERBS:
        verb.register(subparsers)
    for each in subparsers.choices.values():
        if each.get_default("in_repository") is not False:
            each.add_argument(
                "--root", type=Path, help="the repository (default: found from the working directory upwards)"
            )
    return top


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The arguments of one command; what follows `--` becomes `extra`, where the verb has such a thing."""
    end = words.index("--") if "--" in words else len(words)  # argparse would take it for more names
    top = parser()
    arguments = top.parse_args(words[:end])
    if words[end + 1 :] and not hasattr(arguments, "extra"):
        top.error(
            f"nothing may follow --, and {' '.join(words[end + 1 :])} does; only `test` passes words on"
        )
    if hasattr(arguments, "extra"):
        arguments.extra = tuple(words[end + 1 :])
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = parse(sys.argv[1:] if argv is None else argv)
    # Into a pipe, Python would hold progress back until the end.
    for output in (sys.stdout, sys.stderr):
        if hasattr(output, "reconfigure"):
            output.reconfigure(line_buffering=True)
    try:
        code: int = arguments.run(arguments)
    except KernelworksError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) went away; silence the flush at exit, which would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code
