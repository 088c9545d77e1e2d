"""Scaled, masked softmax over the last axis on CUDA: softmax of scale * x, or of -10000 where the mask is true."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.functions import chunk_of_row, exp_of_negative, load_rows, store_rows, whole_rows
from descend.triton.mask import Mask, masked
from descend.triton.tiles import chunk, tile, torch_dtype, wide
from descend.triton.work import Work

_MOST = 16384
"""Columns of rows that a program holds whole."""


@triton.jit
def scores(
    x_ptr, mask_ptr, r, c, inside, stride, scale, size1, size2, stride0, stride1, stride2, column_stride, MASK, WIDE
):
    """scale * x of a tile, -10000 where it is masked, -infinity outside."""
    z = load_rows(x_ptr, r, c, stride, inside, WIDE) * tl.full([], scale, WIDE)
    if MASK:
        hidden = masked(mask_ptr, r, c, inside, size1, size2, stride0, stride1, stride2, column_stride, MASK)
        z = tl.where(hidden, -10000.0, z)
    return tl.where(inside, z, float("-inf"))


@triton.jit
def rows_kernel(
    x_ptr,
    mask_ptr,
    y_ptr,
    rows,
    columns,
    x_stride,
    y_stride,
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
    z = scores(
        *(x_ptr, mask_ptr, r, c, inside, x_stride, scale, size1, size2, stride0, stride1, stride2, column_stride),
        *(MASK, WIDE),
    )
    e = exp_of_negative(z - tl.max(z, axis=1)[:, None], WIDE)
    e = tl.where(inside, e, 0.0)
    share = (1.0 / tl.sum(e, axis=1).to(tl.float64)).to(WIDE)
    store_rows(y_ptr, r, c, y_stride, inside, e * share[:, None])


@triton.jit
def sums_kernel(
    x_ptr,
    mask_ptr,
    most_ptr,
    sum_ptr,
    rows,
    columns,
    chunks,
    x_stride,
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
    """Of every chunk of every row, [chunks, rows]: the greatest z, and the sum of exp(z - it)."""
    part, r, c, inside = chunk_of_row(columns, chunks, COLUMNS)
    z = scores(
        *(x_ptr, mask_ptr, r, c, inside, x_stride, scale, size1, size2, stride0, stride1, stride2, column_stride),
        *(MASK, WIDE),
    )
    most = tl.max(z, axis=1)
    # A chunk of -infinity alone counts for nothing, but one with a NaN for NaN.
    e = tl.where(inside & ~(z == float("-inf")), exp_of_negative(z - most[:, None], WIDE), 0.0)
    tl.store(most_ptr + part * rows + r, most)
    tl.store(sum_ptr + part * rows + r, tl.sum(e, axis=1))


@triton.jit
def merge_kernel(most_ptr, sum_ptr, row_most_ptr, row_share_ptr, rows, chunks, ROWS: tl.constexpr, WIDE: tl.constexpr):
    """The greatest z of whole rows, and 1 / sum of exp(z - it), in the order of the chunks."""
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = r < rows
    most = tl.full([ROWS], float("-inf"), WIDE)
    place = r
    for _ in range(0, chunks):
        most = tl.maximum(most, tl.load(most_ptr + place, mask=inside, other=0))
        place += rows
    total = tl.zeros([ROWS], tl.float64)
    place = r
    for _ in range(0, chunks):
        here = tl.load(most_ptr + place, mask=inside, other=0)
        shift = tl.where(here == float("-inf"), 1.0, exp_of_negative(here - most, WIDE))
        total += tl.load(sum_ptr + place, mask=inside, other=0).to(tl.float64) * shift.to(tl.float64)
        place += rows
    tl.store(row_most_ptr + r, most, mask=inside)
    tl.store(row_share_ptr + r, (1.0 / total).to(WIDE), mask=inside)


@triton.jit
def apply_kernel(
    x_ptr,
    mask_ptr,
    y_ptr,
    most_ptr,
    share_ptr,
    columns,
    chunks,
    x_stride,
    y_stride,
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
    """A chunk of a row whose greatest z and sum are known."""
    _, r, c, inside = chunk_of_row(columns, chunks, COLUMNS)
    z = scores(
        *(x_ptr, mask_ptr, r, c, inside, x_stride, scale, size1, size2, stride0, stride1, stride2, column_stride),
        *(MASK, WIDE),
    )
    e = exp_of_negative(z - tl.load(most_ptr + r)[:, None], WIDE)
    store_rows(y_ptr, r, c, y_stride, inside, e * tl.load(share_ptr + r)[:, None])


def launch(work: Work, x: Tensor, mask: Tensor | None, scale: float, fix_triu_mask: bool, y: Tensor) -> None:
    """Starts the kernels; the parameters are those of aclnnScaledMaskedSoftmax."""
    if y.numel() == 0:
        return
    columns = x.shape[-1]
    rows = x.numel() // columns
    arithmetic: Any = wide(x)
    hidden = Mask.of(work, mask, tuple(x.shape), fix_triu_mask)
    matrix, out = work.rows_of(x, rows, columns), work.output(y, rows, columns)
    cut = tile(columns, _MOST, arithmetic, "scaled_masked_softmax", x)
    form = {"MASK": hidden.kind, "WIDE": arithmetic, "num_warps": cut.warps}
    if columns <= cut.columns:
        work.start(
            rows_kernel,
            triton.cdiv(rows, cut.rows),
            *(matrix, hidden.data, out.matrix, rows, columns, matrix.stride(0), out.stride, scale, *hidden.arguments),
            **{"ROWS": cut.rows, "COLUMNS": cut.columns, **form},
        )
    else:
        cut = chunk(arithmetic)
        chunks = triton.cdiv(columns, cut.columns)
        form |= {"COLUMNS": cut.columns, "num_warps": cut.warps}
        most, total, row_most, row_share = (
            work.empty(shape, torch_dtype(arithmetic)) for shape in ((chunks, rows), (chunks, rows), (rows,), (rows,))
        )
        work.start(
            sums_kernel,
            rows * chunks,
            *(matrix, hidden.data, most, total, rows, columns, chunks, matrix.stride(0), scale, *hidden.arguments),
            **form,
        )
        work.start(
            merge_kernel,
            triton.cdiv(rows, 128),
            most,
            total,
            row_most,
            row_share,
            rows,
            chunks,
            ROWS=128,
            WIDE=arithmetic,
            num_warps=4,
        )
        work.start(
            apply_kernel,
            rows * chunks,
            *(matrix, hidden.data, out.matrix, row_most, row_share, columns, chunks, matrix.stride(0), out.stride),
            *(scale, *hidden.arguments),
            **form,
        )
    out.finish()


scaled_masked_softmax = Operator("scaled_masked_softmax", launch)
