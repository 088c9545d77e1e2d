"""What operators' shapes are made of. Operators of one kind are measured and checked on a GPU on the same shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.near import Shape

ELEMENTS = 2**25
"""Of x in a problem of a norm on a GPU: 64 MB in 16 bits."""


@dataclass(frozen=True)
class Kind:
    """The shapes of one kind."""

    large: tuple[Shape, ...]
    """What is measured on a GPU: 64 MB and more."""
    checked: tuple[Shape, ...]
    """What is checked there: shapes that go different ways through the kernels."""
    rows: tuple[int, ...]
    """Elements of the rows that tiles are made of: hidden sizes, scores, pixels of a channel, a head."""
    of_rows: Callable[[int], Shape]
    """A large shape with rows of so many elements."""


MATRICES = Kind(
    large=(
        *((ELEMENTS // hidden, hidden) for hidden in (512, 1024, 2048, 4096, 8192, 16384, 32768)),
        *((2**24 // 4096, 4096), (2**28 // 4096, 4096)),
    ),
    checked=((64, 512), (3, 5), (4097, 128), (33, 1000), (7, 8192), (5, 16385), (2, 70001)),
    rows=(512, 1024, 2048, 4096, 8192, 16384),
    of_rows=lambda row: (ELEMENTS // row, row),
)
"""Rows and columns."""

ELEMENTS_ALONE = replace(MATRICES, rows=MATRICES.rows[:3])
"""The same, of operators without sums over rows: a tile is a part of a row."""

CLASSES = replace(
    MATRICES,
    large=tuple((ELEMENTS // classes, classes) for classes in (1024, 4096, 32768, 131072)),
    checked=((64, 512), (3, 5), (4097, 10), (33, 1000), (7, 8192), (5, 16385), (2, 151936)),
)
"""Tokens or images, and classes: those of image models, and vocabularies."""

CLASSES_ALONE = replace(CLASSES, rows=ELEMENTS_ALONE.rows)
"""The same, without sums over rows."""

IMAGES = Kind(
    large=((32, 32, 8, 64 * 64), (16, 32, 10, 128 * 128)),  # the second is 16 x 320 x 128 x 128
    checked=((2, 4, 2, 2048), (1, 3, 5, 7), (2, 8, 4, 33), (1, 2, 3, 16384)),
    rows=(256, 1024, 4096),
    of_rows=lambda row: (max(ELEMENTS // (32 * _channels(row) * row), 1), 32, _channels(row), row),
)
"""Samples, groups, channels of a group, pixels."""

SCORES = Kind(
    large=tuple((8, 32, 1024, keys) for keys in (1024, 2048, 4096)),
    checked=((2, 8, 16, 256), (1, 2, 5, 33), (1, 1, 3, 20001)),
    rows=MATRICES.rows,
    of_rows=lambda row: (8, 32, ELEMENTS // (256 * row) or 1, row),
)
"""Batches, heads, queries, keys."""

WINDOWS = Kind(
    large=((131072, 8, 128, 32, 16), (131072, 4, 64, 32, 16)),
    checked=((512, 2, 64, 32, 16), (300, 1, 192, 48, 16), (130, 3, 40, 32, 32)),
    rows=(64, 128, 256),
    of_rows=lambda row: (ELEMENTS // (4 * row), 4, row, 32, 16),
)
"""Tokens, heads, head size, width and stride of a window."""

HEADS = Kind(
    large=((4, 2048, 32, 128), (8, 4096, 16, 64)),
    checked=((2, 64, 4, 64), (1, 5, 3, 10), (3, 7, 2, 2080), (16, 3, 33, 128)),
    rows=(32, 64, 128),  # pairs
    of_rows=lambda row: (4, ELEMENTS // (4 * 16 * 2 * row), 16, 2 * row),
)
"""Batches, positions, heads, head size."""


def _channels(pixels: int) -> int:
    """Of a group too large for one program."""
    return 4 * max(1, 4096 // pixels)
