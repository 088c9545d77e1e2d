"""Softmax along a dimension on CUDA, and log softmax. Where the dimension is not the last, rows are copied together."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.functions import chunk_of_row, exp_of_negative, load_rows, store_rows, whole_rows
from descend.triton.mask import Mask
from descend.triton.scaled_masked_softmax import merge_kernel, sums_kernel
from descend.triton.tiles import chunk, tile, torch_dtype, wide
from descend.triton.work import Work

MOST = 16384
"""Columns of rows that a program holds whole."""


@triton.jit
def result_of(below, share, LOG: tl.constexpr, WIDE: tl.constexpr):
    """A result from the distance to the largest element, and 1 / sum of exponentials of these, in float64."""
    if LOG:
        return below + tl.log(share).to(WIDE)[:, None]
    return exp_of_negative(below, WIDE) * share.to(WIDE)[:, None]


@triton.jit
def rows_kernel(
    x_ptr,
    out_ptr,
    rows,
    columns,
    x_stride,
    out_stride,
    LOG: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A tile of whole rows: each element is read once."""
    r, c, inside = whole_rows(rows, columns, ROWS, COLUMNS)
    x = tl.where(inside, load_rows(x_ptr, r, c, x_stride, inside, WIDE), float("-inf"))
    below = x - tl.max(x, axis=1)[:, None]
    total = tl.sum(tl.where(inside, exp_of_negative(below, WIDE), 0.0), axis=1)
    store_rows(out_ptr, r, c, out_stride, inside, result_of(below, 1.0 / total.to(tl.float64), LOG, WIDE))


@triton.jit
def apply_kernel(
    x_ptr,
    out_ptr,
    most_ptr,
    share_ptr,
    columns,
    chunks,
    x_stride,
    out_stride,
    LOG: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A chunk of a row whose largest element and sum are known."""
    _, r, c, inside = chunk_of_row(columns, chunks, COLUMNS)
    below = load_rows(x_ptr, r, c, x_stride, inside, WIDE) - tl.load(most_ptr + r)[:, None]
    share = tl.load(share_ptr + r).to(tl.float64)
    store_rows(out_ptr, r, c, out_stride, inside, result_of(below, share, LOG, WIDE))


def last(tensor: Tensor, dim: int) -> Tensor:
    """A view with this dimension as the last one; a number is a vector of one."""
    return tensor.movedim(dim, -1) if tensor.dim() else tensor.unsqueeze(0)


def launcher(name: str) -> Any:
    """What starts the kernels of the operator of this name; its parameters are those of its aclnn function."""

    def launch(work: Work, x: Tensor, dim: int, out: Tensor) -> None:
        if out.numel() == 0:
            return
        x, out = last(x, dim), last(out, dim)
        columns, arithmetic = x.shape[-1], wide(x, out)
        rows = x.numel() // columns
        matrix, result = work.rows_of(x, rows, columns), work.output(out, rows, columns)
        cut = tile(columns, MOST, arithmetic, name, x)
        form: dict[str, Any] = {"LOG": name == "log_softmax", "WIDE": arithmetic}
        if columns <= cut.columns:
            work.start(
                rows_kernel,
                triton.cdiv(rows, cut.rows),
                *(matrix, result.matrix, rows, columns, matrix.stride(0), result.stride),
                **{"ROWS": cut.rows, "COLUMNS": cut.columns, "num_warps": cut.warps, **form},
            )
        else:
            cut = chunk(arithmetic)
            chunks = triton.cdiv(columns, cut.columns)
            like = torch_dtype(arithmetic)
            most, total, row_most, row_share = (
                work.empty(shape, like) for shape in ((chunks, rows), (chunks, rows), (rows,), (rows,))
            )
            none = Mask.of(work, None, (rows, columns), False)
            work.start(
                sums_kernel,
                rows * chunks,
                *(matrix, none.data, most, total, rows, columns, chunks, matrix.stride(0), 1.0, *none.arguments),
                **{"MASK": none.kind, "COLUMNS": cut.columns, "WIDE": arithmetic, "num_warps": cut.warps},
            )
            work.start(
                merge_kernel,
                triton.cdiv(rows, 128),
                *(most, total, row_most, row_share, rows, chunks),
                **{"ROWS": 128, "WIDE": arithmetic, "num_warps": 4},
            )
            work.start(
                apply_kernel,
                rows * chunks,
                *(matrix, result.matrix, row_most, row_share, columns, chunks, matrix.stride(0), result.stride),
                **{"COLUMNS": cut.columns, "num_warps": cut.warps, **form},
            )
        result.finish()

    return launch


softmax = Operator("softmax", launcher("softmax"))
