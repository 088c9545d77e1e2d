"""How work is cut: by shape and dtype alone, so that the bits depend on nothing else.

A *tile* is some whole rows, or a stretch of one, that one program holds in registers at a time. A *chunk* is a stretch
of a row that is too long for that. A *slab* is some neighbouring tiles whose column sums one program adds up, in order;
its sums go to the *slot* of its number, and `descend.triton.functions.add_slots` adds the slots, in order.

The tiles of common shapes stand in `descend.triton.table`, which ``python -m benchmarks.gpu.tune`` writes; the rule
here is for all others, and a choice on paper. The table knows shapes and dtypes, not devices.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from descend.triton import table

_TILE = 2048
"""Elements of a tile of short rows."""

_MOST_ROWS = 128
"""Rows of a tile at most: each row needs registers beside those of its elements."""

_PER_THREAD = 16
"""Elements of a tile that a thread holds. A larger tile gets more warps, up to _MOST_WARPS."""

_MOST_WARPS = 16

_CHUNK = 4096
"""Columns of a chunk; fewer if the row has fewer."""

_SLABS = 256
"""Programs of a launch over slabs, if there are rows enough."""

_SLAB_TILES = 64
"""Tiles of a slab at most. A column sum adds so many numbers in float32 one after the other."""


@dataclass(frozen=True)
class Tile:
    """Rows and columns that a program holds at a time (powers of 2), and the warps that work on them."""

    rows: int
    columns: int
    warps: int
    slabs: int = _SLABS
    """Slabs of a launch that adds columns up, if there are rows enough."""

    @staticmethod
    def of(elements: int, columns: int, warps: int, slabs: int = _SLABS) -> "Tile":
        """The tile of so many elements, or of fewer where that would be too many rows."""
        return Tile(min(elements // columns, _MOST_ROWS), columns, warps, slabs)


def tile(columns: int, most: int, wide: Any, kernel: str = "", like: Tensor | None = None) -> Tile:
    """The tile for rows of ``columns`` elements, of which a program holds ``most`` (a power of 2) at a time.

    In float64, whose elements take two registers, half as many. ``kernel`` and the dtype of ``like`` are what the table
    is asked for.
    """
    share = 2 if wide == tl.float64 else 1
    block = min(triton.next_power_of_2(max(columns, 1)), most // share)
    if like is not None:
        known = table.TILES.get((kernel, block, 8 if share == 2 else like.element_size()))
        if known is not None:
            return Tile.of(known[0], block, *known[1:])
    return by_rule(block, share)


def by_rule(block: int, share: int) -> Tile:
    """The tile of rows of ``block`` elements that take ``share`` registers each, where the table has none."""
    elements = max(block, _TILE // share)
    return Tile.of(elements, block, min(max(elements * share // (32 * _PER_THREAD), 4), _MOST_WARPS))


def chunk(wide: Any) -> Tile:
    """The tile for chunks of rows: a stretch of one."""
    return tile(_CHUNK, _CHUNK, wide)


@dataclass(frozen=True)
class Slabs:
    """How many slabs there are, and rows in each (the last may have fewer)."""

    count: int
    rows: int


def slabs(rows: int, tile_rows: int, most: int = _SLABS) -> Slabs:
    """The slabs of ``rows`` rows that are worked on ``tile_rows`` at a time: ``most``, or more if they are too long."""
    tiles = triton.cdiv(rows, tile_rows)
    each = min(max(triton.cdiv(tiles, most), 1), _SLAB_TILES)
    return Slabs(triton.cdiv(tiles, each), each * tile_rows)


# --- arithmetic -------------------------------------------------------------------------------------------------------


def wide(*tensors: Tensor | None) -> Any:
    """The type of the arithmetic: float64 if any tensor is of it, else float32."""
    return tl.float64 if any(t is not None and t.dtype is torch.float64 for t in tensors) else tl.float32


def torch_dtype(dtype: Any) -> torch.dtype:
    """PyTorch's name of a type of the arithmetic."""
    return torch.float64 if dtype == tl.float64 else torch.float32
