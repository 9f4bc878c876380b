# SPDX-License-Identifier: Apache-2.0
"""Compiles kernels for this machine, or as a release, into the directories that the Hub holds."""

from __future__ import annotations

import argparse
import fcntl
import platform
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kernelworks import catalog, cross, fatbin, nix_build, provenance, reproducing, toolchain, vendoring
from kernelworks.archs import Arch, parse
from kernelworks.catalog import Kernel
from kernelworks.compiling import compile_build
from kernelworks.errors import BuildError, VendorError
from kernelworks.ninja_file import EXTENSION
from kernelworks.plan import Build, plan, python_files, targets_of
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
    cudas: tuple[tuple[int, int], ...] = ()  # versions; none: the toolkit of this machine
    machine: str | None = None  # None: of this kind
    twice: bool = False


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
        "--cuda",
        action="append",
        default=[],
        metavar="13.0",
        help="build for this version of CUDA; may be given more than once (default: the nvcc that is found)",
    )
    parser.add_argument(
        "--platform",
        choices=cross.MACHINES,
        help="the kind of machine to build for; another kind than this one gets the CPU variant alone",
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
    parser.add_argument(
        "--twice", action="store_true", help="compile all again elsewhere, and compare bit for bit"
    )
    parser.add_argument(
        "--nix", action="store_true", help="let kernel-builder build every variant of a release, under Nix"
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
        cudas=tuple(dict.fromkeys(map(cuda_version, arguments.cuda))),
        machine=arguments.platform,
        twice=arguments.twice,
    )
    root = catalog.root_of(arguments.root)
    for kernel in catalog.load_all(root, arguments.names):
        if arguments.nix:
            build_by_nix(root, kernel, request)
        else:
            build_kernel(root, kernel, request)
    return 0


def cuda_version(text: str) -> tuple[int, int]:
    """Read `13.0`."""
    match = re.fullmatch(r"(\d+)\.(\d+)", text)
    if match is None:
        raise BuildError(f"--cuda {text}: not a version of CUDA; write it like 13.0")
    return int(match[1]), int(match[2])


def build_kernel(root: Path, kernel: Kernel, request: Request) -> list[Build]:
    """Build the variants of one kernel and return what was built."""
    origin = prepare(root, kernel, request.profile)
    builds = []
    for backend, cuda in variants_of(kernel, request):
        build, warnings = plan_backend(kernel, backend, request, cuda)
        print(f"{kernel.name} {build.variant}: {_tools_line(build)}")
        for warning in warnings:
            warn(warning)
        finish(build, origin, request)
        builds.append(build)
    return builds


def prepare(root: Path, kernel: Kernel, profile: str) -> Origin:
    """Bring shared files up to date, see that all files are there, and tell which commit they are of."""
    refresh_vendored(root, kernel, profile)
    check_sources(kernel)
    origin = provenance.origin_of(root)
    if profile == "release":
        check_clean(root, kernel, origin)
    elif origin.commit is None:
        warn(str(origin))
    return origin


def build_by_nix(root: Path, kernel: Kernel, request: Request) -> None:
    """A release by kernel-builder, which decides itself what there is to build."""
    if request.backends or request.archs or request.cudas or request.machine or request.twice:
        raise BuildError(
            "--nix builds every variant that kernel-builder knows for this machine; "
            "leave out --backend, --arch, --cuda, --platform and --twice"
        )
    prepare(root, kernel, "release")
    nix_build.build(root, kernel)


def variants_of(kernel: Kernel, request: Request) -> Iterator[tuple[str, tuple[int, int] | None]]:
    """Each backend, and CUDA once for each version that is asked for."""
    for backend in backends_of(kernel, request):
        for cuda in (request.cudas if backend == "cuda" else ()) or (None,):
            yield backend, cuda


def plan_backend(
    kernel: Kernel, backend: str, request: Request, version: tuple[int, int] | None = None
) -> tuple[Build, list[str]]:
    """Find the tools for one backend and decide what to compile; `version` is that of CUDA."""
    tools = cross.tools_for(request.machine) if request.machine else cross.tools_here()
    if backend == "cpu":
        return plan(kernel, backend, request.profile, (), tools), []
    cuda = toolchain.cuda_toolkit(version)
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
        if request.twice:
            reproducing.check(build, request.jobs)
        changed = assemble(build, origin, manylinux=not findings)
    took = time.monotonic() - start
    path = build.destination.relative_to(build.kernel.directory.parents[1])
    state = f"built in {took:.1f} s" if changed else "up to date"
    archs = f", {' '.join(map(str, build.archs))}" if build.archs else ""
    print(f"{path}: {state} ({build.profile}, {build.id}{archs})")


def audit(build: Build) -> list[str]:
    """What would keep the compiled extension from loading on another machine."""
    from kernelworks import abi  # here, because its tables of symbols take a while to import

    extension = build.directory / EXTENSION
    findings = abi.audit(extension, torch_abi=build.kernel.stable_abi)
    held, wanted = fatbin.archs(extension), frozenset(map(str, build.archs))
    if held != wanted:
        findings.append(f"holds code for {_shown(held)}, and was to be compiled for {_shown(wanted)}")
    return findings


def backends_of(kernel: Kernel, request: Request) -> list[str]:
    """The backends asked for, otherwise the CPU and what this machine's torch can use."""
    asked = [*(request.backends or ()), *(("cuda",) if request.cudas else ())]
    foreign = request.machine not in (None, platform.machine())
    if foreign and "cuda" in asked:
        raise BuildError(
            f"--platform {request.machine}: only the cpu backend is compiled for another kind of machine; "
            "build for CUDA on such a machine, or with --nix"
        )
    for backend in asked:
        if backend not in kernel.backends:
            raise BuildError(
                f"kernels/{kernel.name} has no {backend} backend; it has {', '.join(kernel.backends)}"
            )
    if request.backends is not None:
        return list(dict.fromkeys(asked))
    if foreign:
        return [backend for backend in kernel.backends if backend == "cpu"]
    sees_gpu = toolchain.torch_here().cuda is not None and bool(toolchain.gpu_capabilities())
    wanted = {"cpu", *asked, *(("cuda",) if request.archs or sees_gpu else ())}
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


def _shown(archs: frozenset[str]) -> str:
    return ", ".join(sorted(archs, key=parse)) or "no GPU"


def _tools_line(build: Build) -> str:
    tools = [f"torch {build.tools.torch.version}", str(build.tools.compiler)]
    return ", ".join([*tools, str(build.tools.cuda)] if build.tools.cuda is not None else tools)
