"""Dropout that its gradient can repeat: what is kept follows from a seed and an offset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Dropout:
    """With which probability a number is kept. The same seed and offset keep the same ones."""

    keep: float
    seed: int
    offset: int


def _from_torch() -> tuple[int, int]:
    return int(torch.randint(1, 2**62, ())), 0


_source: Callable[[], tuple[int, int]] = _from_torch


def draw() -> tuple[int, int]:
    """A seed and an offset from the default generator: PyTorch's, or what `draw_from` named."""
    return _source()


def draw_from(source: Callable[[], tuple[int, int]]) -> None:
    """Makes ``source`` the default generator: a device has one of its own."""
    global _source
    _source = source


class Kept:
    """Draws, block after block, what is kept: 0, or 1 / keep. Without dropout there is nothing to draw."""

    def __init__(self, dropout: Dropout | None) -> None:
        self.dropout = dropout
        if dropout is not None:
            mixed = (dropout.seed * 0x9E3779B97F4A7C15 + dropout.offset) % 2**64
            self.generator = torch.Generator().manual_seed(mixed - 2**63)

    def factors(self, shape: torch.Size, dtype: torch.dtype) -> Tensor | None:
        """0 or 1 / keep for each number of a block; None without dropout."""
        if self.dropout is None:
            return None
        kept = torch.empty(shape, dtype=dtype).bernoulli_(self.dropout.keep, generator=self.generator)
        return kept.div_(self.dropout.keep)
