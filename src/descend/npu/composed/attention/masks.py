"""The sparse modes: which keys each query sees, from atten_mask, sparse_mode, pre_tockens, next_tockens and prefix.

| mode | a query sees | atten_mask |
| --- | --- | --- |
| 0 | what lies between pre_tockens and next_tockens, counted from the upper left | the whole mask |
| 1 | all | the whole mask |
| 2 | keys up to its own place, counted from the upper left | the triangle, 2048 x 2048 |
| 3 | keys up to its own place, counted from the lower right | the triangle |
| 4 | what lies between pre_tockens and next_tockens, counted from the lower right | the triangle |
| 5 | what it sees in mode 3, and the first keys of the batch, as many as prefix says | the whole mask |
| 6 | as in mode 5 | the triangle above 1024 rows whose right half is true |
| 7 | the last sequence as in mode 4, all others as in mode 3 (TND) | the triangle |
| 8 | the first sequence as in mode 4, all others as in mode 2 (TND) | the triangle |

True in the mask hides a key. Without a mask every key is seen, in any mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from descend.npu.composed.attention.layouts import Sizes
from descend.npu.composed.refusal import refuse

TRIANGLE = 2048
RECTANGLE = 1024
_trusted: dict[int, Tensor] = {}  # by address; kept, so that no other tensor gets the address
WHOLE, COMPRESSED = (0, 1, 5), (2, 3, 4, 6, 7, 8)
PREFIX = (5, 6)
EVERYWHERE = 2**31 - 1
"""A bound beyond every distance between a query and a key: the default of pre_tockens and next_tockens."""


def triangle() -> Tensor:
    """The compressed mask of modes 2 to 4, 7 and 8."""
    return torch.ones(TRIANGLE, TRIANGLE, dtype=torch.bool).triu(1)


def trust(mask: Tensor) -> Tensor:
    """Remembers a triangle that is known to be right, so that it is not checked as a mask. Returns it."""
    _trusted[mask.data_ptr()] = mask
    return mask


@dataclass(frozen=True)
class Visible:
    """Query i sees key j where ``-before <= j - i - shift <= after``, and where ``j < prefix``.

    ``masked`` [B or 1, N or 1, queries, keys] is true if a query does not see a key, even within the bounds.
    """

    before: int = EVERYWHERE
    after: int = EVERYWHERE
    shift: int = 0
    prefix: int = 0
    masked: Tensor | None = None

    @property
    def bounded(self) -> bool:
        """Whether the bounds hide a key from some query."""
        return self.before < EVERYWHERE or self.after < EVERYWHERE

    def keys(self, first: int, last: int, count: int) -> tuple[int, int]:
        """The first key that one of the queries ``first`` to ``last - 1`` may see, and the end of those keys."""
        begin = max(0, min(count, first + self.shift - self.before))
        end = max(0, min(count, last + self.shift + self.after))
        if self.prefix > 0:
            return 0, max(end, min(count, self.prefix))
        return begin, max(begin, end)

    def hidden(self, first: int, last: int, begin: int, end: int) -> Tensor | None:
        """[queries, keys], true if the bounds hide a key. None if they hide none of these."""
        nearest, farthest = begin - (last - 1) - self.shift, (end - 1) - first - self.shift
        if nearest >= -self.before and farthest <= self.after:
            return None
        key = torch.arange(begin, end)
        distance = key - torch.arange(first, last).unsqueeze(-1) - self.shift
        hidden = (distance < -self.before) | (distance > self.after)
        return hidden & (key >= self.prefix) if self.prefix > 0 else hidden


@dataclass(frozen=True)
class Part:
    """A part of a call that is one attention: batches, rows of query and key, and which keys are seen."""

    batches: slice
    queries: slice
    keys: slice
    visible: Visible


@dataclass(frozen=True)
class Masking:
    """The parameters that decide which keys are seen. `parts` checks them."""

    operator: str
    atten_mask: Tensor | None
    sparse_mode: int
    before: int
    after: int
    prefix: Sequence[int] | None

    def parts(self, sizes: Sizes, queries: Sequence[slice], keys: Sequence[slice]) -> list[Part]:
        """The attentions of the call: one for each sequence of TND, one for each batch if prefix differs, else one.

        ``queries`` and ``keys`` are the rows of the sequences; layouts other than TND have one.
        """
        self._check(sizes, queries, keys)
        every = slice(None)
        if sizes.layout == "TND":
            seen = [self._of_sequence(at, queries, keys) for at in range(len(queries))]
            return [Part(every, q, k, v) for q, k, v in zip(queries, keys, seen, strict=True)]
        shift = sizes.keys - sizes.queries
        masked = self._whole_mask()
        if self.atten_mask is None or self.sparse_mode not in PREFIX:
            return [Part(every, queries[0], keys[0], self._bounds(self.sparse_mode, shift, 0, masked))]
        parts = []
        for b, seen_first in enumerate(self._prefix(sizes.batch, [sizes.queries], [sizes.keys])):
            own = masked[b : b + 1] if masked is not None and masked.shape[0] > 1 else masked
            parts.append(Part(slice(b, b + 1), queries[0], keys[0], self._bounds(5, shift, seen_first, own)))
        return parts

    def _of_sequence(self, at: int, queries: Sequence[slice], keys: Sequence[slice]) -> Visible:
        lengths, key_lengths = [_length(rows) for rows in queries], [_length(rows) for rows in keys]
        mode, prefix = self.sparse_mode, 0
        filled = [b for b, length in enumerate(lengths) if length]
        if mode == 7:
            mode = 4 if filled and at == filled[-1] else 3
        elif mode == 8:
            mode = 4 if filled and at == filled[0] else 2
        elif mode == 6 and self.atten_mask is not None:
            mode, prefix = 5, self._prefix(len(queries), lengths, key_lengths)[at]
        masked = self._whole_mask()
        if masked is not None:
            masked = masked[..., : lengths[at], : key_lengths[at]]
        return self._bounds(mode, key_lengths[at] - lengths[at], prefix, masked)

    def _bounds(self, mode: int, shift: int, prefix: int, masked: Tensor | None) -> Visible:
        if self.atten_mask is None or mode == 1:
            return Visible(masked=masked)
        if mode in (0, 4):
            return Visible(self.before, self.after, shift if mode == 4 else 0, masked=masked)
        return Visible(after=0, shift=0 if mode == 2 else shift, prefix=prefix, masked=masked)

    def _whole_mask(self) -> Tensor | None:
        if self.atten_mask is None or self.sparse_mode not in WHOLE:
            return None
        mask = self.atten_mask.to(torch.bool)
        return mask[None, None] if mask.dim() == 2 else mask

    def _prefix(self, batch: int, queries: Sequence[int], keys: Sequence[int]) -> Sequence[int]:
        """How many first keys every query sees, for each batch or sequence."""
        if self.prefix is None or len(self.prefix) != batch:
            got = "None" if self.prefix is None else list(self.prefix)
            refuse(
                self.operator,
                "prefix",
                got,
                f"must tell a number for each of {batch} in sparse_mode {self.sparse_mode}",
            )
        for b, seen in enumerate(self.prefix):
            rows, columns = queries[b % len(queries)], keys[b % len(keys)]
            if not max(0, columns - rows) <= seen <= columns:
                limits = f"from {max(0, columns - rows)} to {columns} for {rows} queries and {columns} keys"
                refuse(self.operator, "prefix", list(self.prefix), f"each must be {limits}")
        return self.prefix

    def _check(self, sizes: Sizes, queries: Sequence[slice], keys: Sequence[slice]) -> None:
        modes = (0, 1, 2, 3, 4, 6, 7, 8) if sizes.layout == "TND" else (0, 1, 2, 3, 4, 5, 6)
        if self.sparse_mode not in modes:
            refuse(self.operator, "sparse_mode", self.sparse_mode, f"must be one of {modes} in {sizes.layout}")
        mask = self.atten_mask
        if mask is None:
            return
        if mask.dtype not in (torch.bool, torch.uint8):
            refuse(self.operator, "atten_mask", mask.dtype, "must be bool or uint8")
        if self.sparse_mode in COMPRESSED:
            self._check_triangle(mask)
            return
        n, m = max(map(_length, queries)), max(map(_length, keys))
        shapes = [[sizes.batch, sizes.heads, n, m], [sizes.batch, 1, n, m], [1, 1, n, m], [n, m]]
        if sizes.layout == "TND":
            shapes = [[n, m]]
        elif self.sparse_mode == 5:
            shapes = shapes[:2]
        if list(mask.shape) not in shapes:
            allowed = " or ".join(map(str, shapes))
            refuse(
                self.operator,
                "atten_mask",
                f"of shape {list(mask.shape)}",
                f"must be of shape {allowed} in sparse_mode {self.sparse_mode}",
            )

    def _check_triangle(self, mask: Tensor) -> None:
        """Refuses a compressed mask that is not the triangle of its mode."""
        if mask.data_ptr() in _trusted and self.sparse_mode != 6 and mask.shape == (TRIANGLE, TRIANGLE):
            return
        rows = TRIANGLE + (RECTANGLE if self.sparse_mode == 6 else 0)
        right = mask.shape == (rows, TRIANGLE)
        if right:
            triangle, half = mask[:TRIANGLE].to(torch.bool), TRIANGLE // 2
            above = triangle.diagonal(1).all() and triangle[0, 1:].all() and triangle[:-1, -1].all()
            below = triangle.diagonal().any() or triangle[-1].any() or triangle[:, 0].any()
            right = bool(above) and not bool(below)
            if self.sparse_mode == 6:
                edges = mask[[TRIANGLE, rows - 1]].to(torch.bool)
                right = right and bool(edges[:, half:].all()) and not bool(edges[:, :half].any())
        if not right:
            shape = f"the mask of {rows} x {TRIANGLE} that is true above the diagonal"
            shape += ", below it 1024 rows that are true in their right half" if self.sparse_mode == 6 else ""
            got = f"a mask of shape {list(mask.shape)}{' with other values' if mask.shape == (rows, TRIANGLE) else ''}"
            refuse(self.operator, "atten_mask", got, f"must be {shape} in sparse_mode {self.sparse_mode}")


def _length(rows: slice) -> int:
    return int(rows.stop) - int(rows.start)
