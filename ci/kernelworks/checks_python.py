# SPDX-License-Identifier: Apache-2.0
"""Checks of a kernel's Python files, read as syntax and never imported."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from kernelworks.catalog import Kernel
from kernelworks.finding import Finding

# Decorators whose first argument names an op. kernel-builder looks at the first six; autograd needs it too.
REGISTRATIONS = frozenset(
    {
        "custom_op",
        "triton_op",
        "register_kernel",
        "register_fake",
        "register_vmap",
        "register_torch_dispatch",
        "register_autograd",
    }
)
ALLOWED_MODULES = frozenset({"torch"}) | sys.stdlib_module_names
GENERATED = "_ops.py"


def package_files(kernel: Kernel) -> list[Path]:
    """The Python files that a user gets."""
    return sorted(path for path in kernel.package.rglob("*.py") if path.name != GENERATED)


def files_parse(kernel: Kernel) -> Iterator[Finding]:
    """Said once, so that the other checks may skip a file that does not parse."""
    for path in [*package_files(kernel), *_test_files(kernel)]:
        try:
            ast.parse(path.read_bytes())
        except (SyntaxError, ValueError) as error:
            yield Finding(path, f"does not parse: {error}", "correct it")


def all_is_true(kernel: Kernel) -> Iterator[Finding]:
    """`__all__` is the public list: a literal, each name once, each defined in the file."""
    path = kernel.package / "__init__.py"
    if not path.is_file():
        return
    body = _parsed(path).body
    values = [node.value for node in body if "__all__" in _bound(node) and isinstance(node, ast.Assign)]
    if len(values) != 1:
        yield Finding(path, f"has {len(values) or 'no'} `__all__`", 'write one: __all__ = ["name", ...]')
        return
    names = _literal_names(values[0])
    if names is None:
        yield Finding(
            path, "has an `__all__` that is not a literal list of names", 'write __all__ = ["name", ...]'
        )
        return
    defined = {name for node in body for name in _bound(node)}
    for name in dict.fromkeys(names):
        if name not in defined:
            yield Finding(path, f"lists {name!r} in `__all__` but does not define it", "define or unlist it")
        if names.count(name) > 1:
            yield Finding(path, f"lists {name!r} twice in `__all__`", "list it once")


def ops_are_namespaced(kernel: Kernel) -> Iterator[Finding]:
    """kernel-builder refuses an op whose name does not carry the id of its build."""
    for path in [*package_files(kernel), *_test_files(kernel)]:
        for node in _parsed(path).body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                for decorator in node.decorator_list:
                    if isinstance(decorator, ast.Call) and _lacks_namespace(decorator):
                        yield Finding(
                            path,
                            f"registers {node.name!r} (line {decorator.lineno}) under a fixed name",
                            'write add_op_namespace_prefix("...") as the first argument, from ._ops',
                        )


def imports_are_allowed(kernel: Kernel) -> Iterator[Finding]:
    """The package is loaded under a name of the loader's choice, beside whatever the user has installed."""
    allowed = ALLOWED_MODULES | {name.replace("-", "_") for name in kernel.python_depends}
    for path in package_files(kernel):
        depth = len(path.relative_to(kernel.package).parts)
        for node in ast.walk(_parsed(path)):
            for module in _imported(node):
                if module.split(".")[0] not in allowed:
                    yield Finding(
                        path,
                        f"imports {module}",
                        "use relative imports, torch and the standard library only",
                    )
            if isinstance(node, ast.ImportFrom) and node.level > depth:
                yield Finding(path, "imports from outside its package", "import from inside the package only")


def _test_files(kernel: Kernel) -> list[Path]:
    return sorted((kernel.directory / "tests").rglob("*.py"))


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _literal_names(value: ast.expr) -> list[str] | None:
    if not isinstance(value, ast.List):
        return None
    names = [item.value for item in value.elts if isinstance(item, ast.Constant)]
    strings = [name for name in names if isinstance(name, str)]
    return strings if len(strings) == len(value.elts) else None


def _bound(node: ast.stmt) -> list[str]:
    """The names that a statement of a module binds."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Import() | ast.ImportFrom():
            return [alias.asname or alias.name.split(".")[0] for alias in node.names]
        case ast.Assign():
            targets = [part for target in node.targets for part in ast.walk(target)]
            return [part.id for part in targets if isinstance(part, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.AugAssign(target=ast.Name(id=name)):
            return [name]
        case ast.If() | ast.Try():
            inner = [*node.body, *node.orelse]
            return [name for statement in inner for name in _bound(statement)]
    return []


def _lacks_namespace(call: ast.Call) -> bool:
    if _last_name(call.func) not in REGISTRATIONS or not call.args:
        return False
    first = call.args[0]
    return not (isinstance(first, ast.Call) and _last_name(first.func) == "add_op_namespace_prefix")


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        return [node.module]
    return []
