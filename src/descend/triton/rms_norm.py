"""RMS norm on CUDA: y = x * rstd * gamma with rstd = 1 / sqrt(mean(x * x) + epsilon); and of a sum x + x2."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.functions import add_slots, chunk_of_row, load_rows, store_rows, sum_of_squares, whole_rows
from descend.triton.tiles import chunk, tile, torch_dtype, wide
from descend.triton.work import Work

_MOST = 16384
"""Columns of rows that a program holds whole."""


@triton.jit
def load_x(x_ptr, x2_ptr, r, c, x_stride, x2_stride, inside, SUMMED: tl.constexpr, WIDE: tl.constexpr):
    """A tile of x, or of the sum."""
    x = load_rows(x_ptr, r, c, x_stride, inside, WIDE)
    if SUMMED:
        x += load_rows(x2_ptr, r, c, x2_stride, inside, WIDE)
    return x


@triton.jit
def store_results(
    gamma_ptr,
    y_ptr,
    sum_ptr,
    x,
    rstd,
    r,
    c,
    columns,
    y_stride,
    sum_stride,
    inside,
    ADDED: tl.constexpr,
    SUMMED: tl.constexpr,
    WIDE: tl.constexpr,
):
    """y of a tile, and the sum."""
    gamma = tl.load(gamma_ptr + c, mask=c < columns, other=0).to(WIDE) + ADDED
    store_rows(y_ptr, r, c, y_stride, inside, x * rstd[:, None] * gamma[None, :])
    if SUMMED:
        store_rows(sum_ptr, r, c, sum_stride, inside, x)


@triton.jit
def rows_kernel(
    x_ptr,
    x2_ptr,
    gamma_ptr,
    y_ptr,
    sum_ptr,
    rstd_ptr,
    rows,
    columns,
    x_stride,
    x2_stride,
    y_stride,
    sum_stride,
    epsilon: "fp64",  # noqa: F821  Triton's name of the type
    ADDED: tl.constexpr,
    SUMMED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A tile of whole rows: each element is read once."""
    r, c, inside = whole_rows(rows, columns, ROWS, COLUMNS)
    x = load_x(x_ptr, x2_ptr, r, c, x_stride, x2_stride, inside, SUMMED, WIDE)
    rstd = (1.0 / tl.sqrt(sum_of_squares(x, WIDE) / columns + epsilon)).to(WIDE)
    store_results(
        *(gamma_ptr, y_ptr, sum_ptr, x, rstd, r, c, columns, y_stride, sum_stride, inside, ADDED, SUMMED, WIDE)
    )
    tl.store(rstd_ptr + r, rstd.to(rstd_ptr.dtype.element_ty), mask=r < rows)


@triton.jit
def squares_kernel(
    x_ptr,
    x2_ptr,
    squares_ptr,
    rows,
    columns,
    chunks,
    x_stride,
    x2_stride,
    SUMMED: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Sums of squares of every chunk of every row, [chunks, rows], float64."""
    part, r, c, inside = chunk_of_row(columns, chunks, COLUMNS)
    x = load_x(x_ptr, x2_ptr, r, c, x_stride, x2_stride, inside, SUMMED, WIDE)
    tl.store(squares_ptr + part * rows + r, sum_of_squares(x, WIDE))


@triton.jit
def apply_kernel(
    x_ptr,
    x2_ptr,
    gamma_ptr,
    y_ptr,
    sum_ptr,
    rstd_ptr,
    squares_ptr,
    columns,
    chunks,
    x_stride,
    x2_stride,
    y_stride,
    sum_stride,
    epsilon: "fp64",  # noqa: F821
    ADDED: tl.constexpr,
    SUMMED: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A chunk of a row whose sum of squares is known."""
    part, r, c, inside = chunk_of_row(columns, chunks, COLUMNS)
    rstd = (1.0 / tl.sqrt(tl.load(squares_ptr + r) / columns + epsilon)).to(WIDE)
    x = load_x(x_ptr, x2_ptr, r, c, x_stride, x2_stride, inside, SUMMED, WIDE)
    store_results(
        *(gamma_ptr, y_ptr, sum_ptr, x, rstd, r, c, columns, y_stride, sum_stride, inside, ADDED, SUMMED, WIDE)
    )
    tl.store(rstd_ptr + r, rstd.to(rstd_ptr.dtype.element_ty), mask=(r >= 0) & (part == 0))


def norm(
    work: Work,
    name: str,
    x: Tensor,
    gamma: Tensor,
    epsilon: float,
    y_out: Tensor,
    rstd_out: Tensor | None,
    added: float = 0.0,
    sum_with: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Starts the kernels of operator ``name``, whose weight is gamma + ``added``.

    ``sum_with`` is the other term of a sum, and where the sum goes.
    """
    columns = gamma.numel()
    if x.numel() == 0:
        if rstd_out is not None:
            rstd_out.fill_(float("nan"))  # the mean of nothing
        return
    rows = x.numel() // columns
    x2, sum_out = sum_with or (x, y_out)
    arithmetic: Any = wide(x, x2, gamma, y_out, sum_out, rstd_out)
    rstd_out = work.empty((rows,), torch_dtype(arithmetic)) if rstd_out is None else rstd_out
    matrix, weight = work.rows_of(x, rows, columns), work.vector(gamma)
    y, rstd = work.output(y_out, rows, columns), work.output(rstd_out, 1, rows)
    other, total = matrix, y
    if sum_with is not None:
        other, total = work.rows_of(x2, rows, columns), work.output(sum_out, rows, columns)
    strides = (matrix.stride(0), other.stride(0), y.stride, total.stride)
    kind = {"ADDED": added, "SUMMED": sum_with is not None}
    cut = tile(columns, _MOST, arithmetic, name, x)
    if columns <= cut.columns:
        work.start(
            rows_kernel,
            triton.cdiv(rows, cut.rows),
            *(matrix, other, weight, y.matrix, total.matrix, rstd.matrix, rows, columns, *strides, epsilon),
            **kind,
            **{"ROWS": cut.rows, "COLUMNS": cut.columns, "WIDE": arithmetic, "num_warps": cut.warps},
        )
    else:
        cut = chunk(arithmetic)
        chunks = triton.cdiv(columns, cut.columns)
        form = {"COLUMNS": cut.columns, "WIDE": arithmetic, "num_warps": cut.warps}
        partial, squares = work.empty((chunks, rows)), work.empty((rows,))
        work.start(
            squares_kernel,
            rows * chunks,
            *(matrix, other, partial, rows, columns, chunks, *strides[:2]),
            SUMMED=kind["SUMMED"],
            **form,
        )
        add_slots(work, partial, squares)
        work.start(
            apply_kernel,
            rows * chunks,
            *(matrix, other, weight, y.matrix, total.matrix, rstd.matrix, squares, columns, chunks, *strides, epsilon),
            **kind,
            **form,
        )
    y.finish()
    if sum_with is not None:
        total.finish()
    rstd.finish()


def launch(work: Work, x: Tensor, gamma: Tensor, epsilon: float, y_out: Tensor, rstd_out: Tensor) -> None:
    """Starts the kernels; the parameters are those of aclnnRmsNorm."""
    norm(work, "rms_norm", x, gamma, epsilon, y_out, rstd_out)


rms_norm = Operator("rms_norm", launch)
