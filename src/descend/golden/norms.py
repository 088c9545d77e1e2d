"""Golden values of the norms along the last dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from descend import reference
from descend.golden._results import Array, Results, integers, of_sum, rounded, wide


def rms_norm_golden(x: Array, gamma: Array, *, epsilon: float = 1e-6, **given: Any) -> Results:
    """``y, rstd`` of RmsNorm; shapes and formula as `descend.rms_norm`."""
    return rounded(reference.rms_norm(x, gamma, epsilon), [x.dtype, wide(x)], given)


def rms_norm_grad_golden(dy: Array, x: Array, rstd: Array, gamma: Array, **given: Any) -> Results:
    """``dx, dgamma`` of RmsNormGrad; shapes and formula as `descend.rms_norm_grad`."""
    return rounded(reference.rms_norm_grad(dy, x, rstd, gamma), [x.dtype, wide(x)], given)


def gemma_rms_norm_golden(x: Array, gamma: Array, *, epsilon: float = 1e-6, **given: Any) -> Results:
    """``y, rstd`` of GemmaRmsNorm; shapes and formula as `descend.gemma_rms_norm`."""
    return rounded(reference.gemma_rms_norm(x, gamma, epsilon), [x.dtype, wide(x)], given)


def add_rms_norm_golden(x1: Array, x2: Array, gamma: Array, *, epsilon: float = 1e-6, **given: Any) -> Results:
    """``y, rstd, x`` of AddRmsNorm; shapes and formula as `descend.add_rms_norm`."""
    dtype = of_sum(x1, x2)
    return rounded(reference.add_rms_norm(x1, x2, gamma, epsilon), [dtype, wide(x1, x2), dtype], given)


def inplace_add_rms_norm_golden(x1: Array, x2: Array, gamma: Array, *, epsilon: float = 1e-6, **given: Any) -> Results:
    """``x1, rstd, x2`` of InplaceAddRmsNorm, which are AddRmsNorm's y, rstd and x."""
    return add_rms_norm_golden(x1, x2, gamma, epsilon=epsilon, **given)


def layer_norm_v3_golden(
    x: Array,
    gamma: Array,
    beta: Array,
    *,
    begin_norm_axis: int = 0,
    begin_params_axis: int = 0,
    epsilon: float = 1e-5,
    **given: Any,
) -> Results:
    """``y, mean, rstd`` of LayerNormV3, over the dimensions of x from ``begin_norm_axis`` on.

    gamma and beta have the dimensions from ``begin_params_axis`` on, which must be the same ones.
    """
    first, parameters = (axis + x.ndim if axis < 0 else axis for axis in (begin_norm_axis, begin_params_axis))
    if first != parameters or not 0 <= first < max(x.ndim, 1):
        raise ValueError(
            f"begin_norm_axis is {begin_norm_axis} and begin_params_axis {begin_params_axis}, but they must be the "
            f"same of the {x.ndim} axes of x."
        )
    return layer_norm_v4_golden(x, x.shape[first:], gamma, beta, epsilon=epsilon, **given)


def layer_norm_v4_golden(
    x: Array,
    normalized_shape: npt.ArrayLike,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    epsilon: float = 1e-5,
    **given: Any,
) -> Results:
    """``y, mean, rstd`` of LayerNormV4; ``normalized_shape`` is an array of integers, as its definition has it."""
    results = reference.layer_norm(x, integers(normalized_shape), gamma, beta, epsilon)
    return rounded(results, [x.dtype, wide(x), wide(x)], given)


def layer_norm_grad_v3_golden(
    dy: Array,
    x: Array,
    rstd: Array,
    mean: Array,
    gamma: Array,
    *,
    output_mask: Sequence[bool] = (True, True, True),
    **given: Any,
) -> Results:
    """``pd_x, pd_gamma, pd_beta`` of LayerNormGradV3, None where ``output_mask`` is false; rstd comes before mean."""
    results = reference.layer_norm_backward(dy, x, gamma.shape, mean, rstd, gamma, None, output_mask)
    return rounded(results, [x.dtype, gamma.dtype, gamma.dtype], given)


def add_layer_norm_golden(
    x1: Array,
    x2: Array,
    gamma: Array,
    beta: Array,
    bias: Array | None = None,
    *,
    epsilon: float = 1e-5,
    additional_output: bool = False,
    **given: Any,
) -> Results:
    """``y, mean, rstd, x`` of AddLayerNorm; x is None without ``additional_output``."""
    results = reference.add_layer_norm(x1, x2, gamma, beta, bias, epsilon, additional_output)
    dtype, statistic = of_sum(x1, x2), wide(x1, x2)
    return rounded(results, [dtype, statistic, statistic, dtype], given)


def inplace_add_layer_norm_golden(
    x1: Array,
    x2: Array,
    gamma: Array,
    beta: Array,
    bias: Array | None = None,
    *,
    epsilon: float = 1e-5,
    additional_output: bool = False,
    **given: Any,
) -> Results:
    """``x1, mean, rstd, x2`` of InplaceAddLayerNorm, which are AddLayerNorm's y, mean, rstd and x."""
    return add_layer_norm_golden(
        x1, x2, gamma, beta, bias, epsilon=epsilon, additional_output=additional_output, **given
    )


def add_layer_norm_grad_golden(
    dy: Array, x1: Array, x2: Array, rstd: Array, mean: Array, gamma: Array, dsum: Array | None = None, **given: Any
) -> Results:
    """``dx, dgamma, dbeta`` of AddLayerNormGrad; rstd comes before mean."""
    results = reference.add_layer_norm_grad(dy, x1, x2, rstd, mean, gamma, dsum)
    return rounded(results, [dy.dtype, wide(dy), wide(dy)], given)


def deep_norm_golden(
    x: Array, gx: Array, beta: Array, gamma: Array, *, alpha: float = 0.3, epsilon: float = 1e-6, **given: Any
) -> Results:
    """``mean, rstd, y`` of DeepNorm; beta comes before gamma."""
    return rounded(reference.deep_norm(x, gx, beta, gamma, alpha, epsilon), [wide(x), wide(x), x.dtype], given)


def deep_norm_grad_golden(
    dy: Array, x: Array, gx: Array, gamma: Array, mean: Array, rstd: Array, *, alpha: float = 0.3, **given: Any
) -> Results:
    """``dx, dgx, dbeta, dgamma`` of DeepNormGrad; dbeta comes before dgamma."""
    results = reference.deep_norm_grad(dy, x, gx, gamma, mean, rstd, alpha)
    return rounded(results, [x.dtype, x.dtype, wide(x), wide(x)], given)
