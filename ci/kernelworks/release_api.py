# SPDX-License-Identifier: Apache-2.0
"""What a version of a kernel promises its callers, read from its sources: nothing needs to be built."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from kernelworks.catalog import Kernel

Read = Callable[
    [str], str | None
]  # a path inside the kernel's directory to its text, None where there is none

DTYPE = re.compile(r"\b(?:b?float|u?int|complex)\d+(?:_e\dm\d\w*)?\b|\bbool\b")
CARD_ROW = re.compile(r"^\|\s*dtypes\s*\|(.*)$", re.MULTILINE)
DATACLASS = frozenset({"dataclass", "NamedTuple"})


@dataclass(frozen=True)
class Parameter:
    """One parameter of a function; `default` is its source text, None where the caller must give it."""

    name: str
    kind: str  # "positional" (by name too), "positional only", "*", "keyword" (only), "**"
    default: str | None = None


@dataclass(frozen=True)
class Signature:
    """How a function is called, and the annotation of what it returns (None: not said)."""

    parameters: tuple[Parameter, ...]
    returns: str | None = None


@dataclass(frozen=True)
class Api:
    """All that callers can rely on."""

    names: Mapping[str, Signature | None]  # None: a class or a value that is not called here
    dtypes: frozenset[str]  # that the card states
    backends: frozenset[str]
    torch: tuple[int, int]  # the oldest
    depends: frozenset[str]  # Python packages that must be there


def of_kernel(kernel: Kernel, read: Read) -> Api:
    """The API of one state of a kernel: `kernel` is its manifest, and `read` gives its files."""
    rows = CARD_ROW.findall(read("CARD.md") or "")
    package = PurePosixPath("torch-ext") / kernel.python_name
    return Api(
        names=dict(_public(read, package, "__init__", "")),
        dtypes=frozenset(word for row in rows for word in DTYPE.findall(row)),
        backends=frozenset(kernel.backends),
        torch=kernel.stable_abi,
        depends=frozenset(kernel.python_depends),
    )


def _public(
    read: Read, package: PurePosixPath, module: str, prefix: str
) -> Iterator[tuple[str, Signature | None]]:
    """Every name in a module's `__all__`, those of a module in it behind its name and a dot."""
    tree = _tree(read, package, module)
    for name in _listed(tree):
        if _is_module(read, package, tree, name):
            inner = package / name
            if _tree(read, inner, "__init__").body:
                yield from _public(read, inner, "__init__", f"{prefix}{name}.")
            else:
                yield from _public(read, package, name, f"{prefix}{name}.")
        else:
            yield from _of(_definition(read, package, module, name), f"{prefix}{name}")


def _tree(read: Read, package: PurePosixPath, module: str) -> ast.Module:
    return ast.parse(read(str(package / f"{module}.py")) or "")


def _listed(tree: ast.Module) -> list[str]:
    """The literal `__all__`, otherwise what is defined here without an underscore."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
        ):
            return [str(name) for name in ast.literal_eval(node.value)]
    defined = (node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef)))
    return [name for name in defined if not name.startswith("_")]


def _is_module(read: Read, package: PurePosixPath, tree: ast.Module, name: str) -> bool:
    imported = any(
        isinstance(node, ast.ImportFrom) and node.level == 1 and not node.module and name == alias.name
        for node in tree.body
        for alias in getattr(node, "names", ())
    )
    return imported and any(read(str(package / each)) for each in (f"{name}.py", f"{name}/__init__.py"))


def _definition(read: Read, package: PurePosixPath, module: str, name: str) -> ast.stmt | None:
    """Where a name is defined, followed through relative imports; None where it is a value or unknown."""
    for node in reversed(_tree(read, package, module).body):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    *folders, inner = node.module.split(".")
                    return _definition(read, package.joinpath(*folders), inner, alias.name)
    return None


def _of(node: ast.stmt | None, name: str) -> Iterator[tuple[str, Signature | None]]:
    """A function by its signature; a class by how it is made, and its public methods and attributes."""
    if isinstance(node, ast.FunctionDef):
        yield name, _signature(node)
        return
    if not isinstance(node, ast.ClassDef):
        yield name, None
        return
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
    made = next((_signature(each, bound=True) for each in methods if each.name == "__init__"), None)
    yield name, made or _fields(node)
    for method in methods:
        if not method.name.startswith("_"):
            yield f"{name}.{method.name}", _signature(method, bound=not _is_static(method))
    for each in node.body:
        targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name) and not target.id.startswith("_"):
                yield f"{name}.{target.id}", None


def _fields(node: ast.ClassDef) -> Signature | None:
    """The constructor that a dataclass or a NamedTuple gets."""
    marks = (*node.decorator_list, *node.bases)
    called = (mark.func if isinstance(mark, ast.Call) else mark for mark in marks)
    if not DATACLASS & {getattr(each, "id", getattr(each, "attr", "")) for each in called}:
        return None
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    return Signature(
        tuple(Parameter(ast.unparse(each.target), "positional", _text(each.value)) for each in fields)
    )


def _is_static(node: ast.FunctionDef) -> bool:
    return any(isinstance(mark, ast.Name) and mark.id == "staticmethod" for mark in node.decorator_list)


def _signature(node: ast.FunctionDef, *, bound: bool = False) -> Signature:
    arguments = node.args
    plain = [
        *((argument, "positional only") for argument in arguments.posonlyargs),
        *((argument, "positional") for argument in arguments.args),
    ]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    defaults += arguments.defaults
    found = [
        Parameter(argument.arg, kind, _text(default))
        for (argument, kind), default in zip(plain, defaults, strict=True)
    ][1 if bound else 0 :]
    if arguments.vararg:
        found.append(Parameter(arguments.vararg.arg, "*"))
    found += [
        Parameter(argument.arg, "keyword", _text(default))
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg:
        found.append(Parameter(arguments.kwarg.arg, "**"))
    returns = re.sub(r"\btorch\.", "", ast.unparse(node.returns)) if node.returns else None
    return Signature(tuple(found), returns)


def _text(node: ast.expr | None) -> str | None:
    return None if node is None else ast.unparse(node)
