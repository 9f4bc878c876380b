# SPDX-License-Identifier: Apache-2.0
"""Compiles kernels for this machine, or as a release, into the directories that the Hub holds."""

from __future__ import annotations

import argparse
import fcntl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kernelworks import catalog, provenance, toolchain, vendoring
from kernelworks.archs import Arch, parse
from kernelworks.catalog import Kernel
from kernelworks.compiling import compile_build
from kernelworks.errors import BuildError, VendorError
from kernelworks.ninja_file import EXTENSION
from kernelworks.plan import Build, Tools, plan, python_files, targets_of
from kernelworks.provenance import Origin
from kernelworks.variant import assemble


@dataclass(frozen=True)
class Request:
    """What the command line asks of every kernel it names."""

    backends: tuple[str, ...] | None
    archs: tuple[Arch, ...]
    profile: str
    jobs: int | None
    verbose: bool


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `kernelworks build`."""
    parser = subparsers.add_parser(
        "build", help="compile kernels so that get_kernel loads them", description=__doc__
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="kernels")
    parser.add_argument(
        "--backend",
        action="append",
        choices=catalog.BACKENDS,
        help="may be given twice (default: cpu, and cuda where torch sees a GPU or --arch is given)",
    )
    parser.add_argument(
        "--arch",
        nargs="+",
        action="extend",
        default=[],
        help="GPU architectures: 9.0, 9.0a, 12.0+PTX (default: this GPU's)",
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="how many compilers run at once (default: ninja's choice)"
    )
    parser.add_argument(
        "--profile",
        choices=("dev", "release"),
        default="dev",
        help="release: every architecture, a clean commit, ABI checks passed (default: dev)",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="show every command and all output")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Build each kernel for each backend."""
    if arguments.jobs is not None and arguments.jobs < 1:
        raise BuildError(f"--jobs {arguments.jobs}: at least one is needed")
    request = Request(
        backends=tuple(dict.fromkeys(arguments.backend)) if arguments.backend else None,
        archs=tuple(parse(text) for text in arguments.arch),
        profile=arguments.profile,
        jobs=arguments.jobs,
        verbose=arguments.verbose,
    )
    root = catalog.root_of(arguments.root)
    for kernel in catalog.load_all(root, arguments.names):
        build_kernel(root, kernel, request)
    return 0


def build_kernel(root: Path, kernel: Kernel, request: Request) -> list[Build]:
    """Build the variants of one kernel and return what was built."""
    refresh_vendored(root, kernel, request.profile)
    check_sources(kernel)
    origin = provenance.origin_of(root)
    if request.profile == "release":
        check_clean(root, kernel, origin)
    elif origin.commit is None:
        warn(str(origin))
    builds = []
    for backend in backends_of(kernel, request):
        build, warnings = plan_backend(kernel, backend, request)
        print(f"{kernel.name} {build.variant}: {_tools_line(build)}")
        for warning in warnings:
            warn(warning)
        finish(build, origin, request)
        builds.append(build)
    return builds


def plan_backend(kernel: Kernel, backend: str, request: Request) -> tuple[Build, list[str]]:
    """Find the tools for one backend and decide what to compile."""
    tools = Tools(
        torch=toolchain.torch_here(),
        python_include=toolchain.python_include(),
        compiler=toolchain.host_compiler(),
        ninja=toolchain.ninja_program(),
    )
    if backend == "cpu":
        return plan(kernel, backend, request.profile, (), tools), []
    cuda = toolchain.cuda_toolkit()
    local = [] if request.archs else [parse(capability) for capability in toolchain.gpu_capabilities()]
    targets, warnings = targets_of(request.profile, request.archs, local, cuda)
    return plan(kernel, backend, request.profile, targets, replace(tools, cuda=cuda)), warnings


