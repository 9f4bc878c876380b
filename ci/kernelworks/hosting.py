# SPDX-License-Identifier: Apache-2.0
"""`kernelworks hub`: serves a Hub of one's own, and keeps its tokens, its organizations and its data."""

from __future__ import annotations

import argparse
import importlib
import ipaddress
import socket
import sys
from pathlib import Path
from typing import Any

from kernelworks.checking import FOUND
from kernelworks.errors import HostingError
from kernelworks.hubserver import auth, logs

Subparsers = argparse._SubParsersAction  # argparse names the type of add_subparsers nowhere else
PORT = 8000


def register(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    """Add `kernelworks hub` and the commands below it."""
    parser = subparsers.add_parser("hub", help="serve a Hub of your own", description=__doc__)
    # --root is the data directory here; it has nothing to do with the repository.
    parser.set_defaults(in_repository=False)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", help="one of these")
    _register_serve(commands)
    _register_token(commands)
    _register_org(commands)
    _register_check(commands)


def _register_serve(commands: Subparsers[argparse.ArgumentParser]) -> None:
    serve = commands.add_parser(
        "serve",
        help="serve the data in a directory",
        description="Serve a Hub until SIGTERM or Ctrl-C. Clients use it with HF_ENDPOINT=http://HOST:PORT.",
    )
    _add_root(serve)
    serve.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)")
    serve.add_argument(
        "--port", type=_port, default=PORT, help="the port; 0 takes a free one (default: %(default)s)"
    )
    serve.add_argument("--token-file", type=Path, help="who may write; without it the Hub is read-only")
    serve.add_argument("--open", action="store_true", help="anyone on this machine may write")
    reading = serve.add_mutually_exclusive_group()
    reading.add_argument(
        "--public-read", dest="private", action="store_false", help="anyone may read what is public (default)"
    )
    reading.add_argument("--private", action="store_true", help="nothing is readable without a token")
    serve.add_argument(
        "--public-url", help="what clients call this Hub, behind a proxy that passes no Host on"
    )
    serve.add_argument(
        "--log-file", type=Path, help="where the log goes, a line of JSON each (default: stderr)"
    )
    serve.set_defaults(run=run_serve, private=False)


def _register_token(commands: Subparsers[argparse.ArgumentParser]) -> None:
    token = commands.add_parser(
        "token",
        help="make, list and revoke tokens",
        description="Keep the tokens of a Hub; a running server follows.",
    )
    verbs = token.add_subparsers(title="commands", required=True, metavar="COMMAND", help="one of these")
    adding = verbs.add_parser(
        "add", help="make a token", description="Make a token, and print it: the file keeps only its sha256."
    )
    adding.add_argument(
        "--name", required=True, help="what the log calls its holder, for instance ci-rmsnorm"
    )
    adding.add_argument(
        "--org", action="append", required=True, help="an organization it is for, * for all; may be repeated"
    )
    rights = adding.add_mutually_exclusive_group(required=True)
    rights.add_argument("--read", dest="write", action="store_false", help="it reads private repositories")
    rights.add_argument("--write", action="store_true", help="it reads, and writes")
    adding.add_argument("--days", type=_positive, help="how long it is valid (default: until it is revoked)")
    adding.set_defaults(run=run_token_add)
    listing = verbs.add_parser("list", help="list the tokens", description="List the tokens, a line each.")
    listing.set_defaults(run=run_token_list)
    revoking = verbs.add_parser("revoke", help="revoke a token", description="Revoke a token by its name.")
    revoking.add_argument("--name", required=True, help="the name it was made with")
    revoking.set_defaults(run=run_token_revoke)
    for each in (adding, listing, revoking):
        each.add_argument("--token-file", type=Path, required=True, help="the file of `hub serve`")


def _register_org(commands: Subparsers[argparse.ArgumentParser]) -> None:
    org = commands.add_parser(
        "org",
        help="trust an organization, or no longer",
        description="Say whether clients load an organization's kernels without trust_remote_code.",
    )
    org.add_argument("name", metavar="ORG", help="the organization")
    _add_root(org)
    flag = org.add_mutually_exclusive_group()
    flag.add_argument("--trusted", action="store_const", const=True, help="it is a trusted publisher")
    flag.add_argument("--untrusted", dest="trusted", action="store_const", const=False, help="it is not")
    org.set_defaults(run=run_org, trusted=None)


def _register_check(commands: Subparsers[argparse.ArgumentParser]) -> None:
    check = commands.add_parser(
        "check",
        help="look for damage in the data",
        description="Check git objects, refs and the content of large files; print a line for each finding.",
    )
    _add_root(check)
    check.set_defaults(run=run_check)


