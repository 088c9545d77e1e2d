"""Records the calls of kernels in Python for a report, as native/npu/record.h does those of kernels in C++."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

_MOST_KINDS = 256  # of one operator
_MOST_OF_LIST = 8  # tensors of a list that are told apart and shown

Tensors = tuple[tuple[str, str], ...]


@dataclass
class _Entry:
    calls: int = 0
    errors: int = 0
    nanoseconds: int = 0


class _Record:
    def __init__(self) -> None:
        self.on = False
        self.forget()

    def forget(self) -> None:
        self.lock = threading.Lock()
        self.entries: dict[tuple[str, Tensors | None], _Entry] = {}
        self.kinds: Counter[str] = Counter()

    def entry(self, operator: str, tensors: Tensors) -> _Entry:
        with self.lock:
            found = self.entries.get((operator, tensors))
            if found is None:
                others = self.kinds[operator] >= _MOST_KINDS
                self.kinds[operator] += not others
                found = self.entries.setdefault((operator, None if others else tensors), _Entry())
            return found


_record = _Record()
os.register_at_fork(after_in_child=_record.forget)


def record(on: bool) -> None:
    """Whether calls are recorded from now on; to switch it on forgets those before."""
    if on:
        _record.forget()
    _record.on = on


def recorded() -> list[tuple[str, list[tuple[str, str]], bool, int, int, int]]:
    """What was recorded, as ``descend._npu.recorded`` has it."""
    with _record.lock:
        return [
            (operator, list(tensors or ()), tensors is None, entry.calls, entry.errors, entry.nanoseconds)
            for (operator, tensors), entry in _record.entries.items()
        ]


@contextlib.contextmanager
def recording(operator: str, given: Iterable[tuple[str, Any]]) -> Iterator[None]:
    """One call, with its arguments by name: it begins and ends with the block."""
    if not _record.on:
        yield
        return
    entry = _record.entry(operator, tuple(each for name, value in given for each in _described(name, value)))
    errors, start = 1, time.perf_counter_ns()
    try:
        yield
        errors = 0
    finally:
        took = time.perf_counter_ns() - start
        with _record.lock:
            entry.calls += 1
            entry.errors += errors
            entry.nanoseconds += took


def _described(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Tensor):
        yield name, f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    elif isinstance(value, (list, tuple)):
        tensors = [each for each in value if isinstance(each, (Tensor, list, tuple))]
        for i, each in enumerate(tensors[:_MOST_OF_LIST]):
            yield from _described(f"{name}[{i}]", each)
        if len(tensors) > _MOST_OF_LIST:
            yield f"{name}[...]", f"and {len(tensors) - _MOST_OF_LIST} more"
