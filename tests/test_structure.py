"""Modules import each other in one direction only."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def modules(folder: Path) -> dict[str, Path]:
    """The package's modules by name."""
    names = {}
    for file in folder.rglob("*.py"):
        parts = (folder.name, *file.relative_to(folder).with_suffix("").parts)
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return names


def imports(file: Path, known: dict[str, Path]) -> set[str]:
    """The package's modules that one imports, wherever in it; ``from package import name`` may name one."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & known.keys() or {node.module}
    return found & known.keys()


@pytest.mark.parametrize("package", ["src/descend", "benchmarks"])
def test_imports_go_in_circles_nowhere(package):
    known = modules(ROOT / package)
    extension = {"descend"}  # ``from descend import _native``: compiled, so not among the modules here
    graph = {name: imports(file, known) - {name} - extension for name, file in known.items()}
    assert len(graph) > 30
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules that import each other: {' -> '.join(reversed(error.args[1]))}")
