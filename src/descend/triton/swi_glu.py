"""SwiGLU on CUDA: a * sigmoid(a) * b, of the halves a and b of each row."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.functions import load_rows, part_of_rows, store_rows
from descend.triton.swish import sigmoid
from descend.triton.tiles import tile, wide
from descend.triton.work import Work

MOST = 2048
"""Columns of a half that a program works on at a time."""


@triton.jit
def product(factor, a, b):
    """factor * a * b, the larger of a and b first: nothing overflows or becomes 0 on the way to what does not."""
    is_b = tl.abs(a) < tl.abs(b)
    return factor * tl.where(is_b, b, a) * tl.where(is_b, a, b)


@triton.jit
def swi_glu_kernel(
    x_ptr,
    out_ptr,
    rows,
    columns,
    parts,
    x_stride,
    out_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A tile of some rows."""
    r, c, inside = part_of_rows(rows, columns, parts, ROWS, COLUMNS)
    a = load_rows(x_ptr, r, c, x_stride, inside, WIDE)
    b = load_rows(x_ptr + columns, r, c, x_stride, inside, WIDE)
    store_rows(out_ptr, r, c, out_stride, inside, product(sigmoid(a, WIDE), a, b))


def halves(x: Tensor, dim: int) -> tuple[int, int]:
    """Rows and columns of each half of x along a dimension."""
    rows = x.shape[: dim % x.dim()].numel()
    return rows, x.numel() // (2 * rows)


def launch(work: Work, x: Tensor, dim: int, out: Tensor) -> None:
    """Starts the kernel; the parameters are those of aclnnSwiGlu."""
    if out.numel() == 0:
        return
    rows, columns = halves(x, dim)
    arithmetic: Any = wide(x)
    whole, result = work.rows_of(x, rows, 2 * columns), work.output(out, rows, columns)
    cut = tile(columns, MOST, arithmetic, "swi_glu", x)
    parts = triton.cdiv(columns, cut.columns)
    work.start(
        swi_glu_kernel,
        triton.cdiv(rows, cut.rows) * parts,
        *(whole, result.matrix, rows, columns, parts, whole.stride(0), result.stride),
        **{"ROWS": cut.rows, "COLUMNS": cut.columns, "WIDE": arithmetic, "num_warps": cut.warps},
    )
    result.finish()


swi_glu = Operator("swi_glu", launch)
