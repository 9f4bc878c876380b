# SPDX-License-Identifier: Apache-2.0
"""Incremental builds, progress, and what is shown when a compiler fails."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest
from repositories import CPU_VARIANT, edit, python, variant

from kernelworks import compiling, official
from kernelworks.cli import main

KERNEL = Path("kernels/toy")
LOAD = "import sys; from pathlib import Path; from kernels import get_local_kernel as g; import torch; "
TWICE = LOAD + "print(g(Path(sys.argv[1])).twice(torch.ones(2)).tolist())"


def build(root: Path, capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], str]:
    """Build again; the exit code, the sources that were compiled, and all output."""
    capfd.readouterr()
    code = main(["build", "toy", "--backend", "cpu", "--root", str(root), *arguments])
    output = "".join(capfd.readouterr())
    compiled = [line.split()[-1] for line in output.splitlines() if "] compile " in line]
    return code, sorted(compiled), output


def test_no_change_compiles_nothing_within_two_seconds(built: Path) -> None:
    files = {path: path.stat().st_mtime_ns for path in variant(built).rglob("*")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = "import sys; from kernelworks.cli import main; sys.exit(main(sys.argv[1:]))"
    output = python(code, "build", "toy", "--backend", "cpu", "--root", str(built), cwd=built)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Processor time, because other tests may be using this machine's clock.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2
    assert "up to date" in output
    assert "compile" not in output
    assert files == {path: path.stat().st_mtime_ns for path in variant(built).rglob("*")}


def test_a_touched_source_is_compiled_alone(built: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.utime(built / KERNEL / "kernel_src/toy_cpu.cpp")
    assert build(built, capfd)[:2] == (0, ["kernel_src/toy_cpu.cpp"])


def test_a_changed_source_is_compiled_with_the_binding(
    built: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    edit(built / KERNEL / "kernel_src/toy_cpu.cpp", "* *other", "* 2 * *other")
    assert build(built, capfd)[:2] == (0, ["kernel_src/toy_cpu.cpp", "torch-ext/torch_binding.cpp"])


def test_a_changed_shared_header_reaches_its_users(built: Path, capfd: pytest.CaptureFixture[str]) -> None:
    edit(built / "common/factor.h", "2.0f", "5.0f")
    assert build(built, capfd)[:2] == (0, ["kernel_src/toy_cpu.cpp", "torch-ext/torch_binding.cpp"])
    assert python(TWICE, str(built / KERNEL), cwd=built) == "[5.0, 5.0]\n"


def test_a_changed_python_file_does_not_compile_the_kernel(
    built: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    edit(built / KERNEL / "torch-ext/toy/__init__.py", "ops.twice(x)", "ops.twice(x) + 1")
    assert build(built, capfd)[:2] == (0, ["torch-ext/torch_binding.cpp"])
    assert "ops.twice(x) + 1" in (variant(built) / "__init__.py").read_text()


def test_another_compiler_starts_anew(built: Path, capfd: pytest.CaptureFixture[str]) -> None:
    stamp = built / KERNEL / ".build" / CPU_VARIANT / "tools.txt"
    edit(stamp, "torch 2", "torch 1")
    assert len(build(built, capfd)[1]) == 3


def test_a_failure_shows_the_command_and_the_first_error(
    built: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = (variant(built) / "metadata.json").read_bytes()
    edit(
        built / KERNEL / "kernel_src/toy_cpu.cpp", "return nullptr;", "return nullpointer; return also_wrong;"
    )
    code, _, output = build(built, capfd)
    assert code == 7
    errors = [line for line in output.splitlines() if "error: " in line and not line.startswith("error: ")]
    assert len(errors) == 1
    assert errors[0].startswith("kernel_src/toy_cpu.cpp:")
    assert "nullpointer" in errors[0]
    assert "failed, in kernels/toy: " in output
    assert " -c kernel_src/toy_cpu.cpp " in output
    assert output.splitlines()[-1].startswith("error: kernels/toy did not compile for cpu; all output is in ")
    assert "Traceback" not in output
    log = built / KERNEL / ".build" / CPU_VARIANT / "build.log"
    assert "also_wrong" in log.read_text()
    # What was built before is still there, and still whole.
    assert (variant(built) / "metadata.json").read_bytes() == before
    assert official.digest_violations(variant(built)) == []


def test_warnings_of_the_compiler_are_shown(built: Path, capfd: pytest.CaptureFixture[str]) -> None:
    edit(
        built / KERNEL / "kernel_src/toy_cpu.cpp",
        "  return nullptr;",
        "#warning look here\n  return nullptr;",
    )
    code, _, output = build(built, capfd)
    assert code == 0
    assert "look here" in output


def test_verbose_shows_each_command(built: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.utime(built / KERNEL / "kernel_src/toy_cpu.cpp")
    assert "-fvisibility=hidden" in build(built, capfd, "-v", "--jobs", "1")[2]


def test_the_first_failure_is_found_among_others() -> None:
    lines = [
        "[1/4] compile a.cpp",
        "FAILED: [code=1] a.o ",
        "g++ -c a.cpp",
        "In file included from a.cpp:1:",
        "a.h:7:3: error: one",
        "    7 | x",
        "a.h:9:3: error: two",
        "[2/4] compile b.cpp",
        "FAILED: [code=1] b.o ",
        "g++ -c b.cpp",
        "b.cpp:1:1: error: three",
        "ninja: build stopped: subcommand failed.",
    ]
    command, error = compiling.first_failure(lines)
    assert command == "g++ -c a.cpp"
    assert error == ["a.h:7:3: error: one", "    7 | x"]
    assert compiling.first_failure(["ninja: error: bad file"]) == ("", ["ninja: error: bad file"])


def test_nvcc_s_threads_are_not_part_of_the_commands(built_cuda: Path) -> None:
    (directory,) = (built_cuda / KERNEL / ".build").iterdir()
    assert "threads" not in (directory / "build.ninja").read_text()
    assert (
        json.loads((variant(built_cuda, "cu130") / "metadata.json").read_text())["backend"]["type"] == "cuda"
    )
