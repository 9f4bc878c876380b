# SPDX-License-Identifier: Apache-2.0
"""The pages, as a person's browser gets them from a real server."""

from __future__ import annotations

import base64
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hub_kernel
import pytest
from hub_process import RunningHub, add_token, client, running_hub
from huggingface_hub import CommitOperationAdd, HfApi

from kernelworks.hubserver import data

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
ATTACK = '"><img src=x onerror="window.pwned=1"><script>window.pwned=1</script>'
EVIL = "evil-org/evil-kernel"
HIDDEN = "acme/hidden-kernel"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    """A Hub with kernels of a trusted organization and of another, a private one, and one of attacks."""
    folder = tmp_path_factory.mktemp("pages")
    tokens = folder / "tokens.json"
    writer = add_token(tokens, "ci", "*", write=True)
    with running_hub(folder / "hub", tokens=tokens, trusted=("acme",)) as found:
        api = HfApi(endpoint=found.endpoint, token=writer)
        hub_kernel.publish(found.endpoint, folder / "one", token=writer)
        hub_kernel.publish(found.endpoint, folder / "two", token=writer, version=2, factor=3)
        hub_kernel.publish(found.endpoint, folder / "other", token=writer, repo="beta/scale-it")
        api.create_repo(HIDDEN, repo_type="kernel", private=True)
        attack(api, folder / "evil")
        yield found


@pytest.fixture(scope="module")
def reader(hub: RunningHub) -> str:
    """A token that may read what is private in acme."""
    return add_token(hub.root.parent / "tokens.json", "reader", "acme", write=False)


