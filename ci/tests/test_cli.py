# SPDX-License-Identifier: Apache-2.0
"""The command line: its verbs, its exit codes, and one sentence for what goes wrong."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from kernelworks import __version__, cli
from kernelworks.cli import main


def subcommands() -> dict[str, argparse.ArgumentParser]:
    (action,) = (each for each in cli.parser()._actions if isinstance(each, argparse._SubParsersAction))
    return dict(action.choices)


def leaves(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """The commands that can be run: this one, or those below it."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [leaf for action in below for each in action.choices.values() for leaf in leaves(each)] or [parser]


def test_every_verb_has_help_and_something_to_run() -> None:
    assert {"build", "vendor"} <= set(subcommands())
    for name, parser in subcommands().items():
        assert parser.description, name
        assert all(callable(leaf.get_default("run")) for leaf in leaves(parser)), name
        assert "--root" in parser.format_help() or parser.get_default("in_repository") is False, name


def test_expected_failures_are_one_sentence(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "nope", "--root", str(repository)]) == 3
    assert capsys.readouterr() == ("", "error: no kernel 'nope' here; there is toy\n")


def test_the_repository_is_found_from_the_working_directory(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(repository / "kernels/toy/torch-ext")
    assert main(["vendor", "--check"]) == 0
    monkeypatch.chdir(tmp_path)
    assert main(["vendor", "--check"]) == 3


def test_ctrl_c_is_quiet(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kernelworks.catalog.load_all", interrupted)
    assert main(["vendor", "--root", str(repository)]) == 130
    assert capsys.readouterr() == ("", "")


def test_it_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kernelworks", "--version"], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == (f"kernelworks {__version__}\n", 0)


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error(repository: Path) -> None:
    (repository / "kernels/toy/kernel_src/vendor/stray.h").touch()
    code = "import sys; from kernelworks.cli import main; sys.stdin.read(1); sys.exit(main(sys.argv[1:]))"
    child = subprocess.Popen(
        [sys.executable, "-c", code, "vendor", "--root", str(repository)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    child.stdin.write(b"x")
    child.stdin.close()
    assert child.stderr.read() == b""
    assert child.wait() == 0


def test_words_after_a_double_dash_are_refused_where_nothing_takes_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["list", "--", "-x"])
    assert "nothing may follow --" in capsys.readouterr().err
