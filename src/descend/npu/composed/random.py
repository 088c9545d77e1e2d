"""Dropout that can be repeated: a seed and an offset decide which numbers are kept, each by its place in the mask.

The operators that make a mask and those that draw one by themselves keep the same numbers, on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 1 << 14
"""How many places of a mask are drawn at a time, each chunk from a generator of its own: 0.1 ms."""
ALIGNED = 128
"""The length of a mask is a multiple of this."""


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
    """Which numbers a dropout keeps."""

    def __init__(self, dropout: Dropout) -> None:
        self.dropout = dropout
        self._threshold = round(dropout.keep * 2**32) - 2**31
        self._generator = torch.Generator()
        self._drawn: tuple[int, Tensor] | None = None

    def places(self, begin: int, count: int) -> Tensor:
        """For ``count`` places of the mask from ``begin`` on, whether they are kept: bool [count]."""
        if self._threshold >= 2**31:
            return torch.ones(count, dtype=torch.bool)
        pieces = []
        for chunk in range(begin // CHUNK, -(-(begin + count) // CHUNK)):
            first = chunk * CHUNK
            pieces.append(self._chunk(chunk)[max(begin - first, 0) : min(begin + count - first, CHUNK)])
        return pieces[0] if len(pieces) == 1 else torch.cat([*pieces, torch.empty(0, dtype=torch.bool)])

    def _chunk(self, chunk: int) -> Tensor:
        if self._drawn is None or self._drawn[0] != chunk:
            mixed = self.dropout.seed * 0x9E3779B97F4A7C15 + self.dropout.offset * 0xD1B54A32D192ED03 + chunk
            self._generator.manual_seed(splitmix64(mixed) % 2**32)  # of more bits it uses no more
            words = torch.empty(CHUNK // 2, dtype=torch.int64).random_(-(2**63), None, generator=self._generator)
            self._drawn = chunk, words.view(torch.int32) < self._threshold
        return self._drawn[1]


def splitmix64(x: int) -> int:
    """A hash of 64 bits: the last step of the random number generator of this name, by Steele, Lea and Flood."""
    x %= 2**64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
    return x ^ (x >> 31)


def aligned(dropout: Dropout, count: int) -> Tensor:
    """The mask of ``count`` numbers, continued up to a multiple of `ALIGNED`: bool."""
    return Kept(dropout).places(0, -(-count // ALIGNED) * ALIGNED)


def bits(dropout: Dropout, count: int) -> Tensor:
    """The mask of ``count`` numbers, one bit each from the lowest on: uint8 [ceil(count / 128) * 16]."""
    kept = aligned(dropout, count).view(torch.uint8).view(-1, 8)
    return (kept << torch.arange(8, dtype=torch.uint8)).sum(1, dtype=torch.uint8)


def from_bits(mask: Tensor, count: int) -> Tensor:
    """The inverse of `bits`: bool [count]."""
    places = mask.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8)
    return places.bitwise_and_(1).view(torch.bool).flatten()[:count]
