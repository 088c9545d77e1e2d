"""Layer norm on CUDA: out = (input - mean) * rstd * weight + bias; and of a sum."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
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
from descend.triton.tiles import chunk, tile, torch_dtype, wide
from descend.triton.work import Work

_MOST = 16384
"""Columns of rows that a program holds whole."""


@dataclass(frozen=True)
class Sum:
    """What norms of a sum, alpha * x + x2 + addend, have beside x."""

    x2: Tensor
    alpha: float = 1.0
    addend: Tensor | None = None
    """As the weight or as x."""
    out: Tensor | None = None
    """Where the sum goes."""


@triton.jit
def load_sum(
    x_ptr,
    x2_ptr,
    addend_ptr,
    r,
    c,
    x_stride,
    x2_stride,
    addend_stride,
    alpha,
    inside,
    SUMMED: tl.constexpr,
    ADDED: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A tile of x, or of the sum."""
    x = load_rows(x_ptr, r, c, x_stride, inside, WIDE)
    if SUMMED:
        x = x * tl.full([], alpha, WIDE) + load_rows(x2_ptr, r, c, x2_stride, inside, WIDE)
    if ADDED:
        x += load_rows(addend_ptr, r, c, addend_stride, inside, WIDE)
    return x


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
    x2_ptr,
    addend_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    sum_ptr,
    mean_ptr,
    rstd_ptr,
    rows,
    columns,
    x_stride,
    x2_stride,
    addend_stride,
    y_stride,
    sum_stride,
    alpha: "fp64",  # noqa: F821
    epsilon: "fp64",  # noqa: F821
    SUMMED: tl.constexpr,
    ADDED: tl.constexpr,
    SUM: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BIASED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A tile of whole rows: each element is read once."""
    r, c, inside = whole_rows(rows, columns, ROWS, COLUMNS)
    x = load_sum(
        *(x_ptr, x2_ptr, addend_ptr, r, c, x_stride, x2_stride, addend_stride, alpha, inside, SUMMED, ADDED, WIDE)
    )
    if SUM:
        store_rows(sum_ptr, r, c, sum_stride, inside, x)
    mean, squares = moments(x, inside, columns, WIDE)
    centre, level, rstd = scale_of(mean, squares / columns, epsilon, WIDE)
    xhat = (x - centre[:, None]) * rstd[:, None] + level[:, None]
    store_rows(y_ptr, r, c, y_stride, inside, affine(xhat, weight_ptr, bias_ptr, c, columns, WEIGHTED, BIASED, WIDE))
    store_statistics(mean_ptr, rstd_ptr, r, r < rows, mean.to(WIDE), rstd)


@triton.jit
def sum_kernel(
    x_ptr,
    x2_ptr,
    addend_ptr,
    wide_ptr,
    sum_ptr,
    columns,
    chunks,
    x_stride,
    x2_stride,
    addend_stride,
    sum_stride,
    alpha: "fp64",  # noqa: F821
    SUMMED: tl.constexpr,
    ADDED: tl.constexpr,
    SUM: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A chunk of a sum, as it is, and rounded."""
    _, r, c, inside = chunk_of_row(columns, chunks, COLUMNS)
    x = load_sum(
        *(x_ptr, x2_ptr, addend_ptr, r, c, x_stride, x2_stride, addend_stride, alpha, inside, SUMMED, ADDED, WIDE)
    )
    store_rows(wide_ptr, r, c, columns, inside, x)
    if SUM:
        store_rows(sum_ptr, r, c, sum_stride, inside, x)


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
    norm(work, "layer_norm", columns, input, weight, bias, eps, out, mean_out, rstd_out)


def norm(
    work: Work,
    name: str,
    columns: int,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    out: Tensor,
    mean_out: Tensor,
    rstd_out: Tensor,
    sum_with: Sum | None = None,
) -> None:
    """Starts the kernels of operator ``name``; with ``sum_with`` what is normalised is a sum."""
    rows = mean_out.numel()
    if rows == 0:
        return
    if columns == 0:
        mean_out.zero_()
        rstd_out.fill_(float("nan"))
        return
    x2, alpha, addend, sum_out = (None, 1.0, None, None)
    if sum_with is not None:
        x2, alpha, addend, sum_out = sum_with.x2, sum_with.alpha, sum_with.addend, sum_with.out
    arithmetic: Any = wide(input, x2, addend, weight, bias, out, sum_out, mean_out, rstd_out)
    x = work.rows_of(input, rows, columns)
    if addend is not None:
        repeated = addend.shape != input.shape
        addend = work.vector(addend).expand(rows, columns) if repeated else work.rows_of(addend, rows, columns)
    x2 = None if x2 is None else work.rows_of(x2, rows, columns)
    weight, bias = (None if t is None else work.vector(t) for t in (weight, bias))
    y, mean, rstd = work.output(out, rows, columns), work.output(mean_out, 1, rows), work.output(rstd_out, 1, rows)
    total = None if sum_out is None else work.output(sum_out, rows, columns)
    terms, total_matrix = (x, x2, addend), None if total is None else total.matrix
    strides = [0 if t is None else t.stride(0) for t in (*terms, total_matrix)]
    summed = {"SUMMED": x2 is not None, "ADDED": addend is not None, "SUM": total is not None}
    parameters, results = (weight, bias), (mean.matrix, rstd.matrix)
    form = {"WEIGHTED": weight is not None, "BIASED": bias is not None, "WIDE": arithmetic}
    cut = tile(columns, _MOST, arithmetic, name, x)
    if columns <= cut.columns:
        work.start(
            rows_kernel,
            triton.cdiv(rows, cut.rows),
            *(*terms, *parameters, y.matrix, total_matrix, *results, rows, columns),
            *(*strides[:3], y.stride, strides[3], alpha, eps),
            **{"ROWS": cut.rows, "COLUMNS": cut.columns, "num_warps": cut.warps, **form, **summed},
        )
    else:
        cut = chunk(arithmetic)
        chunks = triton.cdiv(columns, cut.columns)
        if x2 is not None:
            whole = work.empty((rows, columns), torch_dtype(arithmetic))
            work.start(
                sum_kernel,
                rows * chunks,
                *(*terms, whole, total_matrix, columns, chunks, *strides, alpha),
                **{"COLUMNS": cut.columns, "num_warps": cut.warps, "WIDE": arithmetic, **summed},
            )
            x = whole
        moments_of_rows = moments_of_chunks(work, x, 1, columns, arithmetic)
        work.start(
            apply_kernel,
            rows * chunks,
            *(x, *parameters, y.matrix, *results, *moments_of_rows, columns, chunks, x.stride(0), y.stride, eps),
            **{"COLUMNS": cut.columns, "num_warps": cut.warps, **form},
        )
    for output in (y, mean, rstd, total):
        if output is not None:
            output.finish()


layer_norm = Operator("layer_norm", launch)