def _add_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", type=Path, required=True, metavar="DIR", help="the directory with the data")


def run_serve(arguments: argparse.Namespace) -> int:
    """Serve until told to stop."""
    tokens = tokens_of(arguments)
    data_module, serving = _server_module("data"), _server_module("serving")
    data = data_module.prepare(
        arguments.root, private=arguments.private, public_url=_url(arguments.public_url)
    )
    for warning in data.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    auth.read_flags(data.settings.organizations)
    try:
        logs.set_up(arguments.log_file)
    except OSError as error:
        raise HostingError(
            f"--log-file {arguments.log_file}: cannot be written: {error.strerror}; name another file"
        ) from error
    serving.serve(data, tokens, host=arguments.host, port=arguments.port, say=print)
    return 0


def tokens_of(arguments: argparse.Namespace) -> auth.Tokens:
    """Who may write, as the options say it together."""
    if arguments.open and arguments.token_file:
        raise HostingError(
            "--open lets anyone write, so --token-file would change nothing; leave one of them out"
        )
    if arguments.open and not is_loopback(arguments.host):
        raise HostingError(
            f"--open would let everyone who reaches {arguments.host} replace code that others run; "
            "give a --token-file, or listen on 127.0.0.1"
        )
    if arguments.private and not arguments.token_file:
        raise HostingError(
            "--private needs a --token-file, or nobody could read; make one with `hub token add`"
        )
    if arguments.token_file:
        return auth.Tokens.from_file(arguments.token_file)
    return auth.Tokens.open() if arguments.open else auth.Tokens.none()


def is_loopback(host: str) -> bool:
    """Whether every address of this name can be reached from this machine alone."""
    try:
        found = socket.getaddrinfo(host, None)
    except OSError as error:
        raise HostingError(f"--host {host}: is no address of this machine: {error.strerror}") from error
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def run_token_add(arguments: argparse.Namespace) -> int:
    """Print the token on stdout, alone, and what to know about it on stderr."""
    token = auth.add(
        arguments.token_file, arguments.name, arguments.org, write=arguments.write, days=arguments.days
    )
    print("this is shown once; clients take it as HF_TOKEN:", file=sys.stderr)
    print(token)
    return 0


def run_token_list(arguments: argparse.Namespace) -> int:
    """Print a line for each token."""
    for entry in auth.read_entries(arguments.token_file):
        rights = "write" if entry.write else "read"
        until = f"until {entry.expires}" if entry.expires else "until revoked"
        print(f"{entry.name}  {rights}  {','.join(entry.orgs)}  since {entry.created}  {until}")
    return 0


def run_token_revoke(arguments: argparse.Namespace) -> int:
    """Take a token away."""
    auth.revoke(arguments.token_file, arguments.name)
    print(f"revoked {arguments.name}")
    return 0


def run_org(arguments: argparse.Namespace) -> int:
    """Set the flag, where one is given, and print what holds now."""
    settings = _server_module("data").require(arguments.root)
    if arguments.trusted is not None:
        auth.set_trusted(settings.organizations, arguments.name, arguments.trusted)
    trusted = auth.read_flags(settings.organizations).get(arguments.name, False)
    print(f"{arguments.name} is {'a trusted publisher' if trusted else 'not a trusted publisher'}")
    if not (settings.repositories / arguments.name).is_dir():
        print(f"note: nothing of {arguments.name} is on this Hub yet", file=sys.stderr)
    return 0


def run_check(arguments: argparse.Namespace) -> int:
    """Print each finding on a line, and a summary."""
    settings = _server_module("data").require(arguments.root)
    report = _server_module("fsck").check(settings)
    for finding in report.findings:
        print(finding)
    print(report)
    return FOUND if report.findings else 0


def _server_module(name: str) -> Any:
    """A part of the server; its libraries are an extra, which publishing and loading do without."""
    try:
        return importlib.import_module(f"kernelworks.hubserver.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("kernelworks"):
            raise
        raise HostingError(
            f"kernelworks hub needs {error.name}, which is not here; run `pip install 'kernelworks[hub]'`"
        ) from error


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days; give 1 or more")
    return int(text)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; give a number up to 65535")
    return int(text)


def _url(text: str | None) -> str | None:
    if text is not None and not text.startswith(("http://", "https://")):
        raise HostingError(
            f"--public-url {text}: does not begin with http:// or https://; write it as clients do"
        )
    return text.rstrip("/") if text else None
