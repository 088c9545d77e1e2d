"""Gradient of the scaled, masked softmax on CUDA: scale * (g * y - y * sum(g * y)), exactly 0 beneath the mask."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.functions import add_slots, chunk_of_row, load_rows, store_rows, whole_rows
from descend.triton.mask import Mask, masked
from descend.triton.tiles import chunk, tile, wide
from descend.triton.work import Work

_MOST = 16384
"""Columns of rows that a program holds whole."""


@triton.jit
def gradient(
    g, y, total, mask_ptr, r, c, inside, scale, size1, size2, stride0, stride1, stride2, column_stride, MASK, WIDE
):
    """The gradient of a tile, 0 where it is masked; ``total`` is the sum of g * y of each row."""
    result = tl.full([], scale, WIDE) * (g * y - y * total[:, None])
    if MASK:
        hidden = masked(mask_ptr, r, c, inside, size1, size2, stride0, stride1, stride2, column_stride, MASK)
        result = tl.where(hidden, 0.0, result)
    return result


@triton.jit
def rows_kernel(
    g_ptr,
    y_ptr,
    mask_ptr,
    out_ptr,
    rows,
    columns,
    g_stride,
    y_stride,
    out_stride,
    scale: "fp64",  # noqa: F821
    size1,
    size2,
    stride0,
    stride1,
    stride2,
    column_stride,
    MASK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A tile of whole rows: each element is read once."""
    r, c, inside = whole_rows(rows, columns, ROWS, COLUMNS)
    g = load_rows(g_ptr, r, c, g_stride, inside, WIDE)
    y = load_rows(y_ptr, r, c, y_stride, inside, WIDE)
    result = gradient(
        *(g, y, tl.sum(g * y, axis=1), mask_ptr, r, c, inside, scale),
        *(size1, size2, stride0, stride1, stride2, column_stride, MASK, WIDE),
    )
    store_rows(out_ptr, r, c, out_stride, inside, result)


@triton.jit
def sums_kernel(
    g_ptr, y_ptr, sums_ptr, rows, columns, chunks, g_stride, y_stride, COLUMNS: tl.constexpr, WIDE: tl.constexpr
):
    """The sum of g * y of every chunk of every row, [chunks, rows], float64."""
    part, r, c, inside = chunk_of_row(columns, chunks, COLUMNS)
    g = load_rows(g_ptr, r, c, g_stride, inside, WIDE)
    y = load_rows(y_ptr, r, c, y_stride, inside, WIDE)
    tl.store(sums_ptr + part * rows + r, tl.sum(g * y, axis=1).to(tl.float64))


@triton.jit
def apply_kernel(
    g_ptr,
    y_ptr,
    mask_ptr,
    out_ptr,
    sums_ptr,
    columns,
    chunks,
    g_stride,
    y_stride,
    out_stride,
    scale: "fp64",  # noqa: F821
    size1,
    size2,
    stride0,
    stride1,
    stride2,
    column_stride,
    MASK: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A chunk of a row whose sum is known."""
    _, r, c, inside = chunk_of_row(columns, chunks, COLUMNS)
    g = load_rows(g_ptr, r, c, g_stride, inside, WIDE)
    y = load_rows(y_ptr, r, c, y_stride, inside, WIDE)
    result = gradient(
        *(g, y, tl.load(sums_ptr + r).to(WIDE), mask_ptr, r, c, inside, scale),
        *(size1, size2, stride0, stride1, stride2, column_stride, MASK, WIDE),
    )
    store_rows(out_ptr, r, c, out_stride, inside, result)


def launch(
    work: Work, grad_output: Tensor, y: Tensor, mask: Tensor | None, scale: float, fix_triu_mask: bool, out: Tensor
) -> None:
    """Starts the kernels; the parameters are those of aclnnScaledMaskedSoftmaxBackward."""
    if out.numel() == 0:
        return
    columns = y.shape[-1]
    rows = y.numel() // columns
    arithmetic: Any = wide(y)
    hidden = Mask.of(work, mask, tuple(y.shape), fix_triu_mask)
    g, y = work.rows_of(grad_output, rows, columns), work.rows_of(y, rows, columns)
    result = work.output(out, rows, columns)
    strides = (g.stride(0), y.stride(0))
    cut = tile(columns, _MOST, arithmetic, "scaled_masked_softmax_backward", y)
    if columns <= cut.columns:
        work.start(
            rows_kernel,
            triton.cdiv(rows, cut.rows),
            *(g, y, hidden.data, result.matrix, rows, columns, *strides, result.stride, scale, *hidden.arguments),
            **{"ROWS": cut.rows, "COLUMNS": cut.columns, "MASK": hidden.kind},
            **{"WIDE": arithmetic, "num_warps": cut.warps},
        )
    else:
        cut = chunk(arithmetic)
        chunks = triton.cdiv(columns, cut.columns)
        form = {"COLUMNS": cut.columns, "WIDE": arithmetic, "num_warps": cut.warps}
        partial, sums = work.empty((chunks, rows)), work.empty((rows,))
        work.start(sums_kernel, rows * chunks, g, y, partial, rows, columns, chunks, *strides, **form)
        add_slots(work, partial, sums)
        work.start(
            apply_kernel,
            rows * chunks,
            *(g, y, hidden.data, result.matrix, sums, columns, chunks, *strides, result.stride),
            *(scale, *hidden.arguments),
            **{"MASK": hidden.kind, **form},
        )
    result.finish()


scaled_masked_softmax_backward = Operator("scaled_masked_softmax_backward", launch)
