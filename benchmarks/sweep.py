"""The sweep: every operator over its real range, from the first cache to memory.

A stratum is an operator, a dtype and a size in bytes; each operator's file says with the rules below which shapes have
about that size. Where the time does not allow all of them, every stratum gives one shape after the other, each far from
those before: whatever the time, all strata are there, and the range of lengths is covered evenly.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TypeVar

from benchmarks.operator import DTYPES, Operator, Shape

Item = TypeVar("Item")

MOST_ROWS = 1_000_000
LONGEST = 131_072
"""Most columns of matrices with more than a few rows."""
VERY_LONG = (1 << 18, 1 << 20, 1_000_003, 1 << 22, 1 << 24)
"""Most columns of matrices with few rows."""
FEW = 8
CHANNELS = 4000
"""Of a group."""
IMAGES = (1, 2, 7 * 7, 16 * 16, 257, 28 * 28, 64 * 64, 127 * 127, 256 * 256)
"""Pixels of a channel."""
LARGEST_GROUP = 1 << 24
"""Elements: the reference computes whole groups."""
KEYS = 8192
"""Of a row of scores."""
HEADS = ((1, 16), (1, 128), (2, 64), (4, 128), (8, 192), (64, 128))
"""Heads and their size, for compressed attention."""
BLOCKS = [(width, stride) for width in range(16, 129, 16) for stride in range(16, width + 1, 16)]
"""Every allowed width and stride up to 128; the gradient requires overlapping windows."""


def sizes(last_cache: int) -> list[int]:
    """Bytes: 1 KiB and every four times as much within half of the last cache, then what lives in memory."""
    return [1 << power for power in range(10, 40, 2) if 1 << power <= last_cache // 2] + [last_cache * 11 // 5]


def lengths(most: int) -> list[int]:
    """1 to `most`: every power of two, one off on both sides, a prime between two of them, and `most` itself."""
    found = {most}
    power = 1
    while power <= most:
        found |= {power - 1, power, power + 1, _prime(power + power // 2)}
        power *= 2
    return sorted(length for length in found if 1 <= length <= most)


def matrices(elements: int) -> Iterator[Shape]:
    """Rows and columns: every length, with as many rows as make the size, and few rows of very many columns."""
    for columns in [*lengths(LONGEST), *VERY_LONG]:
        rows = _times(elements, columns)
        if 1 <= rows <= 2 * MOST_ROWS and (columns <= LONGEST or rows <= FEW):
            yield min(rows, MOST_ROWS), columns


def images(elements: int) -> Iterator[Shape]:
    """Samples, groups, channels of a group and pixels of a channel: every number of channels with every image."""
    for channels in lengths(CHANNELS):
        for pixels in IMAGES:
            groups = _times(elements, channels * pixels)
            if channels * pixels <= LARGEST_GROUP and 1 <= groups <= 32 * MOST_ROWS:
                together = next(count for count in (32, 8, 2, 1) if groups >= count)
                yield _times(groups, together), together, channels, pixels


def heads(elements: int) -> Iterator[Shape]:
    """Batches, positions, heads and their columns: every even number of these, with as many rows as make the size."""
    for columns in (n for n in lengths(1024) if n % 2 == 0):
        rows = _times(elements, columns)
        if 1 <= rows <= 2 * MOST_ROWS:
            together = next(count for count in (32, 8, 2, 1) if rows >= 4 * count or count == 1)
            batches = 4 if rows >= 64 * together else 1
            yield batches, _times(rows, batches * together), together, columns


def scores(elements: int) -> Iterator[Shape]:
    """Batches, heads, queries and keys: every number of keys, with as many rows as make the size."""
    for keys in lengths(KEYS):
        rows = _times(elements, keys)
        if 1 <= rows <= 2 * MOST_ROWS:
            queries = min(rows, 128)
            heads = min(8, _times(rows, queries))
            yield _times(rows, queries * heads), heads, queries, keys


def windows(elements: int, blocks: Sequence[tuple[int, int]] = BLOCKS) -> Iterator[Shape]:
    """Tokens, heads, head size, width and stride: every legal pair of these with every kind of head."""
    for width, stride in blocks:
        for heads, depth in HEADS:
            tokens = _times(elements, heads * depth)
            if width <= tokens <= 2 * MOST_ROWS:
                yield tokens, heads, depth, width, stride


def plan(operators: Sequence[Operator], dtypes: Sequence[str], last_cache: int) -> list[tuple[Operator, Shape, str]]:
    """The whole sweep, so ordered that any beginning of it is an even sample; always the same."""
    strata = []
    for operator in operators:
        for dtype in (dtype for dtype in operator.dtypes if dtype in dtypes):
            seen: set[Shape] = set()
            for size in sizes(last_cache):
                shapes = [shape for shape in operator.sweep(size, DTYPES[dtype].itemsize) if shape not in seen]
                seen.update(shapes)
                seed = random.Random(f"{operator.name} {dtype} {size}")
                strata.append([(operator, shape, dtype) for shape in evenly(shapes, seed)])
    problems = []
    for number, taken in enumerate(zip_longest(*strata)):
        present = [problem for problem in taken if problem is not None]
        random.Random(number).shuffle(present)
        problems += present
    return problems


def evenly(items: Sequence[Item], seed: random.Random) -> list[Item]:
    """The items of a range in such an order that each is far from those before: bit-reversed positions."""
    bits, start = max(1, (len(items) - 1).bit_length()), seed.randrange(max(1, len(items)))
    turned = sorted(range(len(items)), key=lambda i: int(f"{i:0{bits}b}"[::-1], 2))
    return [items[(position + start) % len(items)] for position in turned]


def _times(elements: int, length: int) -> int:
    """The number of rows of this length that comes nearest to the size."""
    return (elements + length // 2) // length


def _prime(least: int) -> int:
    while least < 2 or any(least % divisor == 0 for divisor in range(2, int(least**0.5) + 1)):
        least += 1
    return least
