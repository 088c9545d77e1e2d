"""How work is cut: by shape and dtype alone, so that the bits depend on nothing else.

A *tile* is some whole rows, or a stretch of one, that one program holds in registers at a time. A *chunk* is a stretch
of a row that is too long for that. A *slab* is some neighbouring tiles whose column sums one program adds up, in order;
its sums go to the *slot* of its number, and `descend.triton.functions.add_slots` adds the slots, in order. Numbers here
are choices on paper: none has been measured on a device yet (docs/design-gpu.md).
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 2048
"""Elements of a tile of short rows."""

_MOST_ROWS = 128
"""Rows of a tile: what a row costs beside its elements has its registers, too."""

_PER_THREAD = 16
"""Elements that a thread holds of a tile, up to the most warps that leave enough registers."""

_MOST_WARPS = 16

_CHUNK = 4096
"""Columns in a chunk, where they are as many."""

_SLABS = 256
"""Programs that one launch over slabs is worth, where there are rows enough."""

_SLAB_TILES = 64
"""Tiles in a slab at most: the longest chain of float32 additions in a column sum."""


@dataclass(frozen=True)
class Tile:
    """Rows and columns that a program holds at a time (powers of 2), and the warps that work on them."""

    rows: int
    columns: int
    warps: int


def tile(columns: int, most: int, wide: Any) -> Tile:
    """The tile for rows of ``columns`` elements, of which a program holds ``most`` (a power of 2) at a time.

    In float64, whose elements take two registers, half as many.
    """
    share = 2 if wide == tl.float64 else 1
    block = min(triton.next_power_of_2(max(columns, 1)), most // share)
    elements = max(block, _TILE // share)
    warps = min(max(elements * share // (32 * _PER_THREAD), 4), _MOST_WARPS)
    return Tile(min(elements // block, _MOST_ROWS), block, warps)


def chunk(wide: Any) -> Tile:
    """The tile for chunks of rows: a stretch of one."""
    return tile(_CHUNK, _CHUNK, wide)


@dataclass(frozen=True)
class Slabs:
    """How many slabs there are, and rows in each (the last may have fewer)."""

    count: int
    rows: int


def slabs(rows: int, tile_rows: int) -> Slabs:
    """The slabs of ``rows`` rows that are worked on ``tile_rows`` at a time."""
    tiles = triton.cdiv(rows, tile_rows)
    each = min(max(triton.cdiv(tiles, _SLABS), 1), _SLAB_TILES)
    return Slabs(triton.cdiv(tiles, each), each * tile_rows)


# --- arithmetic -------------------------------------------------------------------------------------------------------


def wide(*tensors: Tensor | None) -> Any:
    """The type of the arithmetic: float64 if any tensor is of it, else float32."""
    return tl.float64 if any(t is not None and t.dtype is torch.float64 for t in tensors) else tl.float32


def torch_dtype(dtype: Any) -> torch.dtype:
    """PyTorch's name of a type of the arithmetic."""
    return torch.float64 if dtype == tl.float64 else torch.float32
