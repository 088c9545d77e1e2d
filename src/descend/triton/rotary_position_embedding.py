"""Rotary position embedding on CUDA: each row's pairs turned by angles of their own, and turned back."""

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.functions import load_at, part_of_rows, store_at
from descend.triton.tiles import tile, wide
from descend.triton.work import Work

MOST = 1024
"""Pairs of a row that a program works on at a time."""


@dataclass(frozen=True)
class Grid:
    """The rows of x, counted by three dimensions, and the row of cos that each has."""

    sizes: tuple[int, int, int]
    kept: tuple[bool, bool, bool]
    """Whether cos has the dimension; along the others it is broadcast."""
    cos: Tensor
    sin: Tensor
    columns: int

    @property
    def rows(self) -> int:
        """Rows of x."""
        return self.sizes[0] * self.sizes[1] * self.sizes[2]

    def steps(self, kept: bool) -> tuple[int, int, int]:
        """How far apart neighbours along each dimension are, of the dimensions that cos has, or of the others."""
        found, step = [0, 0, 0], 1
        for d in (2, 1, 0):
            if self.kept[d] is kept:
                found[d], step = step, step * self.sizes[d]
        return found[0], found[1], found[2]


def dimensions(x: Tensor, cos: Tensor, columns: int) -> list[tuple[int, bool]]:
    """The dimensions that count rows of so many columns, and whether cos has them; neighbours that agree are one."""
    dims: list[tuple[int, bool]] = []
    for size, of_cos in zip((*x.shape[:-1], x.shape[-1] // columns), (*cos.shape[:-1], -1), strict=True):
        kept = of_cos != 1
        if size != 1 and dims and dims[-1][1] is kept:
            dims[-1] = dims[-1][0] * size, kept
        elif size != 1:
            dims.append((size, kept))
    return dims


def grid(x: Tensor, cos: Tensor, sin: Tensor, mode: int) -> Grid:
    """That of a call. Where cos is broadcast along dimensions too far apart, it is copied."""
    columns = x.shape[-1] // (2 if mode == 2 else 1)
    dims = dimensions(x, cos, columns)
    if len(dims) > 3:
        cos, sin = cos.expand(x.shape), sin.expand(x.shape)
        dims = [(x.numel() // columns, True)]
    first, second, third = [*[(1, True)] * (3 - len(dims)), *dims]
    return Grid((first[0], second[0], third[0]), (first[1], second[1], third[1]), cos, sin, columns)


def members(mode: int, of_x: bool, columns: int) -> tuple[int, int]:
    """How far apart pairs are in a row, and the members of one: in x and its gradient, or in all others."""
    return (2, 1) if mode == 1 or (mode == 3 and of_x) else (1, columns // 2)


@triton.jit
def turn_kernel(
    from_ptr,
    cos_ptr,
    sin_ptr,
    to_ptr,
    rows,
    pairs,
    parts,
    middle,
    inner,
    step_0,
    step_1,
    step_2,
    from_stride,
    cos_stride,
    sin_stride,
    to_stride,
    from_pair,
    from_gap,
    pair,
    gap,
    to_pair,
    to_gap,
    BACK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A tile of some rows; pair and gap are those of cos and sin."""
    r, p, inside = part_of_rows(rows, pairs, parts, ROWS, COLUMNS)
    of_cos = r // inner // middle * step_0 + r // inner % middle * step_1 + r % inner * step_2
    a = load_at(from_ptr, r * from_stride, p * from_pair, inside, WIDE)
    b = load_at(from_ptr + from_gap, r * from_stride, p * from_pair, inside, WIDE)
    cos_a = load_at(cos_ptr, of_cos * cos_stride, p * pair, inside, WIDE)
    cos_b = load_at(cos_ptr + gap, of_cos * cos_stride, p * pair, inside, WIDE)
    sin_a = load_at(sin_ptr, of_cos * sin_stride, p * pair, inside, WIDE)
    sin_b = load_at(sin_ptr + gap, of_cos * sin_stride, p * pair, inside, WIDE)
    if BACK:
        to_a, to_b = a * cos_a + b * sin_b, b * cos_b - a * sin_a
    else:
        to_a, to_b = a * cos_a - b * sin_a, b * cos_b + a * sin_b
    store_at(to_ptr, r * to_stride, p * to_pair, inside, to_a)
    store_at(to_ptr + to_gap, r * to_stride, p * to_pair, inside, to_b)


def turn(
    work: Work, kernel: str, given: Tensor, of: Grid, mode: int, result: Tensor, arithmetic: Any, back: bool
) -> None:
    """Starts the kernel that turns rows, or turns them back."""
    rows, columns = of.rows, of.columns
    cos_rows = of.cos.numel() // columns
    source, cos, sin = (work.rows_of(t, n, columns) for t, n in ((given, rows), (of.cos, cos_rows), (of.sin, cos_rows)))
    output = work.output(result, rows, columns)
    cut = tile(columns // 2, MOST, arithmetic, kernel, given)
    parts = triton.cdiv(columns // 2, cut.columns)
    work.start(
        turn_kernel,
        triton.cdiv(rows, cut.rows) * parts,
        *(source, cos, sin, output.matrix, rows, columns // 2, parts, *of.sizes[1:], *of.steps(True)),
        *(source.stride(0), cos.stride(0), sin.stride(0), output.stride),
        *(*members(mode, not back, columns), *members(mode, False, columns), *members(mode, back, columns)),
        **{"BACK": back, "ROWS": cut.rows, "COLUMNS": cut.columns, "WIDE": arithmetic, "num_warps": cut.warps},
    )
    output.finish()


def launch(work: Work, x: Tensor, cos: Tensor, sin: Tensor, mode: int, out: Tensor) -> None:
    """Starts the kernel; the parameters are those of aclnnRotaryPositionEmbedding."""
    if out.numel() == 0:
        return
    turn(work, "rotary_position_embedding", x, grid(x, cos, sin, mode), mode, out, wide(x, cos, sin, out), False)


rotary_position_embedding = Operator("rotary_position_embedding", launch)
