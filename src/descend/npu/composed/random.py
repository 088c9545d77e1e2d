"""Dropout that the gradient can repeat: a seed and an offset decide which numbers are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Dropout:
    """The probability with which a number is kept. The same seed and offset keep the same numbers."""

    keep: float
    seed: int
    offset: int


def _from_torch() -> tuple[int, int]:
    return int(torch.randint(1, 2**62, ())), 0


_source: Callable[[], tuple[int, int]] = _from_torch


def draw() -> tuple[int, int]:
    """A seed and an offset from the default generator: PyTorch's, or the one set by `draw_from`."""
    return _source()


def draw_from(source: Callable[[], tuple[int, int]]) -> None:
    """Makes ``source`` the default generator, since a device has its own."""
    global _source
    _source = source


class Kept:
    """Draws the factors of a dropout, block by block: 0, or 1 / keep. Without dropout nothing is drawn."""

    def __init__(self, dropout: Dropout | None) -> None:
        self.dropout = dropout
        if dropout is not None:
            mixed = (dropout.seed * 0x9E3779B97F4A7C15 + dropout.offset) % 2**64
            self.generator = torch.Generator().manual_seed(mixed - 2**63)

    def factors(self, shape: torch.Size, dtype: torch.dtype) -> Tensor | None:
        """For each number of a block 0 or 1 / keep; None without dropout."""
        if self.dropout is None:
            return None
        kept = torch.empty(shape, dtype=dtype).bernoulli_(self.dropout.keep, generator=self.generator)
        return kept.div_(self.dropout.keep)
