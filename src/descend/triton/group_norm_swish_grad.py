"""Gradients of group norm on CUDA, and of swish after it.

The sums over the elements of each channel of each sample, of dz and of dz * xhat, are all that the rest needs: those of
a group's channels give the means that dx takes, those of a channel's samples dgamma and dbeta.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.functions import add_slots, load_at, store_at
from descend.triton.swish import slope_of_swish
from descend.triton.tiles import chunk, tile, torch_dtype, wide
from descend.triton.work import Work

_PART_TILES = 16
"""Tiles that a program adds up of a channel: the longest chain of float32 additions."""


@triton.jit
def channels_of(
    gamma_ptr,
    beta_ptr,
    mean_ptr,
    rstd_ptr,
    r,
    rows,
    groups,
    channels,
    WEIGHTED: tl.constexpr,
    SWISH: tl.constexpr,
    WIDE: tl.constexpr,
):
    """mean, rstd, gamma and beta of row r: channel r % (groups * channels) of a sample. Swish alone asks for beta."""
    known = r < rows
    channel = r % (groups * channels)
    mean = tl.load(mean_ptr + r // channels, mask=known, other=0).to(WIDE)
    rstd = tl.load(rstd_ptr + r // channels, mask=known, other=0).to(WIDE)
    gamma, beta = tl.full(r.shape, 1, WIDE), tl.full(r.shape, 0, WIDE)
    if WEIGHTED:
        gamma = tl.load(gamma_ptr + channel, mask=known, other=0).to(WIDE)
    if SWISH:
        beta = tl.load(beta_ptr + channel, mask=known, other=0).to(WIDE)
    return mean, rstd, gamma, beta


@triton.jit
def dz_of(
    dy_ptr,
    x_ptr,
    dy_starts,
    x_starts,
    c,
    inside,
    mean,
    rstd,
    gamma,
    beta,
    scale,
    SWISH: tl.constexpr,
    WIDE: tl.constexpr,
):
    """dz and xhat of a tile, 0 outside; without swish dz is dy."""
    x = load_at(x_ptr, x_starts, c, inside, WIDE)
    xhat = tl.where(inside, (x - mean[:, None]) * rstd[:, None], 0.0)
    dz = load_at(dy_ptr, dy_starts, c, inside, WIDE)
    if SWISH:
        dz = dz * slope_of_swish(xhat * gamma[:, None] + beta[:, None], scale, WIDE)
    return tl.where(inside, dz, 0.0), xhat


@triton.jit
def sums_kernel(
    dy_ptr,
    x_ptr,
    mean_ptr,
    rstd_ptr,
    gamma_ptr,
    beta_ptr,
    sums_ptr,
    rows,
    groups,
    channels,
    inner,
    parts,
    dy_stride,
    x_stride,
    swish_scale: "fp64",  # noqa: F821
    TILES: tl.constexpr,
    WEIGHTED: tl.constexpr,
    SWISH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The sums of dz and of dz * xhat of some parts of some channels, [parts, 2, rows]."""
    at = tl.program_id(0).to(tl.int64)
    part = at % parts
    r = at // parts * ROWS + tl.arange(0, ROWS)
    all_channels = groups * channels
    sample, channel = r // all_channels, r % all_channels
    mean, rstd, gamma, beta = channels_of(
        gamma_ptr, beta_ptr, mean_ptr, rstd_ptr, r, rows, groups, channels, WEIGHTED, SWISH, WIDE
    )
    scale = tl.full([], swish_scale, WIDE)
    dy_starts, x_starts = sample * dy_stride + channel * inner, sample * x_stride + channel * inner
    total = tl.zeros([ROWS, COLUMNS], WIDE)
    total_xhat = tl.zeros([ROWS, COLUMNS], WIDE)
    c = part * (TILES * COLUMNS) + tl.arange(0, COLUMNS)
    for _ in range(0, TILES):
        inside = (r < rows)[:, None] & (c < inner)[None, :]
        dz, xhat = dz_of(dy_ptr, x_ptr, dy_starts, x_starts, c, inside, mean, rstd, gamma, beta, scale, SWISH, WIDE)
        total += dz
        total_xhat += dz * xhat
        c += COLUMNS
    place = sums_ptr + part * 2 * rows + r
    tl.store(place, tl.sum(total, axis=1), mask=r < rows)
    tl.store(place + rows, tl.sum(total_xhat, axis=1), mask=r < rows)


