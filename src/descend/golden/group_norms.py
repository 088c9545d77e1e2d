"""Golden values of the group norms: ``x`` is [N, C, ...], and a group is some neighbouring channels of a sample."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from descend import reference
from descend.golden._results import Array, Results, check_one_of, rounded


def group_norm_golden(
    x: Array,
    gamma: Array,
    beta: Array,
    *,
    num_groups: int,
    data_format: str = "NCHW",
    eps: float = 1e-4,
    is_training: bool = True,
    **given: Any,
) -> Results:
    """``y, mean, variance`` of GroupNorm; eps is not in the variance. ``is_training`` changes nothing."""
    check_one_of("data_format", data_format, ["NCHW"])
    y, mean, _ = _group_norm(x, gamma, beta, num_groups, eps)
    *_, rstd = _group_norm(x, None, None, num_groups, 0.0)
    with np.errstate(all="ignore"):
        variance = rstd**-2.0
    return rounded([y, mean, variance], [x.dtype] * 3, given)


def group_norm_v2_golden(
    x: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    num_groups: int,
    data_format: str = "NHWC",
    eps: float = 1e-5,
    is_training: bool = True,
    **given: Any,
) -> Results:
    """``y, mean, rstd`` of GroupNormV2; ``is_training`` changes nothing.

    Nor does ``data_format``: the channels are dimension 1 of x whether it is NHWC or NCHW.
    """
    check_one_of("data_format", data_format, ["NHWC", "NCHW"])
    return rounded(_group_norm(x, gamma, beta, num_groups, eps), [x.dtype] * 3, given)


def group_norm_grad_golden(
    dy: Array,
    mean: Array,
    rstd: Array,
    x: Array,
    gamma: Array,
    *,
    num_groups: int,
    data_format: str = "NCHW",
    dx_is_require: bool = True,
    dgamma_is_require: bool = True,
    dbeta_is_require: bool = True,
    **given: Any,
) -> Results:
    """``dx, dgamma, dbeta`` of GroupNormGrad, None where not required."""
    check_one_of("data_format", data_format, ["NCHW"])
    required = dx_is_require, dgamma_is_require, dbeta_is_require
    results = reference.group_norm_backward(
        dy, x, mean, rstd, gamma, *_sizes(x, num_groups), num_groups, output_mask=required
    )
    return rounded(results, [x.dtype, gamma.dtype, gamma.dtype], given)


def group_norm_silu_golden(
    x: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    num_groups: int,
    eps: float = 1e-5,
    activate_silu: bool = True,
    **given: Any,
) -> Results:
    """``y, mean, rstd`` of GroupNormSilu, which without ``activate_silu`` is GroupNormV2."""
    if not activate_silu:
        return group_norm_v2_golden(x, gamma, beta, num_groups=num_groups, eps=eps, **given)
    _sizes(x, num_groups)
    return rounded(reference.group_norm_silu(x, gamma, beta, num_groups, eps), [x.dtype] * 3, given)


def group_norm_swish_golden(
    x: Array,
    gamma: Array,
    beta: Array,
    *,
    num_groups: int,
    data_format: str = "NCHW",
    eps: float = 1e-5,
    activate_swish: bool = True,
    swish_scale: float = 1.0,
    **given: Any,
) -> Results:
    """``y, mean, rstd`` of GroupNormSwish; shapes and formula as `descend.group_norm_swish`."""
    _sizes(x, num_groups)
    results = reference.group_norm_swish(x, gamma, beta, num_groups, data_format, eps, activate_swish, swish_scale)
    return rounded(results, [x.dtype, gamma.dtype, gamma.dtype], given)


def group_norm_swish_grad_golden(
    dy: Array,
    mean: Array,
    rstd: Array,
    x: Array,
    gamma: Array,
    beta: Array,
    *,
    num_groups: int,
    data_format: str = "NCHW",
    swish_scale: float = 1.0,
    dgamma_is_require: bool = True,
    dbeta_is_require: bool = True,
    **given: Any,
) -> Results:
    """``dx, dgamma, dbeta`` of GroupNormSwishGrad; dgamma and dbeta are None where not required."""
    _sizes(x, num_groups)
    results = reference.group_norm_swish_grad(
        dy, mean, rstd, x, gamma, beta, num_groups, data_format, swish_scale, dgamma_is_require, dbeta_is_require
    )
    return rounded(results, [x.dtype, gamma.dtype, beta.dtype], given)


def _group_norm(
    x: Array, gamma: Array | None, beta: Array | None, groups: int, eps: float
) -> tuple[Array, Array, Array]:
    return reference.group_norm(x, gamma, beta, *_sizes(x, groups), groups, eps)


def _sizes(x: Array, groups: int) -> tuple[int, int, int]:
    """N, C and the elements of a channel; ValueError unless the channels make so many groups."""
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise ValueError(f"dimension 1 of x, of shape {x.shape}, cannot be cut into {groups} groups.")
    return x.shape[0], x.shape[1], math.prod(x.shape[2:])
