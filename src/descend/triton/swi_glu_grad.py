"""The gradient of SwiGLU on CUDA: dy * b times the slope of swish at a, and dy * a * sigmoid(a)."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.functions import load_rows, part_of_rows, store_rows
from descend.triton.swi_glu import MOST, halves, product
from descend.triton.swish import sigmoid, slope_of_swish
from descend.triton.tiles import tile, wide
from descend.triton.work import Work


@triton.jit
def swi_glu_grad_kernel(
    dy_ptr,
    x_ptr,
    out_ptr,
    rows,
    columns,
    parts,
    dy_stride,
    x_stride,
    out_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A tile of some rows."""
    r, c, inside = part_of_rows(rows, columns, parts, ROWS, COLUMNS)
    dy = load_rows(dy_ptr, r, c, dy_stride, inside, WIDE)
    a = load_rows(x_ptr, r, c, x_stride, inside, WIDE)
    b = load_rows(x_ptr + columns, r, c, x_stride, inside, WIDE)
    # As the formula has it, the slope at an infinity is inf * 0. It is at most 1.1, with which dy may overflow.
    slope = tl.where(tl.abs(a) == float("inf"), float("nan"), slope_of_swish(a, 1.0, WIDE))
    store_rows(out_ptr, r, c, out_stride, inside, product(0.5 * slope, dy, b) * 2.0)
    store_rows(out_ptr + columns, r, c, out_stride, inside, product(sigmoid(a, WIDE), dy, a))


def launch(work: Work, y_grad: Tensor, x: Tensor, dim: int, out: Tensor) -> None:
    """Starts the kernel; the parameters are those of aclnnSwiGluGrad."""
    if out.numel() == 0:
        return
    rows, columns = halves(x, dim)
    arithmetic: Any = wide(x)
    dy, whole = work.rows_of(y_grad, rows, columns), work.rows_of(x, rows, 2 * columns)
    result = work.output(out, rows, 2 * columns)
    cut = tile(columns, MOST, arithmetic, "swi_glu_grad", x)
    parts = triton.cdiv(columns, cut.columns)
    work.start(
        swi_glu_grad_kernel,
        triton.cdiv(rows, cut.rows) * parts,
        *(dy, whole, result.matrix, rows, columns, parts, dy.stride(0), whole.stride(0), result.stride),
        **{"ROWS": cut.rows, "COLUMNS": cut.columns, "WIDE": arithmetic, "num_warps": cut.warps},
    )
    result.finish()


swi_glu_grad = Operator("swi_glu_grad", launch)