def attack(api: HfApi, folder: Path) -> None:
    """Everything that a writer chooses freely, chosen badly."""
    variant = hub_kernel.write_variant(folder, name="torch-cpu")
    shutil.copytree(variant, variant.with_name("torch-<img src=x onerror=window.pwned=1>"))
    text = (variant / "metadata.json").read_text()
    text = text.replace('"type": "cpu"', '"type": "cuda", "archs": ["<b>9.0</b>"]')
    (variant / "metadata.json").write_text(text)
    card = f"---\nlicense: {ATTACK!r}\ntags: [{ATTACK!r}]\n---\n# {ATTACK}\n[x](javascript:window.pwned=1)\n"
    api.create_repo(EVIL, repo_type="kernel")
    api.create_branch(EVIL, branch="v1", repo_type="kernel")
    files = [path for path in folder.rglob("*") if path.is_file()]
    build = [CommitOperationAdd(str(path.relative_to(folder)), path) for path in files]
    readme = [CommitOperationAdd("README.md", card.encode())]
    for operations, revision in ((build, "v1"), (readme, "main")):
        api.create_commit(
            EVIL, operations, commit_message=f"{ATTACK}\n\n{ATTACK}", repo_type="kernel", revision=revision
        )


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser, where there is one."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no chromium in PATH")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """A page whose console must stay empty, and which asks no other server for anything."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    found = context.new_page()
    said: list[str] = []
    asked: set[str] = set()
    found.on("console", lambda message: said.append(message.text))
    found.on("pageerror", lambda error: said.append(str(error)))
    found.on("dialog", lambda dialog: said.append(dialog.message))
    found.on("request", lambda request: asked.add(re.sub(r"^(\w+://[^/]*).*", r"\1", request.url)))
    yield found
    context.close()
    assert said == []
    assert len([origin for origin in asked if origin.startswith("http")]) <= 1, asked


def get(hub: RunningHub, path: str, **headers: str) -> tuple[int, str]:
    """A page without a browser: its status and its text."""
    request = urllib.request.Request(hub.endpoint + path, headers=headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def basic(token: str) -> str:
    return "Basic " + base64.b64encode(f"me:{token}".encode()).decode()


def test_the_index_leads_to_a_kernel(hub: RunningHub, page: Any) -> None:
    page.goto(hub.endpoint)
    page.click("text=scale-it >> nth=0")
    assert page.url == f"{hub.endpoint}/acme/scale-it"
    assert page.inner_text("h1") == "acme/scale-it"
    assert page.locator(".version h3").all_inner_texts() == ["v2 newest", "v1"]
    assert page.locator(".version td.mono").first.inner_text() == "torch-cpu"
    assert "Multiplies by 3." in page.inner_text(".card")
    assert page.locator(".card h2").inner_text() == "scale-it"
    assert "license" not in page.inner_text(".card")


@pytest.mark.slow
@pytest.mark.parametrize(("repo", "trusted"), [("acme/scale-it", True), ("beta/scale-it", False)])
def test_the_snippet_runs_as_a_click_selects_it(
    hub: RunningHub, page: Any, tmp_path: Path, repo: str, trusted: bool
) -> None:
    """P09, L11: what a person copies runs in a fresh process, and names the one repository it trusts."""
    page.goto(f"{hub.endpoint}/{repo}")
    page.click(".snippet")
    snippet = page.evaluate("window.getSelection().toString()").strip()
    assert ("trust_remote_code" in snippet) == (not trusted)
    assert "version=" in snippet
    environment = hub.environment(tmp_path / "home")
    del environment["HF_ENDPOINT"]
    said = client(f"{snippet}\nprint('result', scale_it.scale(7))", env=environment)
    assert f"result {21 if trusted else 14}" in said


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize(
    "path", ["/", "/acme/scale-it", f"/{EVIL}", "/kernels/acme/scale-it/tree/v1/build", "/no/no"]
)
def test_no_page_is_wider_than_the_screen(hub: RunningHub, chromium: Any, width: int, path: str) -> None:
    shown = chromium.new_page(viewport={"width": width, "height": 800})
    shown.goto(hub.endpoint + path)
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    shown.close()


def test_it_is_dark_where_the_reader_wants_it(hub: RunningHub, chromium: Any) -> None:
    colours = []
    for scheme in ("light", "dark"):
        shown = chromium.new_page(color_scheme=scheme)
        shown.goto(f"{hub.endpoint}/acme/scale-it")
        colours.append(shown.evaluate("getComputedStyle(document.body).backgroundColor"))
        shown.close()
    light, dark = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours)
    assert light > 3 * 200
    assert dark < 3 * 60


def test_nothing_that_a_writer_chooses_runs(hub: RunningHub, page: Any) -> None:
    """Card, commit, variant and metadata are shown as the text that they are."""
    page.goto(f"{hub.endpoint}/{EVIL}")
    commits = page.locator(".commit a.mono").evaluate_all("all => all.map(one => one.href)")
    assert ATTACK in page.inner_text(".commit .title")
    assert "<b>9.0</b>" in page.inner_text(".version table")
    for address in (page.url, *commits, f"{hub.endpoint}/kernels/{EVIL}/tree/v1/build", hub.endpoint):
        page.goto(address)
        assert page.evaluate("window.pwned") is None
        assert page.locator("script, img, iframe, [onerror], [onclick]").count() == 0


def test_pages_forbid_what_they_do_not_need(hub: RunningHub) -> None:
    with urllib.request.urlopen(f"{hub.endpoint}/acme/scale-it") as answer:
        policy = answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        text = answer.read().decode()
    assert policy.startswith("default-src 'none'; style-src 'self';")
    assert "unsafe" not in policy
    assert "<script" not in text
    assert "style=" not in text


def test_every_link_of_a_page_leads_somewhere(hub: RunningHub) -> None:
    seen, waiting = set(), {"/", "/acme/scale-it"}
    while waiting:
        path = waiting.pop()
        seen.add(path)
        status, text = get(hub, path)
        assert status == 200 or path == "/login", path
        if "/resolve/" not in path:
            waiting |= set(re.findall(r'href="(/[^"#]*)"', text)) - seen
    assert any("/commit/" in path for path in seen)
    assert any("/resolve/" in path for path in seen)
    assert any("/tree/" in path for path in seen)


def test_an_organization_may_be_called_like_a_part_of_an_address(hub: RunningHub) -> None:
    writer = add_token(hub.root.parent / "tokens.json", "tree", "tree", write=True)
    HfApi(endpoint=hub.endpoint, token=writer).create_repo("tree/x", repo_type="kernel")
    assert get(hub, "/kernels/tree/x/tree/main")[0] == 200


def test_addresses_that_clients_are_given_are_pages(hub: RunningHub) -> None:
    """create_repo and create_commit return them, and people open them."""
    api = HfApi(endpoint=hub.endpoint, token=False)
    tip = next(iter(api.list_repo_commits("acme/scale-it", repo_type="kernel", revision="v1"))).commit_id
    for path, words in (
        ("/kernels/acme/scale-it", "Versions"),
        (f"/kernels/acme/scale-it/commit/{tip}", "scale-it v1.1"),
        ("/kernels/acme/scale-it/tree/refs%2Fheads%2Fv1", "build/"),
        ("/kernels/acme/scale-it/tree/v1/build/torch-cpu", "metadata.json"),
    ):
        status, text = get(hub, path)
        assert (status, words in text) == (200, True), path


@pytest.mark.parametrize(
    "path",
    [
        "/kernels/acme/scale-it/commit/main",
        f"/kernels/acme/scale-it/commit/{'0' * 40}",
        "/kernels/acme/scale-it/tree/v9",
        "/kernels/acme/scale-it/tree/",
        "/kernels/acme/scale-it/tree/v1/%2e%2e",
        "/kernels/acme/scale-it/tree/v1/..%2f..",
        "/kernels/acme/scale-it/discussions/1",
        "/acme/..",
        "/acme/%3Cscript%3E",
        "/..%2f..%2fetc/passwd",
        "/a.git/b.git",
    ],
)
def test_addresses_of_nothing_are_pages_that_say_so(hub: RunningHub, path: str) -> None:
    status, text = get(hub, path)
    assert status in (400, 404)
    assert "<script>" not in text
    assert "Traceback" not in text


def test_private_kernels_are_seen_by_their_organization_alone(hub: RunningHub, reader: str) -> None:
    other = add_token(hub.root.parent / "tokens.json", "other", "beta", write=True)
    for header, seen in (
        ("", False),
        ("Bearer hf_unknown", False),
        (f"Bearer {other}", False),
        (f"Bearer {reader}", True),
        (basic(reader), True),
    ):
        headers = {"Authorization": header} if header else {}
        assert (HIDDEN.split("/")[1] in get(hub, "/", **headers)[1]) == seen, header
        status, text = get(hub, f"/{HIDDEN}", **headers)
        assert status == (200 if seen else 404)
        if not seen:
            missing = get(hub, "/acme/not-a-kernel", **headers)[1].replace("not-a-kernel", "hidden-kernel")
            assert text == missing, "a hidden one must look like a missing one"


def test_a_person_signs_in(hub: RunningHub, reader: str, chromium: Any) -> None:
    context = chromium.new_context(http_credentials={"username": "me", "password": reader})
    shown = context.new_page()
    shown.goto(hub.endpoint)
    assert HIDDEN.split("/")[1] not in shown.inner_text("main")
    shown.click("text=Sign in")
    assert shown.url == f"{hub.endpoint}/"
    assert shown.inner_text(".who") == "reader"
    assert HIDDEN.split("/")[1] in shown.inner_text("main")
    context.close()
    assert get(hub, "/login")[0] == 401


@pytest.mark.parametrize("damage", ["gone", "settings", "head"])
def test_a_damaged_repository_hides_no_other(tmp_path: Path, damage: str) -> None:
    with running_hub(tmp_path / "hub") as hub:
        hub_kernel.publish(hub.endpoint, tmp_path / "one")
        hub_kernel.publish(hub.endpoint, tmp_path / "two", repo="acme/broken-one")
        broken = tmp_path / "hub/repos/acme/broken-one.git"
        if damage == "gone":
            shutil.rmtree(broken / "objects")
        elif damage == "settings":
            (broken / "kernelworks.json").write_text("{")
        else:
            (broken / "refs/heads/v1").write_text("0" * 39 + "1\n")
        status, text = get(hub, "/")
        assert status == 200
        assert "scale-it" in text
        status, text = get(hub, "/acme/broken-one")
        assert status == 500
        assert re.search("cannot be read|object corrupted", text)


def test_an_empty_hub_says_what_to_do(tmp_path: Path) -> None:
    with running_hub(tmp_path / "hub") as hub:
        status, text = get(hub, "/")
        assert status == 200
        assert f"export HF_ENDPOINT={hub.endpoint}" in text
        assert data.MARKER in {path.name for path in (tmp_path / "hub").iterdir()}
