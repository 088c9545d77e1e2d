"""Gradients of softmax and log softmax along a dimension on CUDA."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.functions import add_slots, chunk_of_row, load_rows, store_rows, whole_rows
from descend.triton.softmax import MOST, last
from descend.triton.tiles import chunk, tile, wide
from descend.triton.work import Work


@triton.jit
def term(g, y, LOG: tl.constexpr):
    """What is summed over a row."""
    if LOG:
        return g
    return g * y


@triton.jit
def gradient(g, y, total, LOG: tl.constexpr):
    """The gradient; ``total`` is the sum of each row."""
    if LOG:
        return g - tl.exp(y) * total[:, None]
    return (g - total[:, None]) * y


@triton.jit
def rows_kernel(
    g_ptr,
    y_ptr,
    out_ptr,
    rows,
    columns,
    g_stride,
    y_stride,
    out_stride,
    LOG: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A tile of whole rows: each element is read once."""
    r, c, inside = whole_rows(rows, columns, ROWS, COLUMNS)
    g = load_rows(g_ptr, r, c, g_stride, inside, WIDE)
    y = load_rows(y_ptr, r, c, y_stride, inside, WIDE)
    store_rows(out_ptr, r, c, out_stride, inside, gradient(g, y, tl.sum(term(g, y, LOG), axis=1), LOG))


@triton.jit
def sums_kernel(
    g_ptr,
    y_ptr,
    sums_ptr,
    rows,
    columns,
    chunks,
    g_stride,
    y_stride,
    LOG: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The sum of every chunk of every row, [chunks, rows], float64."""
    part, r, c, inside = chunk_of_row(columns, chunks, COLUMNS)
    g = load_rows(g_ptr, r, c, g_stride, inside, WIDE)
    y = load_rows(y_ptr, r, c, y_stride, inside, WIDE)
    tl.store(sums_ptr + part * rows + r, tl.sum(term(g, y, LOG), axis=1).to(tl.float64))


@triton.jit
def apply_kernel(
    g_ptr,
    y_ptr,
    out_ptr,
    sums_ptr,
    columns,
    chunks,
    g_stride,
    y_stride,
    out_stride,
    LOG: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A chunk of a row whose sum is known."""
    _, r, c, inside = chunk_of_row(columns, chunks, COLUMNS)
    g = load_rows(g_ptr, r, c, g_stride, inside, WIDE)
    y = load_rows(y_ptr, r, c, y_stride, inside, WIDE)
    store_rows(out_ptr, r, c, out_stride, inside, gradient(g, y, tl.load(sums_ptr + r).to(WIDE), LOG))


def launcher(name: str) -> Any:
    """What starts the kernels of the operator of this name; its parameters are those of its aclnn function."""

    def launch(work: Work, grad_output: Tensor, output: Tensor, dim: int, out: Tensor) -> None:
        if out.numel() == 0:
            return
        dy, y, out = last(grad_output, dim), last(output, dim), last(out, dim)
        columns, arithmetic = y.shape[-1], wide(dy, y, out)
        rows = y.numel() // columns
        g, y = work.rows_of(dy, rows, columns), work.rows_of(y, rows, columns)
        result, strides = work.output(out, rows, columns), (g.stride(0), y.stride(0))
        cut = tile(columns, MOST, arithmetic, name, y)
        form: dict[str, Any] = {"LOG": name == "log_softmax_backward", "WIDE": arithmetic}
        if columns <= cut.columns:
            form |= {"ROWS": cut.rows, "COLUMNS": cut.columns, "num_warps": cut.warps}
            work.start(
                rows_kernel,
                triton.cdiv(rows, cut.rows),
                *(g, y, result.matrix, rows, columns, *strides, result.stride),
                **form,
            )
        else:
            cut = chunk(arithmetic)
            chunks = triton.cdiv(columns, cut.columns)
            form |= {"COLUMNS": cut.columns, "num_warps": cut.warps}
            partial, sums = work.empty((chunks, rows)), work.empty((rows,))
            work.start(sums_kernel, rows * chunks, g, y, partial, rows, columns, chunks, *strides, **form)
            add_slots(work, partial, sums)
            work.start(
                apply_kernel,
                rows * chunks,
                *(g, y, result.matrix, sums, columns, chunks, *strides, result.stride),
                **form,
            )
        result.finish()

    return launch


softmax_backward = Operator("softmax_backward", launcher("softmax_backward"))
