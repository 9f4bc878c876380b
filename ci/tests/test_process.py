# SPDX-License-Identifier: Apache-2.0
"""Starting processes: captured, streamed, missing, and abandoned."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from kernelworks import process
from kernelworks.errors import ToolchainError

PACKAGE = Path(process.__file__).parent


def test_run_captures_both_outputs_and_the_code(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getcwd(), os.environ['A']); print('bad', file=sys.stderr); sys.exit(3)"
    done = process.run([sys.executable, "-c", code], cwd=tmp_path, env={"A": "b"})
    assert (done.stdout, done.stderr, done.returncode) == (f"{tmp_path} b\n", "bad\n", 3)


def test_stream_hands_on_lines_of_both_outputs() -> None:
    lines: list[str] = []
    code = "import sys; print('one', flush=True); print('two', file=sys.stderr); sys.exit(4)"
    assert process.stream([sys.executable, "-c", code], on_line=lines.append) == 4
    assert lines == ["one", "two"]


def test_output_that_is_not_utf8_is_no_reason_to_fail() -> None:
    code = "import os; os.write(1, b'caf\\xe9\\n')"
    assert process.run([sys.executable, "-c", code]).stdout == "caf\N{REPLACEMENT CHARACTER}\n"


@pytest.mark.parametrize("start", [process.run, lambda argv: process.stream(argv, on_line=print)])
def test_a_missing_program_is_named(start: object) -> None:
    assert callable(start)
    with pytest.raises(ToolchainError, match="cannot start no-such-program: No such file or directory"):
        start(["no-such-program", "-x"])


def test_an_error_while_streaming_ends_the_child() -> None:
    def stop(line: str) -> None:
        raise ZeroDivisionError(line)

    code = "import time; print('up', flush=True); time.sleep(60)"
    start = time.monotonic()
    with pytest.raises(ZeroDivisionError, match="up"):
        process.stream([sys.executable, "-c", code], on_line=stop)
    assert time.monotonic() - start < 30


def test_only_this_module_starts_processes() -> None:
    others = [path for path in PACKAGE.rglob("*.py") if path.name != "process.py"]
    assert others
    for path in others:
        assert not re.search(r"\bsubprocess\b|os\.(system|popen|exec|spawn|fork)", path.read_text()), path
