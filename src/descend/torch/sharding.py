"""How calls of the operators split among processes: the rules, and when they become DTensor's.

``torch.distributed.tensor`` takes long to import, so that it is left to those who use it; right after it
`descend.torch.dtensor` is imported, which registers the rules.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Literal, NamedTuple

from torch import Tensor

from descend.torch.library import Operator

_DTENSOR = "torch.distributed.tensor"
_ENGINE = "descend.torch.dtensor"


class Split(NamedTuple):
    """One way to split a call: the dimension along which each positional argument and each result is cut.

    None, or nothing at the end: every process has the whole. "sum": the result is the sum of all processes' results. An
    integer that is cut, in whatever dimension, is divided, and has to be divisible.
    """

    args: tuple[int | None, ...] = ()
    results: tuple[int | Literal["sum"] | None, ...] = ()

    def arg(self, place: int) -> int | None:
        """Where an argument is cut."""
        return self.args[place] if place < len(self.args) else None

    def result(self, place: int) -> int | Literal["sum"] | None:
        """Where a result is cut, or that it is a sum."""
        return self.results[place] if place < len(self.results) else None


Rule = Callable[..., Iterable[Split]]

RULES: dict[Operator, Rule] = {}


def sharded(operator: Operator) -> Callable[[Rule], Rule]:
    """Registers ``rule(*args, **named)``, the ways to split a call among processes, whatever the sizes of the parts.

    The rule gets tensors of the whole call's shapes, which the operator takes, and no argument is left out.
    """

    def register(rule: Rule) -> Rule:
        RULES[operator] = rule
        return rule

    return register


def rows(x: Tensor, normalized: int, *statistics: Tensor) -> Iterator[int]:
    """The dimensions of ``x`` before the ``normalized`` last ones, as far as the statistics have them, too."""
    for dim in range(x.dim() - normalized):
        if all(dim < s.dim() and s.shape[dim] == x.shape[dim] for s in statistics):
            yield dim


def among(values: Iterable[Any]) -> bool:
    """Whether there is a DTensor among the values."""
    engine: Any = sys.modules.get(_ENGINE)
    return engine is not None and any(isinstance(v, engine.DTensor) for v in values)


def enter() -> None:
    """Makes the rules DTensor's: at once where it is imported, else as soon as it is."""
    if _DTENSOR in sys.modules:
        importlib.import_module(_ENGINE)
    else:
        sys.meta_path.insert(0, _AfterDTensor())


class _AfterDTensor:
    """Finds ``torch.distributed.tensor`` as the other finders do, and has the rules enter once it is executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _DTENSOR:
            return None
        finders = (f for f in sys.meta_path if f is not self)
        spec = next(filter(None, (f.find_spec(name, path, target) for f in finders)), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_enter(module: ModuleType) -> None:
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                importlib.import_module(_ENGINE)

            spec.loader.exec_module = execute_and_enter  # type: ignore[method-assign]
        return spec
