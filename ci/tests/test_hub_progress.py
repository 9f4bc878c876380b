# SPDX-License-Identifier: Apache-2.0
"""The bar of an upload, as a terminal shows it, and the line where there is no terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hub_process import RunningHub
from publications import REPO, branches
from rich.console import Console

from kernelworks import hub_progress
from kernelworks.hub import Hub
from kernelworks.hub_data import Edit


@pytest.fixture
def there(hub: RunningHub) -> RunningHub:
    Hub(hub.endpoint).create_repository(REPO, private=False)
    return hub


def upload(hub: RunningHub, content: bytes | Path) -> None:
    edits, parent = [Edit("large.bin", content)], branches(hub)["main"]
    Hub(hub.endpoint).commit(REPO, "main", edits, parent=parent, title="large", description="")


def test_a_terminal_sees_how_much_was_sent(
    there: RunningHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    monkeypatch.setattr(hub_progress, "Console", lambda **_: console)
    path = tmp_path / "large.bin"
    path.write_bytes(bytes(3_000_000))
    upload(there, path)
    assert "sending" in screen.getvalue()
    assert "4.0/4.0 MB" in screen.getvalue(), "the request, which carries the file in base64"
    assert Hub(there.endpoint).tree(REPO, "main")["large.bin"].size == 3_000_000


def test_into_a_pipe_goes_one_line(there: RunningHub, capsys: pytest.CaptureFixture[str]) -> None:
    upload(there, bytes(3_000_000))
    assert capsys.readouterr().err == "sending 3.0 MB\n"


def test_small_uploads_are_silent(there: RunningHub, capsys: pytest.CaptureFixture[str]) -> None:
    upload(there, bytes(3_000))
    assert capsys.readouterr().err == ""