@triton.jit
def means_kernel(
    sums_ptr,
    gamma_ptr,
    means_ptr,
    rows,
    all_rows,
    groups,
    channels,
    inner,
    WEIGHTED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The means over each group of dz * gamma and of dz * gamma * xhat, [2, rows], float64; a row is a group."""
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros([ROWS, COLUMNS], tl.float64)
    total_xhat = tl.zeros([ROWS, COLUMNS], tl.float64)
    c = tl.arange(0, COLUMNS)
    for _ in range(0, channels, COLUMNS):
        inside = (r < rows)[:, None] & (c < channels)[None, :]
        gamma = tl.full([ROWS, COLUMNS], 1, tl.float64)
        if WEIGHTED:
            gamma = load_at(gamma_ptr, r % groups * channels, c, inside, tl.float64)
        total += gamma * load_at(sums_ptr, r * channels, c, inside, tl.float64)
        total_xhat += gamma * load_at(sums_ptr + all_rows, r * channels, c, inside, tl.float64)
        c += COLUMNS
    count = tl.full([], channels, tl.float64) * inner
    tl.store(means_ptr + r, tl.sum(total, axis=1) / count, mask=r < rows)
    tl.store(means_ptr + rows + r, tl.sum(total_xhat, axis=1) / count, mask=r < rows)


@triton.jit
def apply_kernel(
    dy_ptr,
    x_ptr,
    mean_ptr,
    rstd_ptr,
    gamma_ptr,
    beta_ptr,
    means_ptr,
    dx_ptr,
    rows,
    groups,
    channels,
    inner,
    parts,
    dy_stride,
    x_stride,
    dx_stride,
    swish_scale: "fp64",  # noqa: F821
    WEIGHTED: tl.constexpr,
    SWISH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """dx of a part of some channels."""
    at = tl.program_id(0).to(tl.int64)
    r = at // parts * ROWS + tl.arange(0, ROWS)
    c = at % parts * COLUMNS + tl.arange(0, COLUMNS)
    inside = (r < rows)[:, None] & (c < inner)[None, :]
    all_channels = groups * channels
    sample, channel = r // all_channels, r % all_channels
    mean, rstd, gamma, beta = channels_of(
        gamma_ptr, beta_ptr, mean_ptr, rstd_ptr, r, rows, groups, channels, WEIGHTED, SWISH, WIDE
    )
    scale = tl.full([], swish_scale, WIDE)
    dy_starts, x_starts = sample * dy_stride + channel * inner, sample * x_stride + channel * inner
    dz, xhat = dz_of(dy_ptr, x_ptr, dy_starts, x_starts, c, inside, mean, rstd, gamma, beta, scale, SWISH, WIDE)
    mean_dz = tl.load(means_ptr + r // channels, mask=r < rows, other=0).to(WIDE)
    mean_dz_xhat = tl.load(means_ptr + rows // channels + r // channels, mask=r < rows, other=0).to(WIDE)
    # An only element is its own mean: fused, the difference would be what rounding the mean has lost.
    nothing = (dz - dz) * gamma[:, None]  # but of infinities NaN
    level = tl.where(channels * inner == 1, nothing, dz * gamma[:, None] - mean_dz[:, None])
    dx = rstd[:, None] * (level - xhat * mean_dz_xhat[:, None])
    store_at(dx_ptr, sample * dx_stride + channel * inner, c, inside, dx)


def launch(
    work: Work,
    dy: Tensor,
    mean: Tensor,
    rstd: Tensor,
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    num_groups: int,
    data_format: str | None,
    swish_scale: float,
    dgamma_is_require: bool,
    dbeta_is_require: bool,
    dx_out: Tensor,
    dgamma_out: Tensor | None,
    dbeta_out: Tensor | None,
) -> None:
    """Starts the kernels; the parameters are those of aclnnGroupNormSwishGrad."""
    samples, channels = x.shape[:2]
    sizes = samples, channels, x.numel() // max(samples * channels, 1)
    given = (dy, mean, rstd, x, gamma, beta)
    gradients(work, "group_norm_swish_grad", sizes, *given, num_groups, swish_scale, dx_out, dgamma_out, dbeta_out)


def gradients(
    work: Work,
    name: str,
    sizes: tuple[int, int, int],
    dy: Tensor,
    mean: Tensor,
    rstd: Tensor,
    x: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    num_groups: int,
    swish_scale: float | None,
    dx_out: Tensor | None,
    dgamma_out: Tensor | None,
    dbeta_out: Tensor | None,
) -> None:
    """Starts the kernels of operator ``name`` for N, C and HxW; without a ``swish_scale`` no swish follows the norm."""
    samples, all_channels, inner = sizes
    outputs = [None if t is None else work.output(t, 1, all_channels) for t in (dbeta_out, dgamma_out)]
    if x.numel() == 0:
        for output in outputs:
            if output is not None:
                output.matrix.zero_()
                output.finish()
        return
    rows, channels = samples * all_channels, all_channels // num_groups
    arithmetic: Any = wide(dy, mean, rstd, x, gamma, beta, dx_out, dgamma_out, dbeta_out)
    dy, x = work.rows_of(dy, samples, all_channels * inner), work.rows_of(x, samples, all_channels * inner)
    mean, rstd = work.vector(mean), work.vector(rstd)
    gamma, beta = (None if t is None else work.vector(t) for t in (gamma, beta))
    cut = tile(inner, chunk(arithmetic).columns, arithmetic, name, x)
    row_tiles, tiles = triton.cdiv(rows, cut.rows), triton.cdiv(inner, cut.columns)
    part_tiles = min(triton.next_power_of_2(tiles), _PART_TILES)
    parts = triton.cdiv(tiles, part_tiles)
    form = {"ROWS": cut.rows, "COLUMNS": cut.columns, "WIDE": arithmetic, "num_warps": cut.warps}
    form |= {"WEIGHTED": gamma is not None, "SWISH": swish_scale is not None}
    inputs, counts = (dy, x, mean, rstd, gamma, beta), (rows, num_groups, channels, inner)
    strides, scale = (dy.stride(0), x.stride(0)), 0.0 if swish_scale is None else swish_scale

    sums = work.empty((parts, 2 * rows), torch_dtype(arithmetic))
    work.start(sums_kernel, row_tiles * parts, *inputs, sums, *counts, parts, *strides, scale, TILES=part_tiles, **form)
    if parts > 1:
        partial, sums = sums, work.empty((1, 2 * rows))
        add_slots(work, partial, sums)
    if dx_out is not None:
        means = work.empty((2 * samples * num_groups,))
        of_groups = tile(channels, 1024, arithmetic)
        work.start(
            means_kernel,
            triton.cdiv(samples * num_groups, of_groups.rows),
            *(sums, gamma, means, samples * num_groups, rows, num_groups, channels, inner),
            **{"WEIGHTED": gamma is not None, "ROWS": of_groups.rows, "COLUMNS": of_groups.columns},
            num_warps=of_groups.warps,
        )
        dx = work.output(dx_out, samples, all_channels * inner)
        work.start(
            apply_kernel,
            row_tiles * tiles,
            *(*inputs, means, dx.matrix, *counts, tiles, *strides, dx.stride, scale),
            **form,
        )
        dx.finish()
    for output, of_samples in zip(outputs, sums.view(2, samples, all_channels), strict=True):
        if output is not None:
            add_slots(work, of_samples, output.matrix)
            output.finish()


group_norm_swish_grad = Operator("group_norm_swish_grad", launch)
