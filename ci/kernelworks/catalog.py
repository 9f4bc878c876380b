# SPDX-License-Identifier: Apache-2.0
"""What the repository holds: its root, its kernels, and what each kernel's build.toml says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from kernelworks import manifest
from kernelworks.errors import ManifestError, RepositoryError

BACKENDS = ("cpu", "cuda")


@dataclass(frozen=True)
class Component:
    """One `[kernel.NAME]` table: sources for one backend, and how they are compiled."""

    name: str
    backend: str
    src: tuple[str, ...]
    include: tuple[str, ...] = ()
    cxx_flags: tuple[str, ...] = ()
    cuda_flags: tuple[str, ...] = ()
    cuda_capabilities: tuple[str, ...] = ()
    cuda_minver: tuple[int, int] | None = None


@dataclass(frozen=True)
class Kernel:
    """One directory under kernels/, as its build.toml describes it."""

    name: str
    version: int
    license: str
    repo_id: str
    backends: tuple[str, ...]
    stable_abi: tuple[int, int]
    torch_src: tuple[str, ...]
    torch_include: tuple[str, ...]
    components: tuple[Component, ...]
    directory: Path
    upstream: str | None = None
    source: str | None = None
    python_depends: tuple[str, ...] = ()
    pyext: tuple[str, ...] = ("py", "pyi")

    @property
    def python_name(self) -> str:
        """The name of the Python package, and part of the name of the ops."""
        return self.name.replace("-", "_")

    @property
    def package(self) -> Path:
        """The directory of the kernel's Python files."""
        return self.directory / "torch-ext" / self.python_name

    @property
    def listed(self) -> tuple[str, ...]:
        """Every path in any `src` list, each once."""
        paths = (*self.torch_src, *(path for component in self.components for path in component.src))
        return tuple(dict.fromkeys(paths))

    def components_for(self, backend: str) -> tuple[Component, ...]:
        """The components of one backend, in the order of build.toml."""
        return tuple(component for component in self.components if component.backend == backend)


def find_root(start: Path | None = None) -> Path:
    """The repository that `start` (by default the working directory) is in."""
    start = (start or Path.cwd()).resolve()
    for directory in (start, *start.parents):
        if (directory / "kernels").is_dir() and (directory / "common").is_dir():
            return directory
    raise RepositoryError(
        f"{start} is not in a repository with kernels/ and common/; change into one, or name one with --root"
    )


def root_of(argument: Path | None) -> Path:
    """The repository that --root names exactly, or the one around the working directory."""
    if argument is None:
        return find_root()
    root = argument.resolve()
    if not (root / "kernels").is_dir():
        raise RepositoryError(f"--root {argument}: there is no directory kernels/ in it")
    return root


def names(root: Path) -> list[str]:
    """Every kernel of the repository, by the name of its directory."""
    return sorted(path.parent.name for path in (root / "kernels").glob("*/build.toml"))


def load(root: Path, name: str) -> Kernel:
    """Read one kernel by its name, or by its path as a shell completes it (`kernels/rmsnorm/`)."""
    path = PurePosixPath(name)
    known = names(root)
    if path.name not in known or len(path.parts) > 2 or path.parts[:-1] not in ((), ("kernels",)):
        raise RepositoryError(f"no kernel {name!r} here; there is {', '.join(known) or 'none yet'}")
    directory = root / "kernels" / path.name
    kernel = from_document(manifest.read(directory), directory)
    if kernel.name != directory.name:
        raise ManifestError(
            f"kernels/{directory.name}/build.toml: [general] name: is {kernel.name!r}, "
            f"but the directory is {directory.name!r}; make them equal"
        )
    return kernel


def load_all(root: Path, wanted: Iterable[str]) -> list[Kernel]:
    """The kernels of these names, or all of them when no name is given."""
    return [load(root, name) for name in (list(dict.fromkeys(wanted)) or names(root))]


def from_document(document: dict[str, Any], directory: Path) -> Kernel:
    """A `Kernel` out of the content of a valid build.toml."""
    where = f"kernels/{directory.name}/build.toml"
    general, torch = document["general"], document["torch"]
    backends = tuple(general["backends"])
    for backend in backends:
        if backend not in BACKENDS:
            raise ManifestError(
                f"{where}: [general] backends: {backend!r} is not built here; use cpu or cuda"
            )
    if general.get("kernel-depends"):
        raise ManifestError(f"{where}: [general] kernel-depends: not supported by this builder; leave it out")
    components = tuple(_component(name, table) for name, table in document["kernel"].items())
    for backend in backends:
        if not any(component.backend == backend for component in components):
            raise ManifestError(
                f"{where}: [general] backends: {backend!r} is listed but no [kernel.NAME] has it"
            )
    kernel = Kernel(
        name=general["name"],
        version=general["version"],
        license=general["license"],
        repo_id=general["hub"]["repo-id"],
        backends=backends,
        stable_abi=_stable_abi(torch["stable-abi"], backends, where),
        torch_src=tuple(torch["src"]),
        torch_include=tuple(torch.get("include", ())),
        components=components,
        directory=directory,
        upstream=general.get("upstream"),
        source=general.get("source"),
        python_depends=tuple(general.get("python-depends", ())),
        pyext=tuple(torch.get("pyext", ("py", "pyi"))),
    )
    _check_paths("torch", kernel.torch_src, where)
    for component in components:
        _check_paths(f"kernel.{component.name}", component.src, where)
    return kernel


def _component(name: str, table: dict[str, Any]) -> Component:
    minver = table.get("cuda-minver")
    return Component(
        name=name,
        backend=table["backend"],
        src=tuple(table["src"]),
        include=tuple(table.get("include", ())),
        cxx_flags=tuple(table.get("cxx-flags", ())),
        cuda_flags=tuple(table.get("cuda-flags", ())),
        cuda_capabilities=tuple(table.get("cuda-capabilities", ())),
        cuda_minver=None if minver is None else _version(minver),
    )


def _version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


def _stable_abi(value: str | dict[str, str], backends: tuple[str, ...], where: str) -> tuple[int, int]:
    named = value if isinstance(value, dict) else dict.fromkeys(backends, value)
    versions = {named.get(backend) for backend in backends}
    version = versions.pop()
    if versions or version is None:
        raise ManifestError(
            f"{where}: [torch] stable-abi: must name one torch version for {' and '.join(backends)}"
        )
    return _version(version)


def _check_paths(table: str, paths: tuple[str, ...], where: str) -> None:
    """kernel-builder copies only what is inside the kernel's directory, so nothing may point out of it."""
    for path in paths:
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or str(pure) != path:
            raise ManifestError(
                f"{where}: [{table}] src: {path!r} must be a plain path inside the kernel's directory; "
                "a shared header goes to common/ and is listed as kernel_src/vendor/NAME"
            )
