# SPDX-License-Identifier: Apache-2.0
"""Tokens and the trust in organizations, from their files to what a caller may do."""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from kernelworks.errors import HostingError
from kernelworks.hubserver import auth
from kernelworks.hubserver.auth import Organizations, Tokens
from kernelworks.hubserver.documents import Reread


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where tokens are kept; nothing is there yet."""
    return tmp_path / "tokens.json"


def bearer(token: str) -> str:
    return f"Bearer {token}"


def edit(file: Path, **changes: object) -> None:
    """Change the first entry, as an operator's editor would."""
    document = json.loads(file.read_text())
    document["tokens"][0].update(changes)
    file.write_text(json.dumps(document))


def test_a_token_opens_its_organizations_and_no_other(file: Path) -> None:
    token = auth.add(file, "ci", ["acme", "beta"], write=True, days=None)
    caller = Tokens.from_file(file).caller(bearer(token))
    assert caller.known
    assert caller.name == "ci"
    assert [caller.may_write(org) for org in ("acme", "beta", "other")] == [True, True, False]
    assert caller.refusal("acme") is None
    status, sentence = caller.refusal("other") or (0, "")
    assert status == 403
    assert "other" in sentence


def test_the_file_does_not_hold_the_token(file: Path) -> None:
    token = auth.add(file, "ci", ["acme"], write=True, days=None)
    assert token.startswith("kw_")
    assert token not in file.read_text()
    assert token.removeprefix("kw_") not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_read_only_tokens_read(file: Path) -> None:
    token = auth.add(file, "r", ["acme"], write=False, days=1)
    caller = Tokens.from_file(file).caller(bearer(token))
    assert caller.may_read("acme")
    assert not caller.may_write("acme")
    assert caller.refusal("acme") == (
        403,
        "token r may only read acme; ask for one that may write to acme",
    )


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "bearer hf_somebody_elses", "Digest kw_x", "kw_x"]
)
def test_who_has_no_token_of_ours_is_unknown_and_may_write_nothing(file: Path, header: str | None) -> None:
    auth.add(file, "ci", ["*"], write=True, days=None)
    caller = Tokens.from_file(file).caller(header)
    assert not caller.known
    assert not caller.may_read("acme")
    status, sentence = caller.refusal("acme") or (0, "")
    assert status == 401
    assert ("not known" in sentence) == ("hf_" in (header or ""))


def test_an_expired_token_says_so(file: Path) -> None:
    token = auth.add(file, "ci", ["acme"], write=True, days=1)
    tokens = Tokens.from_file(file)
    assert tokens.caller(bearer(token)).may_write("acme")
    edit(file, expires=(datetime.now(timezone.utc) - timedelta(seconds=1)).isoformat())
    caller = tokens.caller(bearer(token))
    assert caller.expired
    assert not caller.may_read("acme")
    status, sentence = caller.refusal("acme") or (0, "")
    assert status == 401
    assert sentence.startswith("token expired")


def test_revoking_and_adding_reach_a_running_server(file: Path) -> None:
    first = auth.add(file, "first", ["acme"], write=True, days=None)
    tokens = Tokens.from_file(file)
    second = auth.add(file, "second", ["acme"], write=True, days=None)
    assert tokens.caller(bearer(second)).may_write("acme")
    auth.revoke(file, "first")
    assert not tokens.caller(bearer(first)).known
    assert tokens.caller(bearer(second)).known


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 1}', '{"format": 1, "tokens": [{"name": "x"}]}']
)
def test_a_damaged_file_is_one_sentence_and_shuts_a_running_server(file: Path, content: str) -> None:
    token = auth.add(file, "ci", ["acme"], write=True, days=None)
    tokens, good = Tokens.from_file(file), file.read_text()
    file.write_text(content)
    with pytest.raises(HostingError) as raised:
        Tokens.from_file(file)
    assert str(file) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not tokens.caller(bearer(token)).known
    file.write_text(good)
    assert tokens.caller(bearer(token)).known


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sha256", "zz"),
        ("sha256", "ab"),
        ("expires", "soon"),
        ("expires", "2026-01-01"),
        ("write", "no"),
        ("other", 1),
    ],
)
def test_a_damaged_entry_is_not_taken_for_a_token(file: Path, key: str, value: object) -> None:
    auth.add(file, "ci", ["acme"], write=True, days=None)
    edit(file, **{key: value})
    with pytest.raises(HostingError, match="an entry is damaged"):
        Tokens.from_file(file)


