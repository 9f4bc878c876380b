# SPDX-License-Identifier: Apache-2.0
"""docs/hub.md is held to what it says: its commands run, its proxies proxy, its backup can be restored."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import hub_kernel
import pytest
from hub_process import RunningHub, client, running_hub
from huggingface_hub import CommitOperationAdd, HfApi

from kernelworks import catalog
from kernelworks.cli import main, parse

TESTS = Path(__file__).parent
TEXT = (catalog.find_root(TESTS) / "docs" / "hub.md").read_text()
PATIENCE = 180
PUBLISH = """
import sys
from pathlib import Path
import hub_kernel
folder = Path(sys.argv[2])
(folder / "benchmarks").mkdir(parents=True)
(folder / "benchmarks/large.bin").write_bytes(bytes(3_000_000))
print(hub_kernel.publish(sys.argv[1], folder, repo="acme/rmsnorm"))
"""


def blocks(language: str) -> list[str]:
    """The blocks of the document in one language, in their order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.M | re.S)


def block(language: str, word: str) -> str:
    """The one block that holds a word."""
    (found,) = [each for each in blocks(language) if word in each]
    return found


def shell(text: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a block as a person does who pastes it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-euc", text],
        cwd=folder,
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it holds, or for as long as patience lasts."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


COMMANDS = sorted(set(re.findall(r"^kernelworks (.*?)(?: >.*)?$", "".join(blocks("sh")), re.M)))


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_is_one(words: str) -> None:
    assert callable(parse(words.split()).run)


@pytest.mark.slow
def test_the_quick_start_and_the_tokens(tmp_path: Path) -> None:
    """The server of the first block, the tokens of the second, trust; then the lines that load."""
    start = block("sh", "> ci.token").replace("hub-data --token-file", "hub-data --port 0 --token-file")
    rest = block("sh", "--days 90"), block("sh", "--trusted")
    program = start.rstrip() + ' > ready & trap "kill $!" EXIT\nread -r _ < wait\n'
    os.mkfifo(tmp_path / "wait")
    runner = threading.Thread(target=shell, args=(program, tmp_path))
    runner.start()
    try:
        ready = tmp_path / "ready"
        wait_for(lambda: ready.exists() and ready.read_text().endswith("\n"))
        endpoint = ready.read_text().split()[1].rstrip(",")
        token = (tmp_path / "ci.token").read_text().strip()
        hub_kernel.publish(endpoint, tmp_path / "kernel", token=token, repo="acme/rmsnorm")
        for each in rest:
            done = shell(each, tmp_path)
            assert done.returncode == 0, done.stderr
        snippet = "".join(blocks("python")).replace("http://127.0.0.1:8000", endpoint)
        assert endpoint in snippet
        environment = RunningHub(tmp_path, "", None, tmp_path).environment(tmp_path / "home")  # type: ignore[arg-type]
        assert "result 4" in client(f"{snippet}\nprint('result', rmsnorm.scale(2))", env=environment)
    finally:
        (tmp_path / "wait").write_text("\n")
        runner.join(PATIENCE)


def test_the_unit_is_one(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "kernelhub.service"
    text = block("ini", "[Service]").replace("/opt/kernelhub/bin/kernelworks", "/bin/true")
    unit.write_text(text.replace("User=kernelhub", "User=root"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert unit.name not in done.stderr
    (command,) = re.findall(r"^ExecStart=\S+ (.*)$", text, re.M)
    assert callable(parse(command.split()).run)


def test_a_copy_of_running_data_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Commits go on while it is taken; the copy is served, and has the same kernel."""
    if shutil.which("rsync") is None:
        pytest.skip("rsync is not installed")
    with running_hub(tmp_path / "hub-data") as hub:
        hub_kernel.publish(hub.endpoint, tmp_path / "kernel")
        api, enough = HfApi(endpoint=hub.endpoint, token=False), threading.Event()
        commits = []

        def commit_on() -> None:
            while not enough.is_set():
                operations = [CommitOperationAdd("benchmarks/noise.bin", os.urandom(300_000))]
                commits.append(
                    api.create_commit(
                        hub_kernel.REPO, operations, commit_message="x", repo_type="kernel", revision="v1"
                    )
                )

        writer = threading.Thread(target=commit_on)
        writer.start()
        try:
            wait_for(lambda: len(commits) > 1)
            done = shell(block("sh", "rsync"), tmp_path)
            before = len(commits)
            wait_for(lambda: len(commits) > before)
        finally:
            enough.set()
            writer.join(PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no damage" in done.stdout
    with running_hub(tmp_path / "backup") as restored:
        found = HfApi(endpoint=restored.endpoint, token=False).list_repo_commits(
            hub_kernel.REPO, repo_type="kernel", revision="v1"
        )
        assert "scale-it v1.1" in [each.title for each in found]
    assert main(["hub", "check", "--root", str(tmp_path / "backup")]) == 0
    capsys.readouterr()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority of our own, and a certificate of it for localhost."""
    folder = tmp_path_factory.mktemp("tls")
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    (folder / "names").write_text("subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n")
    for words in (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem",
        "req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout hub.key -out hub.csr",
        "x509 -req -in hub.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out hub.pem",
    ):
        subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True)
    return folder


@contextmanager
def proxied(command: list[str], port: int, **environment: str) -> Iterator[str]:
    """A proxy that listens; the address of it."""
    process = subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.PIPE)

    def listens() -> bool:
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return True
        return False

    try:
        wait_for(listens)
        yield f"https://localhost:{port}"
    finally:
        process.terminate()
        process.wait(PATIENCE)


def free_port() -> int:
    """A port that nobody has at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def nginx(folder: Path, hub: RunningHub, port: int, authority: Path) -> list[str]:
    """nginx with the block of the document, on another port and with another certificate."""
    text = block("nginx", "proxy_pass")
    for old, new in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("hub.example.org", "localhost"),
        ("/etc/ssl/hub", str(authority / "hub")),
        ("http://127.0.0.1:8000;", f"{hub.endpoint};"),
    ):
        assert old in text
        text = text.replace(old, new)
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off;\npid {folder}/pid;\nerror_log stderr;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary}{text}}}\n"
    )
    return ["nginx", "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]


def caddy(folder: Path, hub: RunningHub, port: int, authority: Path) -> list[str]:
    """Caddy with the block of the document, on another port and with another certificate."""
    text = block("caddy", "reverse_proxy")
    for old, new in (
        ("hub.example.org {", f"https://localhost:{port} {{\ntls {authority}/hub.pem {authority}/hub.key"),
        ("127.0.0.1:8000", hub.endpoint.removeprefix("http://")),
    ):
        assert old in text
        text = text.replace(old, new)
    (folder / "Caddyfile").write_text(f"{{\nadmin off\nauto_https disable_redirects\n}}\n{text}")
    return ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


@pytest.mark.slow
@pytest.mark.parametrize("proxy", [nginx, caddy])
def test_a_proxy_with_a_private_authority(
    tmp_path: Path, authority: Path, proxy: Callable[[Path, RunningHub, int, Path], list[str]]
) -> None:
    """3 MB are published and loaded through TLS; addresses that the server gives out are the proxy's."""
    if shutil.which(proxy.__name__) is None:
        pytest.skip(f"{proxy.__name__} is not installed")
    with running_hub(tmp_path / "hub", trusted=("acme",)) as hub:
        port = free_port()
        command = proxy(tmp_path, hub, port, authority)
        with proxied(command, port, XDG_DATA_HOME=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path)) as endpoint:
            environment = hub.environment(tmp_path / "home") | {
                "HF_ENDPOINT": endpoint,
                "SSL_CERT_FILE": str(authority / "ca.pem"),
                "PYTHONPATH": str(TESTS),
            }
            client(PUBLISH, endpoint, str(tmp_path / "kernel"), env=environment)
            said = client(
                "from huggingface_hub import HfApi\nfrom kernels import get_kernel\n"
                "api = HfApi()\n"
                "print(api.create_repo('acme/rmsnorm', repo_type='kernel', exist_ok=True))\n"
                "print(len(list(api.list_repo_tree('acme/rmsnorm', 'build/torch-cpu', repo_type='kernel', "
                "revision='refs/heads/v1'))))\n"
                "print('result', get_kernel('acme/rmsnorm', version=1).scale(21))",
                env=environment,
            )
        clients = {line["client"] for line in hub.requests()}
    assert said.splitlines()[-3:] == [f"{endpoint}/kernels/acme/rmsnorm", "2", "result 42"]
    assert clients == {"127.0.0.1"}
