"""Rows in blocks, for operators whose numbers in between would fill the memory if they existed all at once."""

from __future__ import annotations

from collections.abc import Iterator

NUMBERS = 1 << 22
"""How many numbers exist at a time."""


def row_blocks(rows: int, each: int) -> Iterator[slice]:
    """Cuts rows of which each needs ``each`` numbers into blocks of about `NUMBERS` numbers."""
    step = max(1, NUMBERS // max(1, each))
    for first in range(0, rows, step):
        yield slice(first, min(rows, first + step))
