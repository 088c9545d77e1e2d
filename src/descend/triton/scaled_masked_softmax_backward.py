"""Gradient of the scaled, masked softmax on CUDA: scale * (g * y - y * sum(g * y)), exactly 0 beneath the mask."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.functions import add_slots, load_rows, store_rows
from descend.triton.mask import Mask, masked
from descend.triton.tiles import Output, chunk, empty, rows_of, tile, wide

_MOST = 16384
"""Columns of rows that a program holds whole."""


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
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, COLUMNS)
    inside = (r < rows)[:, None] & (c < columns)[None, :]
    g = load_rows(g_ptr, r, c, g_stride, inside, WIDE)
    y = load_rows(y_ptr, r, c, y_stride, inside, WIDE)
    result = tl.full([], scale, WIDE) * (g * y - y * tl.sum(g * y, axis=1)[:, None])
    if MASK:
        hidden = masked(mask_ptr, r, c, inside, size1, size2, stride0, stride1, stride2, column_stride, MASK)
        result = tl.where(hidden, 0.0, result)
    store_rows(out_ptr, r, c, out_stride, inside, result)


@triton.jit
def sums_kernel(
    g_ptr, y_ptr, sums_ptr, rows, columns, chunks, g_stride, y_stride, COLUMNS: tl.constexpr, WIDE: tl.constexpr
):
    """The sum of g * y of every chunk of every row, [chunks, rows], float64."""
    at = tl.program_id(0).to(tl.int64)
    row, part = at // chunks, at % chunks
    r, c = row + tl.arange(0, 1), part * COLUMNS + tl.arange(0, COLUMNS)
    inside = (c < columns)[None, :]
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
    at = tl.program_id(0).to(tl.int64)
    row, part = at // chunks, at % chunks
    r, c = row + tl.arange(0, 1), part * COLUMNS + tl.arange(0, COLUMNS)
    inside = (c < columns)[None, :]
    g = load_rows(g_ptr, r, c, g_stride, inside, WIDE)
    y = load_rows(y_ptr, r, c, y_stride, inside, WIDE)
    result = tl.full([], scale, WIDE) * (g * y - y * tl.load(sums_ptr + r).to(WIDE)[:, None])
    if MASK:
        hidden = masked(mask_ptr, r, c, inside, size1, size2, stride0, stride1, stride2, column_stride, MASK)
        result = tl.where(hidden, 0.0, result)
    store_rows(out_ptr, r, c, out_stride, inside, result)


def launch(grad_output: Tensor, y: Tensor, mask: Tensor | None, scale: float, fix_triu_mask: bool, out: Tensor) -> None:
    """Starts the kernels; the parameters are those of aclnnScaledMaskedSoftmaxBackward."""
    if out.numel() == 0:
        return
    columns = y.shape[-1]
    rows = y.numel() // columns
    arithmetic: Any = wide(y)
    hidden = Mask.of(mask, tuple(y.shape), fix_triu_mask)
    g, y, result = rows_of(grad_output, rows, columns), rows_of(y, rows, columns), Output(out, rows, columns)
    strides = (g.stride(0), y.stride(0))
    cut = tile(columns, _MOST, arithmetic)
    if columns <= cut.columns:
        rows_kernel[(triton.cdiv(rows, cut.rows),)](
            *(g, y, hidden.data, result.matrix, rows, columns, *strides, result.stride, scale, *hidden.arguments),
            **{"ROWS": cut.rows, "COLUMNS": cut.columns, "MASK": hidden.kind},
            **{"WIDE": arithmetic, "num_warps": cut.warps},
        )
    else:
        cut = chunk(arithmetic)
        chunks = triton.cdiv(columns, cut.columns)
        form = {"COLUMNS": cut.columns, "WIDE": arithmetic, "num_warps": cut.warps}
        partial, sums = empty((chunks, rows), g), empty((rows,), g)
        sums_kernel[(rows * chunks,)](g, y, partial, rows, columns, chunks, *strides, **form)
        add_slots(partial, sums)
        apply_kernel[(rows * chunks,)](
            *(g, y, hidden.data, result.matrix, sums, columns, chunks, *strides, result.stride),
            *(scale, *hidden.arguments),
            **{"MASK": hidden.kind, **form},
        )
    result.finish()


scaled_masked_softmax_backward = Operator("scaled_masked_softmax_backward", launch)
