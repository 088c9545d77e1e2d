"""Problems with their data at hand: so few of a problem's rows that a first-level cache holds them.

Each comes with another that has half its rows: `benchmarks.near_time` measures the two. Rows that are too long are
shortened, but not so far that operators work on them in another way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

Shape: TypeAlias = tuple[int, ...]

LONG = 256
"""Rows of up to so many elements are short: operators compute them differently."""
FEWEST = 4
"""Rows: so many are worked on side by side. Half as many must be some, too."""
WIDE = 128
"""Elements of a token, all its heads, that are worked on at once."""


@dataclass(frozen=True)
class Room:
    """The bytes that fit in the cache, and how many bytes a problem of a shape has."""

    bytes: int
    size: Callable[[Shape], int]

    def holds(self, shape: Shape) -> bool:
        """Whether this problem fits."""
        return self.size(shape) <= self.bytes

    def fill(self, of: Callable[[int], Shape], step: int) -> tuple[Shape, Shape]:
        """As many as fit, a multiple of the even `step`, and half as many; `step` of them where fewer fit."""
        first, second = self.size(of(step)), self.size(of(2 * step))
        count = step * max(1, 1 + (self.bytes - first) // (second - first))
        return of(count), of(count // 2)

    def shorten(self, length: int, of: Callable[[int], Shape]) -> int:
        """The longest row that fits, up to this one's length, with its remainder modulo 64; long if this one is."""
        least = LONG + (length % 64 or 64)
        lengths = range(least, min(length, self.bytes) + 1, 64)
        return max((one for one in lengths if self.holds(of(one))), default=min(least, length))


def matrices(shape: Shape, room: Room, fewest: int = FEWEST) -> tuple[Shape, Shape]:
    """Some rows."""
    columns = room.shorten(shape[1], lambda columns: (fewest, columns))
    return room.fill(lambda rows: (rows, columns), fewest)


def images(shape: Shape, room: Room) -> tuple[Shape, Shape]:
    """Some groups, of several samples where there are; where a group is too large, some channels of one."""
    samples, _, channels, pixels = shape
    samples = min(samples, FEWEST)
    step = max(FEWEST, 2 * samples)
    if room.holds((samples, step // samples, channels, pixels)):
        return room.fill(lambda groups: (samples, groups // samples, channels, pixels), step)
    pixels = room.shorten(pixels, lambda pixels: (1, 1, FEWEST, pixels))
    return room.fill(lambda channels: (1, 1, channels, pixels), FEWEST)


def scores(shape: Shape, room: Room) -> tuple[Shape, Shape]:
    """Some queries of one head."""
    keys = room.shorten(shape[3], lambda keys: (1, 1, FEWEST, keys))
    return room.fill(lambda queries: (1, 1, queries, keys), FEWEST)


def windows(shape: Shape, room: Room) -> tuple[Shape, Shape]:
    """Some windows of few heads, half of them as many as overlap or more; of fewer windows some heads."""
    tokens, heads, depth, width, stride = shape
    few, step = min(heads, max(1, WIDE // depth)), max(FEWEST, 2 * -(-width // stride))
    if tokens >= width + (step - 1) * stride:
        return room.fill(lambda count: (width + (count - 1) * stride, few, depth, width, stride), step)
    whole = tokens, few, depth, width, stride
    if 2 * few <= heads and room.size(whole) <= 4 * room.bytes:
        return (tokens, 2 * few, depth, width, stride), whole
    return whole, (0, few, depth, width, stride)  # so large that the call hardly counts
