"""torchair without CANN's graph engine: it can be imported. `descend.npu.compiling` runs its graphs.

MindSpeed imports torchair for its operators' graph form, also where it trains without graphs.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import NoReturn

_SENTENCE = "this part of torchair needs CANN's graph engine, which is not here."


class _Graph:
    """The base of torchair's class of graphs."""

    def __init__(self, *_arguments: object, **_named: object) -> None:
        raise NotImplementedError(_SENTENCE)


class _Names:
    """An enumeration whose values only that engine reads."""

    def __getattr__(self, name: str) -> str:
        return name


class _Core(ModuleType):
    """One of torchair's compiled modules, which need libraries of that engine."""

    TorchNpuGraphBase = _Graph
    TorchDataType = _Names()

    @staticmethod
    def FinalizeGraphEngine() -> None:
        """Called when Python ends: no engine has begun."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(name if name.startswith("__") else _SENTENCE)


def install() -> None:
    """Puts the modules where torchair imports them from."""
    for name in ("_torchair", "_npu_graph_executor", "_npu_utils"):
        name = f"torchair.core.{name}"
        sys.modules.setdefault(name, _Core(name))
