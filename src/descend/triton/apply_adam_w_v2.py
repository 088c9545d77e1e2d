"""A step of AdamW on CUDA."""

from typing import Any

import numpy as np
import triton
import triton.language as tl
from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.functions import load_rows, part_of_rows, store_rows
from descend.triton.gelu_v2 import MOST, matrix
from descend.triton.tiles import tile, wide
from descend.triton.work import Work


@triton.jit
def whole(number, rest):
    """A number of the call in float64, from two of float32."""
    return tl.full([], number, tl.float64) + tl.full([], rest, tl.float64)


@triton.jit
def one_less_power(base, t):
    """1 - base^t."""
    return 1.0 - tl.where(base == 0, 0.0, tl.exp(t * tl.log(base)))


@triton.jit
def finite_or(usual, plain):
    """The usual result, or the plain one where that is an infinity or NaN."""
    return tl.where(usual - usual == 0, usual, plain)


@triton.jit
def kept(x, drop, WIDE: tl.constexpr):
    """x * (1 - drop): what is left when a small share is taken away is rounded as the share is."""
    keep, drop_wide = (1.0 - drop).to(WIDE), drop.to(WIDE)
    return finite_or(tl.where(tl.abs(1.0 - drop) < 0.5, keep * x, x - drop_wide * x), keep * x)


@triton.jit
def adam_w_kernel(
    var_ptr,
    m_ptr,
    v_ptr,
    most_ptr,
    grad_ptr,
    step_ptr,
    var_out_ptr,
    m_out_ptr,
    v_out_ptr,
    most_out_ptr,
    lr,
    lr_rest,
    beta1,
    beta1_rest,
    beta2,
    beta2_rest,
    decay,
    decay_rest,
    eps,
    eps_rest,
    rows,
    columns,
    parts,
    var_stride,
    m_stride,
    v_stride,
    most_stride,
    grad_stride,
    var_out_stride,
    m_out_stride,
    v_out_stride,
    most_out_stride,
    AMSGRAD: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A tile of some rows."""
    lr, beta1, beta2 = whole(lr, lr_rest), whole(beta1, beta1_rest), whole(beta2, beta2_rest)
    t = tl.load(step_ptr).to(tl.float64) + 1.0
    root = tl.sqrt(one_less_power(beta2, t))
    scale = (lr * root / one_less_power(beta1, t)).to(WIDE)
    near_zero = (whole(eps, eps_rest) * root).to(WIDE)
    drop_m, drop_v = 1.0 - beta1, 1.0 - beta2

    r, c, inside = part_of_rows(rows, columns, parts, ROWS, COLUMNS)
    var = load_rows(var_ptr, r, c, var_stride, inside, WIDE)
    m = load_rows(m_ptr, r, c, m_stride, inside, WIDE)
    v = load_rows(v_ptr, r, c, v_stride, inside, WIDE)
    g = load_rows(grad_ptr, r, c, grad_stride, inside, WIDE)
    if MAXIMIZE:
        g = -g
    share = drop_m.to(WIDE)
    between = tl.where(tl.abs(beta1) < 0.5, g + beta1.to(WIDE) * (m - g), m - share * (m - g))
    m = finite_or(between, beta1.to(WIDE) * m + share * g)
    v = kept(v, drop_v, WIDE) + (drop_v.to(WIDE) * g) * g
    used = v
    if AMSGRAD:
        most = load_rows(most_ptr, r, c, most_stride, inside, WIDE)
        used = tl.where((most > v) | (most != most), most, v)
        store_rows(most_out_ptr, r, c, most_out_stride, inside, used)
    if tl.float32 == WIDE:  # whose plain root and quotient are approximate, and take subnormals for 0
        move = scale * tl.div_rn(m, tl.sqrt_rn(used) + near_zero)
    else:
        move = scale * (m / (tl.sqrt(used) + near_zero))
    lost = (lr * whole(decay, decay_rest)).to(tl.float64)
    keep = (1.0 - lost).to(WIDE)
    usual = tl.where(tl.abs(1.0 - lost) < 0.5, keep * var - move, var - (lost.to(WIDE) * var + move))
    store_rows(var_out_ptr, r, c, var_out_stride, inside, finite_or(usual, keep * var - move))
    store_rows(m_out_ptr, r, c, m_out_stride, inside, m)
    store_rows(v_out_ptr, r, c, v_out_stride, inside, v)


def in_two(number: float) -> tuple[float, float]:
    """A number as two that float32 holds: Triton takes Python's numbers as float32."""
    first = float(np.float32(number))
    return first, number - first


def launch(
    work: Work,
    var: Tensor,
    m: Tensor,
    v: Tensor,
    max_grad_norm: Tensor | None,
    grad: Tensor,
    step: Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    var_out: Tensor,
    m_out: Tensor,
    v_out: Tensor,
    max_grad_norm_out: Tensor | None,
) -> None:
    """Starts the kernel; the parameters are those of aclnnApplyAdamWV2, and the results."""
    if var.numel() == 0:
        return
    rows, columns = matrix(var)
    given = [var, m, v, max_grad_norm if amsgrad and max_grad_norm is not None else v, grad]
    written = [var_out, m_out, v_out, max_grad_norm_out if amsgrad and max_grad_norm_out is not None else v_out]
    arithmetic: Any = wide(*given, *written)
    sources = [work.rows_of(tensor, rows, columns) for tensor in given]
    results = [work.output(tensor, rows, columns) for tensor in written[: 3 + amsgrad]]
    results += results[2:3] * (4 - len(results))  # not written
    cut = tile(columns, MOST, arithmetic, "apply_adam_w_v2", var)
    parts = triton.cdiv(columns, cut.columns)
    numbers = [part for number in (lr, beta1, beta2, weight_decay, eps) for part in in_two(number)]
    work.start(
        adam_w_kernel,
        triton.cdiv(rows, cut.rows) * parts,
        *(*sources, step, *(result.matrix for result in results), *numbers, rows, columns, parts),
        *(*(source.stride(0) for source in sources), *(result.stride for result in results)),
        **{"AMSGRAD": amsgrad, "MAXIMIZE": maximize, "ROWS": cut.rows, "COLUMNS": cut.columns, "WIDE": arithmetic},
        num_warps=cut.warps,
    )
    for result in results[: 3 + amsgrad]:
        result.finish()


apply_adam_w_v2 = Operator("apply_adam_w_v2", launch)
