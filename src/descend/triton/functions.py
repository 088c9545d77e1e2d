"""What the kernels share: stores that round, sums over slots, moments, and exp."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from descend.triton.tiles import chunk
from descend.triton.work import Work

_SLOT_ROWS = 64
_SLOT_ELEMENTS = 2048

# Outside these a sum of squares in float32 may have lost terms to underflow, or overflowed.
_LEAST_SQUARES = tl.constexpr(2.0**-60)
_MOST_SQUARES = tl.constexpr(3.4028234663852886e38)


@triton.jit
def long(value):
    """A number as int64: products of sizes pass 2^31."""
    return tl.full([], value, tl.int64)


@triton.jit
def narrow(value, pointer):
    """The value in the dtype that a pointer points to; float64 becomes 16 bits by way of float32."""
    if pointer.dtype.element_ty.primitive_bitwidth == 16:
        value = value.to(tl.float32)
    return value.to(pointer.dtype.element_ty)


@triton.jit
def whole_rows(rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """This program's tile of whole rows: the rows, int64, the columns, and which of its elements there are."""
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, COLUMNS)
    return r, c, (r < rows)[:, None] & (c < columns)[None, :]


@triton.jit
def part_of_rows(rows, columns, parts, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """This program's tile: the rows, int64, the columns, and which of its elements there are."""
    at = tl.program_id(0).to(tl.int64)
    r = at // parts * ROWS + tl.arange(0, ROWS)
    c = at % parts * COLUMNS + tl.arange(0, COLUMNS)
    return r, c, (r < rows)[:, None] & (c < columns)[None, :]


@triton.jit
def chunk_of_row(columns, chunks, COLUMNS: tl.constexpr):
    """This program's chunk of a row: its number, the row, the columns, and which of its elements there are."""
    at = tl.program_id(0).to(tl.int64)
    row, part = at // chunks, at % chunks
    c = part * COLUMNS + tl.arange(0, COLUMNS)
    return part, row + tl.arange(0, 1), c, (c < columns)[None, :]


@triton.jit
def load_at(pointer, starts, c, inside, WIDE: tl.constexpr):
    """The columns ``c`` of the rows that begin at ``starts`` (int64), 0 outside."""
    return tl.load(pointer + starts[:, None] + c[None, :], mask=inside, other=0).to(WIDE)


@triton.jit
def store_at(pointer, starts, c, inside, value):
    """Writes the columns ``c`` of the rows that begin at ``starts``, rounded once."""
    tl.store(pointer + starts[:, None] + c[None, :], narrow(value, pointer), mask=inside)


@triton.jit
def load_rows(pointer, r, c, stride, inside, WIDE: tl.constexpr):
    """The tile [r, c] of a matrix whose rows lie ``stride`` apart, 0 outside; ``r`` is int64."""
    return load_at(pointer, r * stride, c, inside, WIDE)


@triton.jit
def store_rows(pointer, r, c, stride, inside, value):
    """Writes the tile [r, c], rounded once."""
    store_at(pointer, r * stride, c, inside, value)


@triton.jit
def store_statistics(mean_ptr, rstd_ptr, r, inside, mean, rstd):
    """Mean and rstd of some rows."""
    tl.store(mean_ptr + r, mean.to(mean_ptr.dtype.element_ty), mask=inside)
    tl.store(rstd_ptr + r, rstd.to(rstd_ptr.dtype.element_ty), mask=inside)


# --- sums -------------------------------------------------------------------------------------------------------------


@triton.jit
def add_slots_kernel(slots_ptr, out_ptr, slots, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """out[j] = sum over i of slots[i, j], in float64 and in the order of i; a program has COLUMNS columns."""
    j = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    i = tl.arange(0, ROWS).to(tl.int64)
    total = tl.zeros([ROWS, COLUMNS], tl.float64)
    for _ in range(0, slots, ROWS):
        inside = (i < slots)[:, None] & (j < columns)[None, :]
        total += load_rows(slots_ptr, i, j, columns, inside, tl.float64)
        i += ROWS
    tl.store(out_ptr + j, narrow(tl.sum(total, axis=0), out_ptr), mask=j < columns)


def add_slots(work: Work, slots: Tensor, out: Tensor) -> None:
    """``out``, contiguous, = the sum of the rows of ``slots`` [slots, columns], rounded once."""
    count, columns = slots.shape
    if columns == 0:
        return
    rows = min(triton.next_power_of_2(max(count, 1)), _SLOT_ROWS)
    width = min(_SLOT_ELEMENTS // rows, triton.next_power_of_2(columns))
    work.start(
        add_slots_kernel, triton.cdiv(columns, width), slots, out, count, columns, ROWS=rows, COLUMNS=width, num_warps=4
    )


@triton.jit
def sum_of_squares(x, WIDE: tl.constexpr):
    """The sum of squares of each row of a tile, in float64, however large or small the elements are."""
    squares = tl.sum(x * x, axis=1)
    total = squares.to(tl.float64)
    if tl.float32 == WIDE:
        unsafe = ~((squares >= _LEAST_SQUARES) & (squares <= _MOST_SQUARES))
        if tl.max(unsafe.to(tl.int32), axis=0) > 0:
            x64 = x.to(tl.float64)
            total = tl.where(unsafe, tl.sum(x64 * x64, axis=1), total)
    return total


# --- moments ----------------------------------------------------------------------------------------------------------


@triton.jit
def moments(x, inside, count, WIDE: tl.constexpr):
    """Mean and sum of squared distances from it of each row of a tile, in float64; ``x`` is 0 outside.

    Distances are taken from the mean as float32 has it, and what it lacks is added: nothing cancels however far from 0
    the data lies.
    """
    centre = (tl.sum(x, axis=1).to(tl.float64) / count).to(WIDE)
    distance = tl.where(inside, x - centre[:, None], 0.0)
    squares = tl.sum(distance * distance, axis=1)
    off = tl.sum(distance, axis=1).to(tl.float64) / count
    far = tl.abs(centre) == float("inf")  # no distance can be taken from it
    mean = tl.where(far, 0.0, off) + centre.to(tl.float64)
    total = squares.to(tl.float64) - off * off * count
    total = tl.where(total < 0, 0.0, total)
    if tl.float32 == WIDE:
        unsafe = ~((squares >= _LEAST_SQUARES) & (squares <= _MOST_SQUARES))
        if tl.max(unsafe.to(tl.int32), axis=0) > 0:
            x64 = x.to(tl.float64)
            mean64 = tl.sum(x64, axis=1) / count
            distance64 = tl.where(inside, x64 - mean64[:, None], 0.0)
            mean = tl.where(unsafe, mean64, mean)
            total = tl.where(unsafe, tl.sum(distance64 * distance64, axis=1), total)
    return mean, total


@triton.jit
def scale_of(mean, variance, epsilon, WIDE: tl.constexpr):
    """(centre, level, rstd) with xhat = (x - centre) * rstd + level.

    Data farther from 0 than it is wide is brought near it first, where the difference is exact, and what the centre
    lacks of the mean goes into the level. Other data has centre 0: one rounding less.
    """
    rstd64 = 1.0 / tl.sqrt(variance + epsilon)
    centre = tl.where(mean * mean < variance, 0.0, mean).to(WIDE)
    level = ((centre.to(tl.float64) - mean) * rstd64).to(WIDE)
    return centre, level, rstd64.to(WIDE)


@triton.jit
def moments_kernel(
    x_ptr, means_ptr, squares_ptr, rows, columns, groups, chunks, x_stride, COLUMNS: tl.constexpr, WIDE: tl.constexpr
):
    """Moments of every chunk of every row, [chunks, rows]; row r is part r % groups of row r // groups of x."""
    at = tl.program_id(0).to(tl.int64)
    row, chunk = at // chunks, at % chunks
    begin = chunk * COLUMNS
    c = tl.arange(0, COLUMNS)
    count = tl.minimum(columns - begin, COLUMNS)
    inside = (c < count)[None, :]
    start = x_ptr + (row // groups) * x_stride + (row % groups) * columns + begin
    x = tl.load(start + c[None, :], mask=inside, other=0).to(WIDE)
    mean, squares = moments(x, inside, count, WIDE)
    place = chunk * rows + row + tl.arange(0, 1)
    tl.store(means_ptr + place, mean)
    tl.store(squares_ptr + place, squares)


@triton.jit
def merge_moments_kernel(
    means_ptr, squares_ptr, mean_ptr, variance_ptr, rows, columns, chunks, CHUNK: tl.constexpr, ROWS: tl.constexpr
):
    """Mean and variance of whole rows from the moments of their chunks, [chunks, rows], in the order of the chunks."""
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = r < rows
    mean = tl.zeros([ROWS], tl.float64)
    place, left = r, long(columns)
    for _ in range(0, chunks):
        mean += tl.load(means_ptr + place, mask=inside, other=0) * tl.minimum(left, CHUNK)
        place += rows
        left -= CHUNK
    mean = mean / columns
    total = tl.zeros([ROWS], tl.float64)
    place, left = r, long(columns)
    for _ in range(0, chunks):
        off = tl.load(means_ptr + place, mask=inside, other=0) - mean
        total += tl.load(squares_ptr + place, mask=inside, other=0) + off * off * tl.minimum(left, CHUNK)
        place += rows
        left -= CHUNK
    tl.store(mean_ptr + r, mean, mask=inside)
    tl.store(variance_ptr + r, total / columns, mask=inside)


def moments_of_chunks(work: Work, x: Tensor, groups: int, columns: int, wide: Any) -> tuple[Tensor, Tensor]:
    """Mean and variance, float64 [rows], of the ``groups`` parts of ``columns`` elements of each row of ``x``."""
    cut = chunk(wide)
    rows, chunks = x.shape[0] * groups, triton.cdiv(columns, cut.columns)
    means, squares = work.empty((chunks, rows)), work.empty((chunks, rows))
    work.start(
        moments_kernel,
        rows * chunks,
        *(x, means, squares, rows, columns, groups, chunks, x.stride(0)),
        **{"COLUMNS": cut.columns, "WIDE": wide, "num_warps": cut.warps},
    )
    mean, variance = work.empty((rows,)), work.empty((rows,))
    work.start(
        merge_moments_kernel,
        triton.cdiv(rows, 128),
        *(means, squares, mean, variance, rows, columns, chunks),
        **{"CHUNK": cut.columns, "ROWS": 128, "num_warps": 4},
    )
    return mean, variance


# --- exp --------------------------------------------------------------------------------------------------------------


@triton.jit
def exp_of_negative(t, WIDE: tl.constexpr):
    """exp(t) for t <= 0, to a few units in the last place for every t: subnormal where it is due, NaN of NaN."""
    if tl.float64 == WIDE:
        return tl.exp(t)
    else:
        t = tl.where(t < -105.0, -105.0, t)  # whose exp is 0 already; a NaN stays
        n = tl.floor(t * 1.4426950408889634 + 0.5)
        remainder = t - n * 0.693145751953125 + n * -1.428606765330187e-06
        half = tl.floor(n * 0.5)
        first = ((half.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
        second = (((n - half).to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
        return tl.exp(remainder) * first * second
