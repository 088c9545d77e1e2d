"""Windows over the tokens of packed sequences: ``width`` tokens each, one every ``stride`` tokens, none across two."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from descend.triton.work import Work

_KEPT = 256
"""Tables of sequences that are kept on devices."""


@dataclass(frozen=True)
class Sequences:
    """The sequences of a call that have windows: the first token and the first window of each, and the totals."""

    table: Tensor | None
    """int64 [2, count + 1] on the device, tokens then windows, each with the end; None for one sequence from 0."""
    count: int
    tokens: int
    """Of the last one, the end."""
    windows: int


@triton.jit
def find(starts_ptr, value, count):
    """The last of ``count`` sorted starts that is not greater than ``value``, which is not below the first."""
    low = value * 0
    step = tl.full([], 1, tl.int64)
    while step < count:
        step *= 2
    while step > 0:
        next = low + step
        start = tl.load(starts_ptr + next, mask=next < count, other=0)
        low = tl.where((next < count) & (start <= value), next, low)
        step = step // 2
    return low


@triton.jit
def first_token(table_ptr, window, count, stride, ONE: tl.constexpr):
    """Of the windows ``window`` (int64)."""
    if ONE:
        return window * stride
    else:
        sequence = find(table_ptr + count + 1, window, count)
        return tl.load(table_ptr + sequence) + (window - tl.load(table_ptr + count + 1 + sequence)) * stride


_tables: OrderedDict[tuple[Any, ...], Sequences] = OrderedDict()
_lock = Lock()


def sequences(
    work: Work, tokens: int, act_seq_len: Sequence[int] | None, kind: int, width: int, stride: int
) -> Sequences:
    """The sequences that ``act_seq_len`` tells of (``kind`` 0: ends, 1: lengths); those without windows are left out.

    Tables are remembered: the first call copies one to the device and waits for it, so that a CUDA graph captures calls
    whose sequences have been seen before. A prepared call keeps its own.
    """
    if not act_seq_len:
        return Sequences(None, 1, tokens, 0 if tokens < width else (tokens - width) // stride + 1)
    key = (tuple(act_seq_len), kind, width, stride, work.device)
    found = work.kept.get(key) or _remembered(key)
    work.kept[key] = found
    if found.table is not None and found.table.is_cuda:
        found.table.record_stream(torch.cuda.current_stream(work.device))
    return found


def _remembered(key: tuple[Any, ...]) -> Sequences:
    with _lock:
        found = _tables.get(key)
        if found is not None:
            _tables.move_to_end(key)
    if found is None:
        found = _table(*key)
        with _lock:
            _tables[key] = found
            if len(_tables) > _KEPT:
                _tables.popitem(last=False)
    return found


def _table(act_seq_len: Sequence[int], kind: int, width: int, stride: int, device: torch.device) -> Sequences:
    first, firsts, windows, total = 0, [], [], 0
    for entry in act_seq_len:
        end = entry if kind == 0 else first + entry
        if end - first >= width:
            firsts.append(first)
            windows.append(total)
            total += (end - first - width) // stride + 1
        first = end
    rows = [[*firsts, first], [*windows, total]]
    return Sequences(torch.tensor(rows, dtype=torch.int64, device=device), len(firsts), first, total)