@pytest.mark.parametrize(("mode", "taken"), [(0o600, True), (0o640, True), (0o644, False), (0o620, False)])
def test_a_file_that_others_may_read_is_refused(file: Path, mode: int, taken: bool) -> None:
    auth.add(file, "ci", ["acme"], write=True, days=None)
    file.chmod(mode)
    if taken:
        auth.add(file, "more", ["acme"], write=True, days=None)
        assert file.stat().st_mode & 0o777 == mode, "a service that may read it still may"
    else:
        with pytest.raises(HostingError, match="chmod 600"):
            Tokens.from_file(file)


def test_names_are_given_once_and_only_there_revoked(file: Path) -> None:
    auth.add(file, "ci", ["acme"], write=True, days=None)
    with pytest.raises(HostingError, match="has a token of this name"):
        auth.add(file, "ci", ["acme"], write=True, days=None)
    with pytest.raises(HostingError, match="there is ci"):
        auth.revoke(file, "cj")


def test_no_token_is_lost_when_several_commands_add_at_once(file: Path) -> None:
    names = [f"t{number}" for number in range(8)]
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(lambda name: auth.add(file, name, ["acme"], write=True, days=None), names))
    assert sorted(entry.name for entry in auth.read_entries(file)) == names


def test_every_entry_is_compared(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of an answer must not tell which entry agreed, nor how much of it."""
    tokens = [auth.add(file, f"t{number}", ["acme"], write=True, days=None) for number in range(4)]
    entries, compared = auth.read_entries(file), []
    real = auth.hmac.compare_digest
    monkeypatch.setattr(auth.hmac, "compare_digest", lambda a, b: compared.append(a) or real(a, b))
    found = auth.match(entries, tokens[0])
    assert found is not None
    assert found.name == "t0"
    assert len(compared) == len(entries)


def test_a_browser_may_look_but_not_write(file: Path) -> None:
    """It sends remembered credentials along with whatever form another site shows."""
    token = auth.add(file, "ci", ["acme"], write=True, days=None)
    header = "Basic " + base64.b64encode(f"me:{token}".encode()).decode()
    caller = Tokens.from_file(file).caller(header)
    assert caller.may_read("acme")
    assert not caller.may_write("acme")
    assert not Tokens.from_file(file).caller("Basic !!!").known


def test_without_a_file_nobody_writes_and_open_lets_everybody() -> None:
    assert Tokens.none().caller("Bearer x").refusal("acme") is not None
    assert Tokens.open().caller(None).refusal("acme") is None
    assert Tokens.open().caller("Bearer hf_x").refusal("acme") is None


def test_organizations_are_trusted_only_when_the_operator_says_so(tmp_path: Path) -> None:
    flags, repositories = tmp_path / "organizations.json", tmp_path / "repos"
    (repositories / "acme").mkdir(parents=True)
    organizations = Organizations(flags, repositories)
    assert organizations.exists("acme")
    assert not organizations.trusted("acme")
    assert not organizations.exists("other")
    assert not organizations.exists("")
    auth.set_trusted(flags, "acme", True)
    auth.set_trusted(flags, "other", False)
    assert organizations.trusted("acme")
    assert organizations.exists("other")
    auth.set_trusted(flags, "acme", False)
    assert not organizations.trusted("acme")


def test_no_flag_is_lost_when_several_commands_set_one(tmp_path: Path) -> None:
    flags, names = tmp_path / "organizations.json", [f"o{number}" for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: auth.set_trusted(flags, name, True), names))
    assert sorted(auth.read_flags(flags)) == names


def test_flags_that_cannot_be_written_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HostingError, match="cannot be written"):
        auth.set_trusted(tmp_path / "file/organizations.json", "acme", True)


def test_a_slower_reader_does_not_bring_the_old_content_back(file: Path) -> None:
    """Two threads at once: the one that read before a token was revoked comes to its end last."""
    old, new = ((1,), "old"), ((2,), "new")
    turns = [new, old, new]

    class Interrupted(Reread[str]):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if turns == [old, new]:
                self.get()  # of the other thread, which had begun earlier

        def _now(self) -> tuple[int, ...]:
            self.__dict__["turn"] = turns.pop(0)
            return self.__dict__["turn"][0]

    found = Interrupted(file, lambda path: found.__dict__["turn"][1])
    found.get()
    assert found.get() == "new"


def test_damaged_flags_trust_nobody(tmp_path: Path) -> None:
    flags = tmp_path / "organizations.json"
    auth.set_trusted(flags, "acme", True)
    organizations = Organizations(flags, tmp_path)
    assert organizations.trusted("acme")
    flags.write_text('{"format": 1, "trusted": {"acme": "yes"}}')
    assert not organizations.trusted("acme")
    with pytest.raises(HostingError, match="true or false"):
        auth.read_flags(flags)
