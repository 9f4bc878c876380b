# SPDX-License-Identifier: Apache-2.0
"""The only place that starts processes, so that tests and readers know where the outside world begins."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelworks.errors import ToolchainError


@dataclass(frozen=True)
class Completed:
    """A process that has ended, and what it printed."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


def run(argv: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Completed:
    """Run to the end and capture the output; a failing exit code is the caller's to judge."""
    try:
        done = subprocess.run(
            argv, cwd=cwd, env=env, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise _cannot_start(argv, error) from error
    return Completed(tuple(argv), done.returncode, done.stdout, done.stderr)


def stream(
    argv: Sequence[str],
    *,
    on_line: Callable[[str], None],
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> int:
    """Run to the end, hand each line (of both outputs) to `on_line` as it comes, and return the exit code."""
    try:
        child = subprocess.Popen(
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise _cannot_start(argv, error) from error
    with child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                on_line(line.rstrip("\n"))
        except BaseException:
            # Ctrl-C reaches the child too; any other way out must not leave compilers running behind us.
            child.terminate()
            raise
    return child.returncode


def _cannot_start(argv: Sequence[str], error: OSError) -> ToolchainError:
    return ToolchainError(f"cannot start {argv[0]}: {error.strerror or error}")
