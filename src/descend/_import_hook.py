"""What happens when a program first imports a module, for finders in ``sys.meta_path``."""

from __future__ import annotations

import sys
from collections.abc import Callable
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
