"""Group norm on CUDA, z = (x - mean) * rstd * gamma + beta, and swish after it, y = z * sigmoid(swish_scale * z)."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.functions import (
    load_at,
    moments,
    moments_of_chunks,
    scale_of,
    store_at,
    store_statistics,
    whole_rows,
)
from descend.triton.swish import swish
from descend.triton.tiles import chunk, tile, wide
from descend.triton.work import Work

_MOST = 8192
"""Elements of groups that a program holds whole."""


@triton.jit
def groups_kernel(
    x_ptr,
    gamma_ptr,
    beta_ptr,
    y_ptr,
    mean_ptr,
    rstd_ptr,
    rows,
    groups,
    channels,
    inner,
    x_stride,
    y_stride,
    epsilon: "fp64",  # noqa: F821
    swish_scale: "fp64",  # noqa: F821
    WEIGHTED: tl.constexpr,
    BIASED: tl.constexpr,
    SWISH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A tile of whole groups: row r is group r % groups of sample r // groups, ``channels`` of ``inner`` elements."""
    columns = channels * inner
    r, c, inside = whole_rows(rows, columns, ROWS, COLUMNS)
    sample, group = r // groups, r % groups
    x = load_at(x_ptr, sample * x_stride + group * columns, c, inside, WIDE)
    mean, squares = moments(x, inside, columns, WIDE)
    centre, level, rstd = scale_of(mean, squares / columns, epsilon, WIDE)
    z = (x - centre[:, None]) * rstd[:, None] + level[:, None]
    if WEIGHTED:
        z = z * load_at(gamma_ptr, group * channels, c // inner, inside, WIDE)
    if BIASED:
        z = z + load_at(beta_ptr, group * channels, c // inner, inside, WIDE)
    if SWISH:
        z = swish(z, tl.full([], swish_scale, WIDE), WIDE)
    store_at(y_ptr, sample * y_stride + group * columns, c, inside, z)
    store_statistics(mean_ptr, rstd_ptr, r, r < rows, mean.to(WIDE), rstd)


@triton.jit
def statistics_kernel(
    mean_ptr,
    rstd_ptr,
    group_mean_ptr,
    group_variance_ptr,
    rows,
    epsilon: "fp64",  # noqa: F821
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Mean and rstd of groups whose moments are known, float64."""
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    mean = tl.load(group_mean_ptr + r, mask=r < rows, other=0)
    _, _, rstd = scale_of(mean, tl.load(group_variance_ptr + r, mask=r < rows, other=1), epsilon, WIDE)
    store_statistics(mean_ptr, rstd_ptr, r, r < rows, mean.to(WIDE), rstd)


@triton.jit
def apply_kernel(
    x_ptr,
    gamma_ptr,
    beta_ptr,
    y_ptr,
    group_mean_ptr,
    group_variance_ptr,
    rows,
    groups,
    channels,
    inner,
    parts,
    x_stride,
    y_stride,
    epsilon: "fp64",  # noqa: F821
    swish_scale: "fp64",  # noqa: F821
    WEIGHTED: tl.constexpr,
    BIASED: tl.constexpr,
    SWISH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A part of some channels of groups whose moments are known: row r is channel r % (groups * channels)."""
    at = tl.program_id(0).to(tl.int64)
    r = at // parts * ROWS + tl.arange(0, ROWS)
    c = at % parts * COLUMNS + tl.arange(0, COLUMNS)
    known = r < rows
    inside = known[:, None] & (c < inner)[None, :]
    all_channels = groups * channels
    sample, channel = r // all_channels, r % all_channels
    mean = tl.load(group_mean_ptr + r // channels, mask=known, other=0)
    variance = tl.load(group_variance_ptr + r // channels, mask=known, other=1)
    centre, level, rstd = scale_of(mean, variance, epsilon, WIDE)
    x = load_at(x_ptr, sample * x_stride + channel * inner, c, inside, WIDE)
    z = (x - centre[:, None]) * rstd[:, None] + level[:, None]
    if WEIGHTED:
        z = z * tl.load(gamma_ptr + channel, mask=known, other=0).to(WIDE)[:, None]
    if BIASED:
        z = z + tl.load(beta_ptr + channel, mask=known, other=0).to(WIDE)[:, None]
    if SWISH:
        z = swish(z, tl.full([], swish_scale, WIDE), WIDE)
    store_at(y_ptr, sample * y_stride + channel * inner, c, inside, z)


def launch(
    work: Work,
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    num_groups: int,
    data_format: str | None,
    eps: float,
    activate_swish: bool,
    swish_scale: float,
    y_out: Tensor,
    mean_out: Tensor,
    rstd_out: Tensor,
) -> None:
    """Starts the kernels; the parameters are those of aclnnGroupNormSwish."""
    scale = swish_scale if activate_swish else None
    norm(work, "group_norm_swish", x, gamma, beta, num_groups, eps, scale, y_out, mean_out, rstd_out)


def norm(
    work: Work,
    name: str,
    x: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    num_groups: int,
    eps: float,
    swish_scale: float | None,
    y_out: Tensor,
    mean_out: Tensor,
    rstd_out: Tensor,
) -> None:
    """Starts the kernels of operator ``name``; without a ``swish_scale`` no swish follows the norm."""
    samples, all_channels = x.shape[:2]
    rows = samples * num_groups
    if rows == 0:
        return
    if x.numel() == 0:
        mean_out.zero_()
        rstd_out.fill_(float("nan"))
        return
    inner, channels = x.numel() // (samples * all_channels), all_channels // num_groups
    arithmetic: Any = wide(x, gamma, beta, y_out, mean_out, rstd_out)
    matrix = work.rows_of(x, samples, all_channels * inner)
    gamma, beta = (None if t is None else work.vector(t) for t in (gamma, beta))
    y = work.output(y_out, samples, all_channels * inner)
    mean, rstd = work.output(mean_out, 1, rows), work.output(rstd_out, 1, rows)
    strides = (matrix.stride(0), y.stride)
    form = {"WEIGHTED": gamma is not None, "BIASED": beta is not None, "SWISH": swish_scale is not None}
    form["WIDE"] = arithmetic
    scale = 0.0 if swish_scale is None else swish_scale
    elements = channels * inner
    cut = tile(elements, _MOST, arithmetic)
    if elements <= cut.columns:
        work.start(
            groups_kernel,
            triton.cdiv(rows, cut.rows),
            *(matrix, gamma, beta, y.matrix, mean.matrix, rstd.matrix, rows, num_groups, channels, inner),
            *(*strides, eps, scale),
            **{"ROWS": cut.rows, "COLUMNS": cut.columns, "num_warps": cut.warps, **form},
        )
    else:
        known = moments_of_chunks(work, matrix, num_groups, elements, arithmetic)
        cut = tile(inner, chunk(arithmetic).columns, arithmetic, name, x)
        parts = triton.cdiv(inner, cut.columns)
        work.start(
            apply_kernel,
            triton.cdiv(samples * all_channels, cut.rows) * parts,
            *(matrix, gamma, beta, y.matrix, *known, samples * all_channels, num_groups, channels, inner, parts),
            *(*strides, eps, scale),
            **{"ROWS": cut.rows, "COLUMNS": cut.columns, "num_warps": cut.warps, **form},
        )
        work.start(
            statistics_kernel,
            triton.cdiv(rows, 128),
            mean.matrix,
            rstd.matrix,
            *known,
            rows,
            eps,
            ROWS=128,
            WIDE=arithmetic,
            num_warps=4,
        )
    for output in (y, mean, rstd):
        output.finish()


group_norm_swish = Operator("group_norm_swish", launch)
