# SPDX-License-Identifier: Apache-2.0
"""`kernelworks test`: runs a kernel's tests against its build, loaded as a user loads it."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelworks import catalog, loader
from kernelworks.catalog import Kernel
from kernelworks.errors import BuildError
from kernelworks.process import stream

FAILED = 9  # the exit code when a test failed, or none ran


@dataclass(frozen=True)
class TestReport:
    """How the tests of one kernel went on one device."""

    kernel: str
    device: str
    passed: int
    failed: int
    errors: int
    skipped: int
    seconds: float
    returncode: int  # pytest's own, or the negative number of the signal that ended it

    @property
    def ran(self) -> int:
        """The number of tests that were not skipped."""
        return self.passed + self.failed + self.errors

    def __str__(self) -> str:
        counts = {
            "passed": self.passed,
            "failed": self.failed,
            "errors": self.errors,
            "skipped": self.skipped,
        }
        said = ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "no test was found"
        ended = f" (pytest ended with code {self.returncode})" if self.returncode not in (0, 1) else ""
        return f"{self.kernel} on {self.device}: {said} in {self.seconds:.1f} s{ended}"


def run_tests(root: Path, kernel: Kernel, device: str, extra: Sequence[str] = ()) -> TestReport:
    """Run pytest in a directory outside the repository, with the build in the place of the Hub."""
    require_build(kernel, device)
    with tempfile.TemporaryDirectory(prefix="kernelworks-") as folder:
        junit = Path(folder) / "report.xml"
        code = stream(
            command(root, kernel, device, junit, extra),
            on_line=print,
            cwd=Path(folder),
            env=environment(kernel, os.environ),
        )
        return read_report(junit, kernel.name, device, code)


def require_build(kernel: Kernel, device: str) -> None:
    """Say how to build what is missing; where there is no GPU, the CUDA tests skip themselves."""
    if device == "cuda" and not loader.sees_gpu():
        return
    if not loader.loads(kernel, device):
        raise BuildError(
            f"kernels/{kernel.name}/build has no {device} variant that this machine loads; "
            f"run `kernelworks build {kernel.name} --backend {device}`"
        )


def command(root: Path, kernel: Kernel, device: str, junit: Path, extra: Sequence[str]) -> list[str]:
    """The repository's own pytest options hold, though pytest runs elsewhere and leaves no cache behind."""
    configuration = root / "pyproject.toml"
    return [
        *(sys.executable, "-m", "pytest", str(kernel.directory / "tests"), f"--device={device}"),
        *(("-c", str(configuration)) if configuration.is_file() else ()),
        *(f"--rootdir={root}", "-p", "no:cacheprovider", f"--junit-xml={junit}"),
        f"--color={'yes' if sys.stdout.isatty() else 'no'}",
        *extra,
    ]


def environment(kernel: Kernel, inherited: Mapping[str, str]) -> dict[str, str]:
    """Offline, and with this kernel's directory for its name on the Hub; other kernels keep theirs."""
    others = [
        entry
        for entry in inherited.get("LOCAL_KERNELS", "").split(":")
        if entry and entry.split("=")[0] != kernel.repo_id
    ]
    overrides = ":".join([*others, f"{kernel.repo_id}={kernel.directory.resolve()}"])
    return {**inherited, "LOCAL_KERNELS": overrides, "HF_HUB_OFFLINE": "1"}


def read_report(junit: Path, kernel: str, device: str, returncode: int) -> TestReport:
    """Count what pytest wrote down; a process that died wrote nothing."""
    suites = list(ElementTree.parse(junit).getroot().iter("testsuite")) if junit.is_file() else []

    def total(key: str) -> int:
        return sum(int(suite.get(key, 0)) for suite in suites)

    failed, errors, skipped = total("failures"), total("errors"), total("skipped")
    return TestReport(
        kernel=kernel,
        device=device,
        passed=total("tests") - failed - errors - skipped,
        failed=failed,
        errors=errors,
        skipped=skipped,
        seconds=sum(float(suite.get("time", 0)) for suite in suites),
        returncode=returncode,
    )


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `kernelworks test`."""
    parser = subparsers.add_parser(
        "test",
        help="run a kernel's tests against its build",
        description=__doc__,
        usage="%(prog)s [-h] [--device cpu|cuda] [--root ROOT] NAME [NAME ...] [-- PYTEST_ARGUMENT ...]",
        epilog="What follows -- goes to pytest: kernelworks test rmsnorm -- -k strided -x",
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="kernels")
    parser.add_argument("--device", choices=catalog.BACKENDS, help="where to test (default: cpu, then cuda)")
    parser.set_defaults(run=run, extra=())


def run(arguments: argparse.Namespace) -> int:
    """Test each kernel on each device, and end with a line for each."""
    root = catalog.root_of(arguments.root)
    reports = [
        run_tests(root, kernel, device, arguments.extra)
        for kernel in catalog.load_all(root, arguments.names)
        for device in ((arguments.device,) if arguments.device else kernel.backends)
    ]
    for report in reports:
        print(report)
    return verdict(reports, strict=arguments.device is not None)


def verdict(reports: Sequence[TestReport], *, strict: bool) -> int:
    """The exit code; strict when a device was asked for by name, which then must have run something."""
    good = all(report.returncode == 0 and (report.ran or not strict) for report in reports)
    return 0 if good else FAILED
