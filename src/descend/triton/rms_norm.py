"""RMS norm on CUDA: y = x * rstd * gamma with rstd = 1 / sqrt(mean(x * x) + epsilon)."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.functions import add_slots, chunk_of_row, load_rows, store_rows, sum_of_squares, whole_rows
from descend.triton.tiles import chunk, tile, wide
from descend.triton.work import Work

_MOST = 16384
"""Columns of rows that a program holds whole."""


@triton.jit
def rows_kernel(
    x_ptr,
    gamma_ptr,
    y_ptr,
    rstd_ptr,
    rows,
    columns,
    x_stride,
    y_stride,
    epsilon: "fp64",  # noqa: F821  Triton's name of the type
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A tile of whole rows: each element is read once."""
    r, c, inside = whole_rows(rows, columns, ROWS, COLUMNS)
    gamma = tl.load(gamma_ptr + c, mask=c < columns, other=0).to(WIDE)
    x = load_rows(x_ptr, r, c, x_stride, inside, WIDE)
    rstd = (1.0 / tl.sqrt(sum_of_squares(x, WIDE) / columns + epsilon)).to(WIDE)
    store_rows(y_ptr, r, c, y_stride, inside, x * rstd[:, None] * gamma[None, :])
    tl.store(rstd_ptr + r, rstd.to(rstd_ptr.dtype.element_ty), mask=r < rows)


@triton.jit
def squares_kernel(x_ptr, squares_ptr, rows, columns, chunks, x_stride, COLUMNS: tl.constexpr, WIDE: tl.constexpr):
    """Sums of squares of every chunk of every row, [chunks, rows], float64."""
    part, r, c, inside = chunk_of_row(columns, chunks, COLUMNS)
    x = load_rows(x_ptr, r, c, x_stride, inside, WIDE)
    tl.store(squares_ptr + part * rows + r, sum_of_squares(x, WIDE))


@triton.jit
def apply_kernel(
    x_ptr,
    gamma_ptr,
    y_ptr,
    rstd_ptr,
    squares_ptr,
    columns,
    chunks,
    x_stride,
    y_stride,
    epsilon: "fp64",  # noqa: F821
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A chunk of a row whose sum of squares is known."""
    part, r, c, inside = chunk_of_row(columns, chunks, COLUMNS)
    rstd = (1.0 / tl.sqrt(tl.load(squares_ptr + r) / columns + epsilon)).to(WIDE)
    x = load_rows(x_ptr, r, c, x_stride, inside, WIDE)
    gamma = tl.load(gamma_ptr + c, mask=c < columns, other=0).to(WIDE)
    store_rows(y_ptr, r, c, y_stride, inside, x * rstd[:, None] * gamma[None, :])
    tl.store(rstd_ptr + r, rstd.to(rstd_ptr.dtype.element_ty), mask=(r >= 0) & (part == 0))


def launch(work: Work, x: Tensor, gamma: Tensor, epsilon: float, y_out: Tensor, rstd_out: Tensor) -> None:
    """Starts the kernels; the parameters are those of aclnnRmsNorm."""
    columns, rows = gamma.numel(), rstd_out.numel()
    if rows == 0:
        return
    if columns == 0:
        rstd_out.fill_(float("nan"))  # the mean of nothing
        return
    arithmetic: Any = wide(x, gamma, y_out, rstd_out)
    matrix, weight = work.rows_of(x, rows, columns), work.vector(gamma)
    y, rstd = work.output(y_out, rows, columns), work.output(rstd_out, 1, rows)
    cut = tile(columns, _MOST, arithmetic, "rms_norm", x)
    if columns <= cut.columns:
        work.start(
            rows_kernel,
            triton.cdiv(rows, cut.rows),
            *(matrix, weight, y.matrix, rstd.matrix, rows, columns, matrix.stride(0), y.stride, epsilon),
            **{"ROWS": cut.rows, "COLUMNS": cut.columns, "WIDE": arithmetic, "num_warps": cut.warps},
        )
    else:
        cut = chunk(arithmetic)
        chunks = triton.cdiv(columns, cut.columns)
        form = {"COLUMNS": cut.columns, "WIDE": arithmetic, "num_warps": cut.warps}
        partial, squares = work.empty((chunks, rows)), work.empty((rows,))
        work.start(squares_kernel, rows * chunks, matrix, partial, rows, columns, chunks, matrix.stride(0), **form)
        add_slots(work, partial, squares)
        work.start(
            apply_kernel,
            rows * chunks,
            *(matrix, weight, y.matrix, rstd.matrix, squares, columns, chunks, matrix.stride(0), y.stride, epsilon),
            **form,
        )
    y.finish()
    rstd.finish()


rms_norm = Operator("rms_norm", launch)
