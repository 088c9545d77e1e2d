"""What the backward passes of norms share: RMS norm's is layer norm's without the mean, others are that of a sum."""

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from descend.triton.functions import add_slots, chunk_of_row, load_rows, store_rows
from descend.triton.tiles import chunk, slabs, tile, torch_dtype, wide
from descend.triton.work import Work

_MOST = 8192
"""Columns of rows that a program holds whole, with their column sums."""


@dataclass(frozen=True)
class Sum:
    """What norms of a sum, alpha * x + gx, have beside x; None: the sum is x, and its gradient is dx alone."""

    gx: Tensor | None
    alpha: float = 1.0
    dgx: Tensor | None = None
    """The sum's gradient, where dx is alpha times it."""
    dsum: Tensor | None = None
    """What is added to dx."""


@triton.jit
def xhat_of(
    x_ptr,
    gx_ptr,
    mean_ptr,
    rstd_ptr,
    r,
    c,
    rows,
    x_stride,
    gx_stride,
    alpha,
    inside,
    CENTERED: tl.constexpr,
    SUMMED: tl.constexpr,
    WIDE: tl.constexpr,
):
    """(x - mean) * rstd of a tile, 0 outside, and rstd; where gx is given, of alpha * x + gx."""
    x = load_rows(x_ptr, r, c, x_stride, inside, WIDE)
    if SUMMED:
        x = x * tl.full([], alpha, WIDE) + load_rows(gx_ptr, r, c, gx_stride, inside, WIDE)
    rstd = tl.load(rstd_ptr + r, mask=r < rows, other=0).to(WIDE)
    if CENTERED:
        x = x - tl.load(mean_ptr + r, mask=r < rows, other=0).to(WIDE)[:, None]
    return tl.where(inside, x * rstd[:, None], 0.0), rstd


@triton.jit
def load_gamma(gamma_ptr, c, columns, WEIGHTED: tl.constexpr, WIDE: tl.constexpr):
    """The weight of the columns; ones where there is none."""
    if WEIGHTED:
        return tl.load(gamma_ptr + c, mask=c < columns, other=0).to(WIDE)[None, :]
    else:
        return tl.full([1, 1], 1.0, WIDE)


