"""Groups of rows, or of columns, one after another, as group_index and group_list give them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_integer
from descend.npu.composed.refusal import refuse


def group_ends(
    operator: str, name: str, index: Tensor, count: int, *, sizes: bool = False, whole: bool = False,
    cut: bool = False, what: str = "rows",
) -> list[int]:  # fmt: skip
    """Where each group ends among ``count`` rows. ``index``, integers [G], has these ends, or with ``sizes`` the sizes.

    With ``whole`` the last group must end with the rows. With ``cut`` a group may reach beyond them, and is cut there.
    """
    check_integer(operator, name, index)
    if index.dim() != 1 or not len(index):
        refuse(operator, name, f"of shape {list(index.shape)}", "must have 1 dimension, and a group at least")
    given: list[int] = index.tolist()
    ends = list(itertools.accumulate(given)) if sizes else given
    in_order = all(begin <= end for begin, end in spans(ends))
    ends = [min(end, count) for end in ends] if cut else ends
    if whole and not (in_order and ends[-1] == count):
        refuse(operator, name, given, f"must have the ends of groups one after another, the last at {count}")
    if not in_order or ends[-1] > count:
        refuse(operator, name, given, f"must have groups one after another among {count} {what}")
    return ends


def spans(ends: Sequence[int]) -> list[tuple[int, int]]:
    """Where each group begins, and where it ends."""
    return list(itertools.pairwise([0, *ends]))


def for_rows(numbers: Tensor, ends: Sequence[int]) -> Tensor:
    """Numbers [G, ...] of groups, repeated for the rows of each: [rows in groups, ...]."""
    sizes = torch.tensor([end - begin for begin, end in spans(ends)])
    return numbers.repeat_interleave(sizes, 0)
