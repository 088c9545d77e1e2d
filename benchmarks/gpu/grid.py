"""What is measured on a GPU: problems of 64 MB and more, for every operator that has a file in `benchmarks`."""

from __future__ import annotations

from benchmarks import OPERATORS
from benchmarks.operator import Shape

HIDDEN = (512, 1024, 2048, 4096, 8192, 16384, 32768)
ELEMENTS = 2**25
"""Of x in a problem of a norm: 64 MB in 16 bits."""

ROWS: tuple[Shape, ...] = (
    *((ELEMENTS // hidden, hidden) for hidden in HIDDEN),
    *((2**24 // 4096, 4096), (2**28 // 4096, 4096)),
)
IMAGES: tuple[Shape, ...] = ((32, 32, 8, 64 * 64), (16, 32, 10, 128 * 128))
"""Samples, groups, channels of a group, pixels: the second is 16 x 320 x 128 x 128."""
SCORES: tuple[Shape, ...] = tuple((8, 32, 1024, keys) for keys in (1024, 2048, 4096))
TOKENS: tuple[Shape, ...] = ((131072, 8, 128, 32, 16), (131072, 4, 64, 32, 16))
"""Tokens, heads, head size, width and stride of a window."""


def of_operator(
    name: str, rows: tuple[Shape, ...], images: tuple[Shape, ...], scores: tuple[Shape, ...], tokens: tuple[Shape, ...]
) -> tuple[Shape, ...]:
    """Those of these shapes that the operator takes."""
    others = {"group_norm": images, "softmax": scores, "nsa": tokens}
    return next((shapes for part, shapes in others.items() if part in name), rows)


GRID = {name: of_operator(name, ROWS, IMAGES, SCORES, TOKENS) for name in OPERATORS}
DTYPES = ("bfloat16", "float32")
"""What is measured where none is asked for."""
