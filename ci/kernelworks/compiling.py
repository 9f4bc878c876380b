# SPDX-License-Identifier: Apache-2.0
"""Runs ninja over a build, shows its progress, and says what failed in the compiler's own words."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernelworks import process
from kernelworks.errors import BuildError
from kernelworks.ninja_file import EXTENSION, ninja_text
from kernelworks.plan import Build
from kernelworks.variant import write_generated_sources

STATUS = "[%f/%t] "
STEP = re.compile(r"\[\d+/\d+\] ")
ERROR = re.compile(r"\berror\b|undefined reference|cannot find|multiple definition", re.IGNORECASE)
CONTEXT = 5  # lines after the first error: the source line, the caret, the first notes


def compile_build(build: Build, jobs: int | None, verbose: bool) -> Path:
    """Bring the extension up to date and return it."""
    forget_other_tools(build)
    write_generated_sources(build)
    script = build.directory / "build.ninja"
    script.write_text(ninja_text(build))
    argv = [str(build.tools.ninja), "-f", str(script.relative_to(build.kernel.directory))]
    argv += ["-j", str(jobs)] if jobs else []
    argv += ["-v"] if verbose else []
    lines: list[str] = []

    def on_line(line: str) -> None:
        lines.append(line)
        if verbose or STEP.match(line):
            print(line)

    code = process.stream(argv, on_line=on_line, cwd=build.kernel.directory, env=_environment(build))
    log = build.directory / "build.log"
    log.write_text("\n".join(lines) + "\n")
    if code != 0:
        _explain(build, lines, verbose)
        shown = log.relative_to(build.kernel.directory.parents[1])
        raise BuildError(
            f"kernels/{build.kernel.name} did not compile for {build.backend}; all output is in {shown}"
        )
    if not verbose:
        for line in lines:
            if not STEP.match(line) and not line.startswith("ninja: "):
                print(line)  # the compiler's warnings
    return build.directory / EXTENSION


def forget_other_tools(build: Build) -> None:
    """Objects of another compiler or torch are not up to date, though no file or command says so."""
    stamp = build.directory / "tools.txt"
    tools = build.tools
    text = f"torch {tools.torch.version}\n{tools.compiler}\n{tools.cuda}\n"
    if stamp.is_file() and stamp.read_text() == text:
        return
    for old in ("objects", "generated"):
        shutil.rmtree(build.directory / old, ignore_errors=True)
    (build.directory / EXTENSION).unlink(missing_ok=True)
    stamp.write_text(text)


def first_failure(lines: Sequence[str]) -> tuple[str, list[str]]:
    """The first command that failed, and its first error with a few lines of context."""
    start = next((number for number, line in enumerate(lines) if line.startswith("FAILED: ")), None)
    if start is None:
        return "", list(lines[-CONTEXT:])
    command = lines[start + 1] if start + 1 < len(lines) else ""
    output = []
    for line in lines[start + 2 :]:
        if STEP.match(line) or line.startswith(("FAILED: ", "ninja: ")):
            break
        output.append(line)
    errors = [number for number, line in enumerate(output) if ERROR.search(line)] or [0]
    end = errors[1] if len(errors) > 1 else len(output)
    return command, output[errors[0] : min(end, errors[0] + CONTEXT)]


def _explain(build: Build, lines: Sequence[str], verbose: bool) -> None:
    command, error = first_failure(lines)
    if command and not verbose:
        print(f"failed, in kernels/{build.kernel.name}: {command}")
    for line in error:
        print(line)


def _environment(build: Build) -> Mapping[str, str]:
    """nvcc's threads go through its own variable: as a flag, another number would compile all again."""
    environment = {**os.environ, "NINJA_STATUS": STATUS}
    if len(build.archs) > 1:
        threads = min(len(build.archs), os.cpu_count() or 1)
        given = os.environ.get("NVCC_APPEND_FLAGS", "")
        environment["NVCC_APPEND_FLAGS"] = f"{given} --threads={threads}".strip()
    return environment
