"""The gradient of GELU on CUDA: dy times the slope at x, which is s where x < 0 and 1 - s elsewhere."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.functions import exp_of_negative, load_rows, part_of_rows, store_rows
from descend.triton.gelu_v2 import MOST, exp_of_square, matrix, steep, tail
from descend.triton.tiles import tile, wide
from descend.triton.work import Work


@triton.jit
def gelu_backward_kernel(
    dy_ptr,
    x_ptr,
    dx_ptr,
    rows,
    columns,
    parts,
    dy_stride,
    x_stride,
    dx_stride,
    TANH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A tile of some rows."""
    r, c, inside = part_of_rows(rows, columns, parts, ROWS, COLUMNS)
    dy = load_rows(dy_ptr, r, c, dy_stride, inside, WIDE)
    x = load_rows(x_ptr, r, c, x_stride, inside, WIDE)
    a = tl.abs(x)
    if TANH:
        u, rise = steep(a, WIDE)
        e = exp_of_negative(-u, WIDE)
        s = tl.where(e == 0, 0.0, e * ((1.0 + e) - a * rise) / ((1.0 + e) * (1.0 + e)))
    else:
        e = exp_of_square(a, WIDE)
        s = tl.where(e == 0, 0.0, (tail(a, WIDE) - 0.3989422804014327 * a) * e)
    slope = tl.where(x < 0, s, 1.0 - s)
    # As the formula has it, the slope at an infinity is inf * 0.
    slope = tl.where(a == float("inf"), float("nan"), slope)
    store_rows(dx_ptr, r, c, dx_stride, inside, dy * slope)


def launch(work: Work, grad_output: Tensor, x: Tensor, approximate: str, grad_input: Tensor) -> None:
    """Starts the kernel; the parameters are those of aclnnGeluBackwardV2."""
    if grad_input.numel() == 0:
        return
    rows, columns = matrix(grad_input)
    arithmetic: Any = wide(grad_output, x, grad_input)
    dy, source = (work.rows_of(t.expand(grad_input.shape), rows, columns) for t in (grad_output, x))
    result = work.output(grad_input, rows, columns)
    cut = tile(columns, MOST, arithmetic, "gelu_backward_v2", x)
    parts = triton.cdiv(columns, cut.columns)
    work.start(
        gelu_backward_kernel,
        triton.cdiv(rows, cut.rows) * parts,
        *(dy, source, result.matrix, rows, columns, parts, dy.stride(0), source.stride(0), result.stride),
        **{"TANH": approximate == "tanh", "ROWS": cut.rows, "COLUMNS": cut.columns, "WIDE": arithmetic},
        num_warps=cut.warps,
    )
    result.finish()


gelu_backward_v2 = Operator("gelu_backward_v2", launch)