@triton.jit
def rows_kernel(
    dy_ptr,
    x_ptr,
    gx_ptr,
    mean_ptr,
    rstd_ptr,
    gamma_ptr,
    dx_ptr,
    dgx_ptr,
    dsum_ptr,
    dgamma_ptr,
    dbeta_ptr,
    rows,
    columns,
    slab_rows,
    dy_stride,
    x_stride,
    gx_stride,
    dx_stride,
    dgx_stride,
    dsum_stride,
    alpha: "fp64",  # noqa: F821  Triton's name of the type
    CENTERED: tl.constexpr,
    SUMMED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    DX: tl.constexpr,
    DGX: tl.constexpr,
    ADDED: tl.constexpr,
    DGAMMA: tl.constexpr,
    DBETA: tl.constexpr,
    FULL: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A slab of whole rows, tile by tile, each element read once; its column sums go to a slot."""
    if FULL:
        columns = COLUMNS  # no lane is outside
    slot = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, COLUMNS)
    dgamma = tl.zeros([ROWS, COLUMNS], WIDE)
    dbeta = tl.zeros([ROWS, COLUMNS], WIDE)
    r = slot * slab_rows + tl.arange(0, ROWS)
    for _ in range(0, slab_rows, ROWS):
        inside = (r < rows)[:, None] & (c < columns)[None, :]
        dy = load_rows(dy_ptr, r, c, dy_stride, inside, WIDE)
        xhat, rstd = xhat_of(
            *(x_ptr, gx_ptr, mean_ptr, rstd_ptr, r, c, rows, x_stride, gx_stride, alpha, inside),
            *(CENTERED, SUMMED, WIDE),
        )
        if DGAMMA:
            dgamma += dy * xhat
        if DBETA:
            dbeta += dy
        if DX:
            g = dy * load_gamma(gamma_ptr, c, columns, WEIGHTED, WIDE)  # read again, for want of registers
            slope = (tl.sum(g * xhat, axis=1).to(tl.float64) / columns).to(WIDE)
            difference = g - xhat * slope[:, None]
            if CENTERED:
                difference -= (tl.sum(g, axis=1).to(tl.float64) / columns).to(WIDE)[:, None]
            gradient = rstd[:, None] * difference
            if DGX:
                store_rows(dgx_ptr, r, c, dgx_stride, inside, gradient)
                gradient *= tl.full([], alpha, WIDE)
            if ADDED:
                gradient += load_rows(dsum_ptr, r, c, dsum_stride, inside, WIDE)
            store_rows(dx_ptr, r, c, dx_stride, inside, gradient)
        r += ROWS
    if DGAMMA:
        tl.store(dgamma_ptr + slot * columns + c, narrow_sum(dgamma, dgamma_ptr), mask=c < columns)
    if DBETA:
        tl.store(dbeta_ptr + slot * columns + c, narrow_sum(dbeta, dbeta_ptr), mask=c < columns)


@triton.jit
def narrow_sum(terms, pointer):
    """The sums of the columns of a tile, in the dtype of the slots."""
    return tl.sum(terms, axis=0).to(pointer.dtype.element_ty)


@triton.jit
def sums_kernel(
    dy_ptr,
    x_ptr,
    gx_ptr,
    mean_ptr,
    rstd_ptr,
    gamma_ptr,
    sums_ptr,
    rows,
    columns,
    chunks,
    dy_stride,
    x_stride,
    gx_stride,
    alpha: "fp64",  # noqa: F821
    CENTERED: tl.constexpr,
    SUMMED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The row sums of g * xhat and g of every chunk of every row, [chunks, 2, rows], float64."""
    part, r, c, inside = chunk_of_row(columns, chunks, COLUMNS)
    g = load_rows(dy_ptr, r, c, dy_stride, inside, WIDE) * load_gamma(gamma_ptr, c, columns, WEIGHTED, WIDE)
    xhat, _ = xhat_of(
        *(x_ptr, gx_ptr, mean_ptr, rstd_ptr, r, c, rows, x_stride, gx_stride, alpha, inside), *(CENTERED, SUMMED, WIDE)
    )
    place = sums_ptr + part * 2 * rows + r
    tl.store(place, tl.sum(g * xhat, axis=1).to(tl.float64))
    tl.store(place + rows, tl.sum(g, axis=1).to(tl.float64))


@triton.jit
def apply_kernel(
    dy_ptr,
    x_ptr,
    gx_ptr,
    mean_ptr,
    rstd_ptr,
    gamma_ptr,
    sums_ptr,
    dx_ptr,
    dgx_ptr,
    dsum_ptr,
    dgamma_ptr,
    dbeta_ptr,
    rows,
    columns,
    chunks,
    slab_rows,
    dy_stride,
    x_stride,
    gx_stride,
    dx_stride,
    dgx_stride,
    dsum_stride,
    alpha: "fp64",  # noqa: F821  Triton's name of the type
    CENTERED: tl.constexpr,
    SUMMED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    DX: tl.constexpr,
    DGX: tl.constexpr,
    ADDED: tl.constexpr,
    DGAMMA: tl.constexpr,
    DBETA: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One chunk of a slab of rows whose sums, [2, rows], are known."""
    at = tl.program_id(0).to(tl.int64)
    slot, chunk = at // chunks, at % chunks
    c = chunk * COLUMNS + tl.arange(0, COLUMNS)
    dgamma = tl.zeros([1, COLUMNS], WIDE)
    dbeta = tl.zeros([1, COLUMNS], WIDE)
    r = slot * slab_rows + tl.arange(0, 1)
    for _ in range(0, slab_rows):
        inside = (r < rows)[:, None] & (c < columns)[None, :]
        dy = load_rows(dy_ptr, r, c, dy_stride, inside, WIDE)
        xhat, rstd = xhat_of(
            *(x_ptr, gx_ptr, mean_ptr, rstd_ptr, r, c, rows, x_stride, gx_stride, alpha, inside),
            *(CENTERED, SUMMED, WIDE),
        )
        if DGAMMA:
            dgamma += dy * xhat
        if DBETA:
            dbeta += dy
        if DX:
            slope = (tl.load(sums_ptr + r, mask=r < rows, other=0) / columns).to(WIDE)
            g = dy * load_gamma(gamma_ptr, c, columns, WEIGHTED, WIDE)
            difference = g - xhat * slope[:, None]
            if CENTERED:
                difference -= (tl.load(sums_ptr + rows + r, mask=r < rows, other=0) / columns).to(WIDE)[:, None]
            gradient = rstd[:, None] * difference
            if DGX:
                store_rows(dgx_ptr, r, c, dgx_stride, inside, gradient)
                gradient *= tl.full([], alpha, WIDE)
            if ADDED:
                gradient += load_rows(dsum_ptr, r, c, dsum_stride, inside, WIDE)
            store_rows(dx_ptr, r, c, dx_stride, inside, gradient)
        r += 1
    if DGAMMA:
        tl.store(dgamma_ptr + slot * columns + c, narrow_sum(dgamma, dgamma_ptr), mask=c < columns)
    if DBETA:
        tl.store(dbeta_ptr + slot * columns + c, narrow_sum(dbeta, dbeta_ptr), mask=c < columns)


def norm_backward(
    work: Work,
    name: str,
    rows: int,
    columns: int,
    dy: Tensor,
    x: Tensor,
    mean: Tensor | None,
    rstd: Tensor,
    gamma: Tensor | None,
    dx: Tensor | None,
    dgamma: Tensor | None,
    dbeta: Tensor | None,
    sum_with: Sum | None = None,
) -> None:
    """Starts the kernels of operator ``name`` on the matrix [rows, columns] that ``dy`` and ``x`` are.

    Outputs that are None are left out. Without ``mean`` it is RMS norm's backward pass, without ``gamma`` all weights
    are 1. With ``sum_with`` it is that of a sum in place of x.
    """
    if columns == 0:
        return
    columns_out = [None if t is None else work.output(t, 1, columns) for t in (dgamma, dbeta)]
    if rows == 0:
        for output in columns_out:
            if output is not None:
                output.matrix.zero_()
                output.finish()
        return
    of = sum_with or Sum(None)
    alpha = of.alpha
    arithmetic: Any = wide(dy, x, of.gx, of.dsum, mean, rstd, gamma, dx, of.dgx, dgamma, dbeta)
    dy, x = work.rows_of(dy, rows, columns), work.rows_of(x, rows, columns)
    gx, dsum = (None if t is None else work.rows_of(t, rows, columns) for t in (of.gx, of.dsum))
    vectors = [None if t is None else work.vector(t) for t in (mean, rstd, gamma)]
    rows_out = [None if t is None else work.output(t, rows, columns) for t in (dx, of.dgx)]
    matrices = [None if output is None else output.matrix for output in rows_out]
    strides = (dy.stride(0), x.stride(0), 0 if gx is None else gx.stride(0))
    strides_out = [0 if t is None else t.stride(0) for t in (*matrices, dsum)]
    whole = tile(columns, _MOST, arithmetic, name, x)
    split = columns > whole.columns
    cut = chunk(arithmetic) if split else whole
    parts = slabs(rows, 1 if split else cut.rows, cut.slabs)
    slots = [None if t is None else work.empty((parts.count, columns), torch_dtype(arithmetic)) for t in columns_out]
    form = {
        **{"CENTERED": mean is not None, "SUMMED": gx is not None, "WEIGHTED": gamma is not None, "WIDE": arithmetic},
        **{"COLUMNS": cut.columns, "num_warps": cut.warps},
    }
    wanted = {"DX": dx is not None, "DGAMMA": dgamma is not None, "DBETA": dbeta is not None}
    wanted |= {"DGX": of.dgx is not None, "ADDED": dsum is not None}
    inputs = (dy, x, gx, *vectors)
    if split:
        chunks = triton.cdiv(columns, cut.columns)
        sums = None
        if dx is not None:
            partial, sums = work.empty((chunks, 2 * rows)), work.empty((2 * rows,))
            work.start(sums_kernel, rows * chunks, *inputs, partial, rows, columns, chunks, *strides, alpha, **form)
            add_slots(work, partial, sums)
        work.start(
            apply_kernel,
            parts.count * chunks,
            *(*inputs, sums, *matrices, dsum, *slots, rows, columns, chunks, parts.rows, *strides, *strides_out, alpha),
            **form,
            **wanted,
        )
    else:
        work.start(
            rows_kernel,
            parts.count,
            *(*inputs, *matrices, dsum, *slots, rows, columns, parts.rows, *strides, *strides_out, alpha),
            **{"ROWS": cut.rows, "FULL": columns == cut.columns, **form, **wanted},
        )
    for output in rows_out:
        if output is not None:
            output.finish()
    for output, sums_of_slabs in zip(columns_out, slots, strict=True):
        if output is not None and sums_of_slabs is not None:
            add_slots(work, sums_of_slabs, output.matrix)
            output.finish()
