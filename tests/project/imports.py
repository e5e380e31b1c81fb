"""Reads the imports of the package from its source: nothing is executed, lazy imports count too."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from tests.project.tree import modules

PACKAGE_NAME = "dynaquant_core"


def imported_names(source: str, module: str, *, is_package: bool) -> set[str]:
    """Absolute dotted names that ``source`` imports; ``from a import b`` gives ``a.b``."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(node, module, is_package=is_package)
            names.update(f"{origin}.{alias.name}" for alias in node.names)
    return names


def _origin(node: ast.ImportFrom, module: str, *, is_package: bool) -> str:
    if node.level == 0:
        return node.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - node.level + (1 if is_package else 0)]
    return ".".join([*parts, node.module] if node.module else parts)


def all_imports() -> dict[str, set[str]]:
    """Module -> the absolute names it imports."""
    return {
        name: imported_names(path.read_text(encoding="utf-8"), name, is_package=path.name == "__init__.py")
        for name, path in modules().items()
    }


def inner_edges(imports: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Module -> the modules of this package that it names (the module itself left out)."""
    return {
        module: {owner for name in names if (owner := _owner(name, imports)) and owner != module}
        for module, names in imports.items()
    }


def _owner(name: str, known: Iterable[str]) -> str | None:
    """The module that defines ``name``: itself, or the longest known prefix."""
    known = set(known)
    parts = name.split(".")
    candidates = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((candidate for candidate in candidates if candidate in known), None)


def room(module: str) -> str:
    """The room of a module: the first name below the package ("" for the package itself)."""
    return module.partition(".")[2].split(".")[0]


def find_circle(edges: Mapping[str, Iterable[str]]) -> list[str]:
    """One circle of ``edges`` as a path that ends where it begins; empty if there is none."""
    done: set[str] = set()

    def walk(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for target in sorted(edges.get(node, ())):
            if circle := walk(target, [*path, node]):
                return circle
        done.add(node)
        return []

    for start in sorted(edges):
        if circle := walk(start, []):
            return circle
    return []
