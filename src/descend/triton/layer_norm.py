"""Layer norm on CUDA: out = (input - mean) * rstd * weight + bias."""

import math
from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.functions import (
    chunk_of_row,
    load_rows,
    moments,
    moments_of_chunks,
    scale_of,
    store_rows,
    store_statistics,
    whole_rows,
)
from descend.triton.tiles import chunk, tile, wide
from descend.triton.work import Work

_MOST = 16384
"""Columns of rows that a program holds whole."""


@triton.jit
def affine(xhat, weight_ptr, bias_ptr, c, columns, WEIGHTED: tl.constexpr, BIASED: tl.constexpr, WIDE: tl.constexpr):
    """xhat * weight + bias, where they are."""
    if WEIGHTED:
        xhat = xhat * tl.load(weight_ptr + c, mask=c < columns, other=0).to(WIDE)[None, :]
    if BIASED:
        xhat = xhat + tl.load(bias_ptr + c, mask=c < columns, other=0).to(WIDE)[None, :]
    return xhat


@triton.jit
def rows_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    mean_ptr,
    rstd_ptr,
    rows,
    columns,
    x_stride,
    y_stride,
    epsilon: "fp64",  # noqa: F821
    WEIGHTED: tl.constexpr,
    BIASED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A tile of whole rows: each element is read once."""
    r, c, inside = whole_rows(rows, columns, ROWS, COLUMNS)
    x = load_rows(x_ptr, r, c, x_stride, inside, WIDE)
    mean, squares = moments(x, inside, columns, WIDE)
    centre, level, rstd = scale_of(mean, squares / columns, epsilon, WIDE)
    xhat = (x - centre[:, None]) * rstd[:, None] + level[:, None]
    store_rows(y_ptr, r, c, y_stride, inside, affine(xhat, weight_ptr, bias_ptr, c, columns, WEIGHTED, BIASED, WIDE))
    store_statistics(mean_ptr, rstd_ptr, r, r < rows, mean.to(WIDE), rstd)


@triton.jit
def apply_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    mean_ptr,
    rstd_ptr,
    row_mean_ptr,
    row_variance_ptr,
    columns,
    chunks,
    x_stride,
    y_stride,
    epsilon: "fp64",  # noqa: F821
    WEIGHTED: tl.constexpr,
    BIASED: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A chunk of a row whose mean and variance are known."""
    part, r, c, inside = chunk_of_row(columns, chunks, COLUMNS)
    mean = tl.load(row_mean_ptr + r)
    centre, level, rstd = scale_of(mean, tl.load(row_variance_ptr + r), epsilon, WIDE)
    x = load_rows(x_ptr, r, c, x_stride, inside, WIDE)
    xhat = (x - centre[:, None]) * rstd[:, None] + level[:, None]
    store_rows(y_ptr, r, c, y_stride, inside, affine(xhat, weight_ptr, bias_ptr, c, columns, WEIGHTED, BIASED, WIDE))
    store_statistics(mean_ptr, rstd_ptr, r, (r >= 0) & (part == 0), mean.to(WIDE), rstd)


def launch(
    work: Work,
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    out: Tensor,
    mean_out: Tensor,
    rstd_out: Tensor,
) -> None:
    """Starts the kernels; the parameters are those of aclnnLayerNorm."""
    columns = normalized_shape if isinstance(normalized_shape, int) else math.prod(normalized_shape)
    rows = mean_out.numel()
    if rows == 0:
        return
    if columns == 0:
        mean_out.zero_()
        rstd_out.fill_(float("nan"))
        return
    arithmetic: Any = wide(input, weight, bias, out, mean_out, rstd_out)
    x = work.rows_of(input, rows, columns)
    weight, bias = (None if t is None else work.vector(t) for t in (weight, bias))
    y, mean, rstd = work.output(out, rows, columns), work.output(mean_out, 1, rows), work.output(rstd_out, 1, rows)
    tensors = (x, weight, bias, y.matrix, mean.matrix, rstd.matrix)
    form = {"WEIGHTED": weight is not None, "BIASED": bias is not None, "WIDE": arithmetic}
    cut = tile(columns, _MOST, arithmetic, "layer_norm", x)
    if columns <= cut.columns:
        work.start(
            rows_kernel,
            triton.cdiv(rows, cut.rows),
            *(*tensors, rows, columns, x.stride(0), y.stride, eps),
            **{"ROWS": cut.rows, "COLUMNS": cut.columns, "num_warps": cut.warps, **form},
        )
    else:
        cut = chunk(arithmetic)
        chunks = triton.cdiv(columns, cut.columns)
        moments_of_rows = moments_of_chunks(work, x, 1, columns, arithmetic)
        work.start(
            apply_kernel,
            rows * chunks,
            *(*tensors, *moments_of_rows, columns, chunks, x.stride(0), y.stride, eps),
            **{"COLUMNS": cut.columns, "num_warps": cut.warps, **form},
        )
    for output in (y, mean, rstd):
        output.finish()


layer_norm = Operator("layer_norm", launch)
