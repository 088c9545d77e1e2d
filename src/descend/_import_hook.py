"""What happens when a program first imports a module, for finders in ``sys.meta_path``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Execute = Callable[[ModuleType], None]


def find_spec(
    name: str, path: Any, target: Any, is_own: Callable[[Any], bool], load: Callable[[Execute, ModuleType], None]
) -> ModuleSpec | None:
    """The spec that finders other than the own ones find; None where there is none.

    When the module is imported, ``load(execute, module)`` is called, where ``execute(module)`` runs the module's code.
    """
    for finder in sys.meta_path:
        if not is_own(finder) and (spec := finder.find_spec(name, path, target)) is not None:
            loader: Any = spec.loader
            loader.exec_module = partial(load, loader.exec_module)
            return spec
    return None


def change(changes: Mapping[str, Callable[[ModuleType], None]]) -> None:
    """Calls ``changes[name](module)`` for the modules of these names: now, or when they are first imported."""
    for name, change_module in changes.items():
        if name in sys.modules:
            change_module(sys.modules[name])
    sys.meta_path.insert(0, _Changing(changes))


class _Changing:
    """A finder of modules that are changed when they have been imported."""

    def __init__(self, changes: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self._changes = changes

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self._changes:
            return None
        return find_spec(name, path, target, lambda finder: finder is self, self._load)

    def _load(self, execute: Execute, module: ModuleType) -> None:
        execute(module)
        self._changes[module.__name__](module)
