"""GELU on CUDA, by erf or by tanh: max(x, 0) less what falls as a normal distribution's tail does."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.functions import exp_of_negative, load_rows, part_of_rows, store_rows
from descend.triton.tiles import tile, wide
from descend.triton.work import Work

MOST = 2048
"""Columns that a program works on at a time."""


@triton.jit
def steep(a, WIDE: tl.constexpr):
    """u and its slope at a >= 0, of which sigmoid(u) is the share of x in GELU by tanh; u within what exp needs."""
    a = tl.where(a > 22.0, 22.0, a)  # a NaN stays
    square = a * a
    return a * (1.5957691216057308 + 0.07135481627260025 * square), 1.5957691216057308 + 0.21406444881780075 * square


@triton.jit
def tail(a, WIDE: tl.constexpr):
    """The normal distribution's function at -a, a >= 0, over exp(-a^2 / 2)."""
    if tl.float64 == WIDE:
        over = 2.1823830994153414e-07 * a + 6.8209115408964126e-06
        over = over * a + 0.00010457955317221234
        over = over * a + 0.0010234245966082077
        over = over * a + 0.00703038793487737
        over = over * a + 0.035291143133707265
        over = over * a + 0.130946322431449
        over = over * a + 0.35511648731299444
        over = over * a + 0.6767401664735193
        over = over * a + 0.8260999296555033
        over = over * a + 0.5
        under = 5.470423183069889e-07 * a + 1.709748972720127e-05
        under = under * a + 0.0002626891072445266
        under = under * a + 0.0025824425207640425
        under = under * a + 0.017883617149566766
        under = under * a + 0.09099292759267984
        under = under * a + 0.34533750193275553
        under = under * a + 0.9736472406019742
        under = under * a + 1.9919032512583459
        under = under * a + 2.808364864419532
        under = under * a + 2.450084420113872
        under = under * a + 1.0
    else:
        over = 0.0008612905512563884 * a + 0.011428715661168098
        over = over * a + 0.07050367444753647
        over = over * a + 0.24894468486309052
        over = over * a + 0.5060489773750305
        over = over * a + 0.5
        under = 0.0021589375101029873 * a + 0.02864737994968891
        under = under * a + 0.17889054119586945
        under = under * a + 0.6525647044181824
        under = under * a + 1.4420462846755981
        under = under * a + 1.8099825382232666
        under = under * a + 1.0
    return over / under


@triton.jit
def exp_of_square(a, WIDE: tl.constexpr):
    """exp(-a^2 / 2) of a >= 0; a NaN stays."""
    a = tl.where(a > 40.0, 40.0, a)
    return exp_of_negative(-0.5 * a * a, WIDE)


@triton.jit
def gelu_kernel(
    x_ptr,
    y_ptr,
    rows,
    columns,
    parts,
    x_stride,
    y_stride,
    TANH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A tile of some rows."""
    r, c, inside = part_of_rows(rows, columns, parts, ROWS, COLUMNS)
    x = load_rows(x_ptr, r, c, x_stride, inside, WIDE)
    a = tl.abs(x)
    if TANH:
        u, _ = steep(a, WIDE)
        e = exp_of_negative(-u, WIDE)
        fall = tl.where(e == 0, 0.0, a * (e / (1.0 + e)))
    else:
        e = exp_of_square(a, WIDE)
        fall = tl.where(e == 0, 0.0, a * tail(a, WIDE) * e)
    y = tl.where(x < 0, -fall, x - fall)
    # As the formula has it, GELU at -infinity is -inf * 0.
    store_rows(y_ptr, r, c, y_stride, inside, tl.where(x == float("-inf"), float("nan"), y))


def matrix(x: Tensor) -> tuple[int, int]:
    """Rows and columns of a tensor, whose last dimension is the columns."""
    columns = x.shape[-1] if x.dim() else 1
    return x.numel() // columns, columns


def launch(work: Work, x: Tensor, approximate: int, y: Tensor) -> None:
    """Starts the kernel; the parameters are those of aclnnGeluV2."""
    if y.numel() == 0:
        return
    rows, columns = matrix(x)
    arithmetic: Any = wide(x, y)
    source, result = work.rows_of(x, rows, columns), work.output(y, rows, columns)
    cut = tile(columns, MOST, arithmetic, "gelu_v2", x)
    parts = triton.cdiv(columns, cut.columns)
    work.start(
        gelu_kernel,
        triton.cdiv(rows, cut.rows) * parts,
        *(source, result.matrix, rows, columns, parts, source.stride(0), result.stride),
        **{"TANH": approximate == 1, "ROWS": cut.rows, "COLUMNS": cut.columns, "WIDE": arithmetic},
        num_warps=cut.warps,
    )
    result.finish()


gelu_v2 = Operator("gelu_v2", launch)
