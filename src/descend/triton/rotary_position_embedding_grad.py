"""The gradients of rotary position embedding on CUDA: dy turned back, and sums over what cos and sin serve."""

from dataclasses import replace
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.functions import add_slots, load_at, store_at
from descend.triton.rotary_position_embedding import MOST, Grid, dimensions, grid, members, turn
from descend.triton.tiles import tile, torch_dtype, wide
from descend.triton.work import Work

_TERMS = 64
"""Tiles of rows that a program adds up: so many numbers, one after the other, in the type of the arithmetic."""


@triton.jit
def digit(number, step, size):
    """That of a dimension, in the number of a row of the dimensions with a step; 0 for any other dimension."""
    return tl.where(step > 0, number // tl.maximum(step, 1) % size, 0)


@triton.jit
def sums_kernel(
    dy_ptr,
    x_ptr,
    dcos_ptr,
    dsin_ptr,
    sums,
    terms,
    pairs,
    parts,
    outer,
    middle,
    inner,
    kept_0,
    kept_1,
    kept_2,
    term_0,
    term_1,
    term_2,
    dy_stride,
    x_stride,
    dy_pair,
    dy_gap,
    x_pair,
    x_gap,
    TERMS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A part of a row of dcos and dsin, of one slot: TERMS tiles of the rows that are added up to it."""
    at = tl.program_id(0).to(tl.int64)
    p = at % parts * COLUMNS + tl.arange(0, COLUMNS)
    row, slot = at // parts % sums, at // parts // sums
    r = slot * (TERMS * ROWS) + tl.arange(0, ROWS)
    of_row = (digit(row, kept_0, outer) * middle + digit(row, kept_1, middle)) * inner + digit(row, kept_2, inner)
    dcos_a = tl.zeros([ROWS, COLUMNS], WIDE)
    dcos_b, dsin_a, dsin_b = dcos_a, dcos_a, dcos_a
    for _ in range(TERMS):
        inside = (r < terms)[:, None] & (p < pairs)[None, :]
        of_term = (digit(r, term_0, outer) * middle + digit(r, term_1, middle)) * inner + digit(r, term_2, inner)
        place = of_row + of_term
        dy_a = load_at(dy_ptr, place * dy_stride, p * dy_pair, inside, WIDE)
        dy_b = load_at(dy_ptr + dy_gap, place * dy_stride, p * dy_pair, inside, WIDE)
        a = load_at(x_ptr, place * x_stride, p * x_pair, inside, WIDE)
        b = load_at(x_ptr + x_gap, place * x_stride, p * x_pair, inside, WIDE)
        dcos_a += dy_a * a
        dcos_b += dy_b * b
        dsin_a -= dy_a * b
        dsin_b += dy_b * a
        r += ROWS
    to = (slot * sums + row) * (2 * pairs) + tl.arange(0, 1)
    there = (p < pairs)[None, :]
    store_at(dcos_ptr, to, p * dy_pair, there, tl.sum(dcos_a, axis=0)[None, :])
    store_at(dcos_ptr + dy_gap, to, p * dy_pair, there, tl.sum(dcos_b, axis=0)[None, :])
    store_at(dsin_ptr, to, p * dy_pair, there, tl.sum(dsin_a, axis=0)[None, :])
    store_at(dsin_ptr + dy_gap, to, p * dy_pair, there, tl.sum(dsin_b, axis=0)[None, :])


def together(dy: Tensor, x: Tensor, cos: Tensor, sin: Tensor, mode: int) -> tuple[Tensor, ...]:
    """The same with the dimensions along which cos is broadcast behind the others, where they are too far apart."""
    if len(dimensions(dy, cos, dy.shape[-1] // (2 if mode == 2 else 1))) <= 3:
        return dy, x, cos, sin
    order = sorted(range(dy.dim() - 1), key=lambda d: cos.shape[d] == 1)
    dy, x, cos, sin = (t.permute(*order, -1) for t in (dy, x, cos, sin))
    return dy, x, cos, sin


def add_up(work: Work, dy: Tensor, x: Tensor, of: Grid, mode: int, results: tuple[Any, Any], arithmetic: Any) -> None:
    """Starts the kernels that compute dcos and dsin, each [1, sums * columns]."""
    rows, columns = of.rows, of.columns
    sums = results[0].numel() // columns
    terms = rows // sums
    cut = tile(columns // 2, MOST, arithmetic)
    cut = replace(cut, rows=max(cut.rows // 4, 1))  # four sums an element: with more of them registers would be spilled
    parts, slots = triton.cdiv(columns // 2, cut.columns), triton.cdiv(terms, cut.rows * _TERMS)
    dy, x = work.rows_of(dy, rows, columns), work.rows_of(x, rows, columns)
    found = [work.empty((slots, sums * columns), torch_dtype(arithmetic)) for _ in results]
    work.start(
        sums_kernel,
        slots * sums * parts,
        *(dy, x, *found, sums, terms, columns // 2, parts, *of.sizes, *of.steps(True), *of.steps(False)),
        *(dy.stride(0), x.stride(0), *members(mode, False, columns), *members(mode, True, columns)),
        **{"TERMS": min(_TERMS, triton.next_power_of_2(triton.cdiv(terms, cut.rows)))},
        **{"ROWS": cut.rows, "COLUMNS": cut.columns, "WIDE": arithmetic, "num_warps": cut.warps},
    )
    for partial, result in zip(found, results, strict=True):
        add_slots(work, partial, result)


def launch(
    work: Work,
    dy: Tensor,
    cos: Tensor,
    sin: Tensor,
    x: Tensor | None,
    mode: int,
    dx_out: Tensor,
    dcos_out: Tensor | None,
    dsin_out: Tensor | None,
) -> None:
    """Starts the kernels; the parameters are those of aclnnRotaryPositionEmbeddingGrad."""
    outputs = [None if t is None else work.output(t, 1, t.numel()) for t in (dcos_out, dsin_out)]
    arithmetic: Any = wide(dy, cos, sin, x, dx_out, dcos_out, dsin_out)
    if dy.numel() > 0:
        turn(work, "rotary_position_embedding_grad", dy, grid(dy, cos, sin, mode), mode, dx_out, arithmetic, True)
    if x is None or outputs[0] is None or outputs[1] is None or cos.numel() == 0:
        return
    if dy.numel() == 0:
        for output in (outputs[0], outputs[1]):
            output.matrix.zero_()
    else:
        dy, x, cos, sin = together(dy, x, cos, sin, mode)
        results = outputs[0].matrix, outputs[1].matrix
        add_up(work, dy, x, grid(dy, cos, sin, mode), mode, results, arithmetic)
    outputs[0].finish()
    outputs[1].finish()


rotary_position_embedding_grad = Operator("rotary_position_embedding_grad", launch)