def finish(build: Build, origin: Origin, request: Request) -> None:
    """Compile, audit, and put the variant in its place."""
    start = time.monotonic()
    with locked(build.directory):
        compile_build(build, request.jobs, request.verbose)
        findings = audit(build)
        if findings and build.profile == "release":
            raise BuildError(f"kernels/{build.kernel.name} would not load everywhere: " + "; ".join(findings))
        for finding in findings:
            warn(finding)
        changed = assemble(build, origin, manylinux=not findings)
    took = time.monotonic() - start
    path = build.destination.relative_to(build.kernel.directory.parents[1])
    state = f"built in {took:.1f} s" if changed else "up to date"
    archs = f", {' '.join(map(str, build.archs))}" if build.archs else ""
    print(f"{path}: {state} ({build.profile}, {build.id}{archs})")


def audit(build: Build) -> list[str]:
    """What would keep the compiled extension from loading on another machine."""
    from kernelworks import abi  # here, because its tables of symbols take a while to import

    return abi.audit(build.directory / EXTENSION, torch_abi=build.kernel.stable_abi)


def backends_of(kernel: Kernel, request: Request) -> list[str]:
    """The backends asked for, otherwise the CPU and what this machine's torch can use."""
    if request.backends is not None:
        for backend in request.backends:
            if backend not in kernel.backends:
                raise BuildError(
                    f"kernels/{kernel.name} has no {backend} backend; it has {', '.join(kernel.backends)}"
                )
        return list(request.backends)
    sees_gpu = toolchain.torch_here().cuda is not None and bool(toolchain.gpu_capabilities())
    wanted = {"cpu", *(("cuda",) if request.archs or sees_gpu else ())}
    return [backend for backend in kernel.backends if backend in wanted]


def refresh_vendored(root: Path, kernel: Kernel, profile: str) -> None:
    """Copy shared files anew; a release only checks them, as writing would leave its commit behind."""
    found = vendoring.differences(kernel, root)
    if found and profile == "release":
        paths = ", ".join(str(difference.path.relative_to(root)) for difference in found)
        raise VendorError(f"{paths}: not as in common/; run `kernelworks vendor` and commit the result")
    vendoring.apply(found)


def check_sources(kernel: Kernel) -> None:
    """What build.toml lists must be files, and the Python package must be where the loader looks."""
    for path in kernel.listed:
        if not (kernel.directory / path).is_file():
            raise BuildError(f"kernels/{kernel.name}/build.toml lists {path}, which is not a file there")
    package = kernel.package.relative_to(kernel.directory)
    if not (kernel.package / "__init__.py").is_file():
        raise BuildError(
            f"kernels/{kernel.name} has no {package}/__init__.py, which is what get_kernel imports"
        )
    if (kernel.package / kernel.python_name).exists():
        raise BuildError(f"kernels/{kernel.name}/{package}/{kernel.python_name} hides the package; rename it")


def check_clean(root: Path, kernel: Kernel, origin: Origin) -> None:
    """A release is made of one commit, which others can check out."""
    if origin.commit is None:
        raise BuildError(f"a release is made of a commit, and here the {origin}; or build with --profile dev")
    if origin.dirty:
        raise BuildError(
            "a release is made of a commit, and tracked files are changed; commit them, or use --profile dev"
        )
    sources = [kernel.directory / path for path in ("build.toml", *kernel.listed)]
    strangers = provenance.untracked(root, [*sources, *python_files(kernel)])
    if strangers:
        raise BuildError(
            f"a release is made of a commit, and git does not track {', '.join(strangers)}; add and commit"
        )


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One build of a variant at a time: two would overwrite each other's objects."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def warn(sentence: str) -> None:
    """Say what is worth knowing but stops nothing."""
    print(f"warning: {sentence}", file=sys.stderr)


def _tools_line(build: Build) -> str:
    tools = [f"torch {build.tools.torch.version}", str(build.tools.compiler)]
    return ", ".join([*tools, str(build.tools.cuda)] if build.tools.cuda is not None else tools)
