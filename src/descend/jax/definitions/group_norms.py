"""Group norm, also with an activation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from descend.jax.definitions.arrays import Array, mean_of, statistics_dtype, sum_of_terms, widened


def group_norm_swish(
    x: Array,
    gamma: Array,
    beta: Array,
    num_groups: int,
    data_format: str | None,
    eps: float,
    activate_swish: bool,
    swish_scale: float,
) -> tuple[Array, Array, Array]:
    """``y``, ``mean`` and ``rstd`` of group norm + swish."""
    z, mean, rstd = _group_norm(x, gamma, beta, num_groups, eps)
    y = z * jax.nn.sigmoid(swish_scale * z) if activate_swish else z
    return y.reshape(x.shape).astype(x.dtype), mean, rstd


def group_norm(
    input: Array, gamma: Array | None, beta: Array | None, n: int, c: int, hxw: int, group: int, eps: float
) -> tuple[Array, Array, Array]:
    """``out``, ``mean`` and ``rstd`` of group norm."""
    z, mean, rstd = _group_norm(input, gamma, beta, group, eps)
    return z.reshape(input.shape).astype(input.dtype), mean, rstd


def group_norm_silu(
    input: Array, gamma: Array | None, beta: Array | None, group: int, eps: float
) -> tuple[Array, Array, Array]:
    """``out``, ``mean`` and ``rstd`` of group norm + SiLU."""
    z, mean, rstd = _group_norm(input, gamma, beta, group, eps)
    return jax.nn.silu(z).reshape(input.shape).astype(input.dtype), mean, rstd


def _group_norm(
    x: Array, gamma: Array | None, beta: Array | None, groups: int, eps: float
) -> tuple[Array, Array, Array]:
    """The norm, [N, groups, channels of a group, HxW], not rounded; mean and rstd."""
    wide = _grouped(widened(x), groups)
    mean = mean_of(wide, (2, 3))
    centred = wide - mean
    rstd = jax.lax.rsqrt(mean_of(centred * centred, (2, 3)) + eps)
    z = _affine(centred * rstd, gamma, beta, groups)
    mean, rstd = (s.reshape(x.shape[0], groups).astype(statistics_dtype(x)) for s in (mean, rstd))
    return z, mean, rstd


def _affine(xhat: Array, gamma: Array | None, beta: Array | None, groups: int) -> Array:
    scaled = xhat if gamma is None else xhat * _by_channel(gamma, groups)
    return scaled if beta is None else scaled + _by_channel(beta, groups)


def group_norm_swish_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """The tangents of ``y``, ``mean`` and ``rstd``."""
    scale = values["swish_scale"] if values["activate_swish"] else None
    return _group_norm_tangents("x", "num_groups", scale, values, moving)


def group_norm_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """The tangents of ``out``, ``mean`` and ``rstd``."""
    return _group_norm_tangents("input", "group", None, values, moving)


def group_norm_silu_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """The tangents of ``out``, ``mean`` and ``rstd``."""
    return _group_norm_tangents("input", "group", 1.0, values, moving)


def _group_norm_tangents(
    name: str, number: str, scale: float | None, values: Mapping[str, Any], moving: Mapping[str, Array]
) -> tuple[Array, Array, Array]:
    """Those of a group norm of this input in this number of groups, and swish with a scale, None for none."""
    x, groups, gamma = values[name], values[number], values["gamma"]
    statistics = (x.shape[0], groups, 1, 1)
    r = widened(values["rstd"]).reshape(statistics)
    xhat = (_grouped(widened(x), groups) - widened(values["mean"]).reshape(statistics)) * r
    zs, means, rs = [], [], []
    if name in moving:
        tx = _grouped(widened(moving[name]), groups)
        level, along = mean_of(tx, (2, 3)), mean_of(xhat * tx, (2, 3))
        zs.append(_affine(r * (tx - level - xhat * along), gamma, None, groups))
        means.append(level)
        rs.append(-r * r * along)
    if "gamma" in moving:
        zs.append(xhat * _by_channel(moving["gamma"], groups))
    if "beta" in moving:
        zs.append(jnp.broadcast_to(_by_channel(moving["beta"], groups), xhat.shape))
    tangent = sum_of_terms(xhat, zs)
    if scale is not None:
        tangent = tangent * _slope(_affine(xhat, gamma, values["beta"], groups), scale)
    tmean, trstd = (sum_of_terms(r, terms).reshape(x.shape[0], groups) for terms in (means, rs))
    return tangent.reshape(x.shape), tmean, trstd


def group_norm_swish_grad(
    dy: Array,
    mean: Array,
    rstd: Array,
    x: Array,
    gamma: Array,
    beta: Array,
    num_groups: int,
    data_format: str | None,
    swish_scale: float,
    dgamma_is_require: bool,
    dbeta_is_require: bool,
) -> tuple[Array, Array | None, Array | None]:
    """``dx``, ``dgamma`` and ``dbeta`` of group norm + swish, None where not required."""
    statistics = (x.shape[0], num_groups, 1, 1)
    r, weight = widened(rstd).reshape(statistics), _by_channel(gamma, num_groups)
    xhat = (_grouped(widened(x), num_groups) - widened(mean).reshape(statistics)) * r
    dz = _grouped(widened(dy), num_groups) * _slope(xhat * weight + _by_channel(beta, num_groups), swish_scale)
    return (
        _through_groups(dz * weight, xhat, r).reshape(x.shape).astype(x.dtype),
        jnp.sum(dz * xhat, (0, 3)).reshape(gamma.shape).astype(gamma.dtype) if dgamma_is_require else None,
        jnp.sum(dz, (0, 3)).reshape(beta.shape).astype(beta.dtype) if dbeta_is_require else None,
    )


def group_norm_backward(
    grad_out: Array,
    input: Array,
    mean: Array,
    rstd: Array,
    gamma: Array | None,
    n: int,
    c: int,
    hxw: int,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None, Array | None]:
    """``grad_input``, ``grad_gamma`` and ``grad_beta`` of group norm, None where masked out."""
    shape, statistics = (n, group, c // group, hxw), (n, group, 1, 1)
    dz, r = widened(grad_out).reshape(shape), widened(rstd).reshape(statistics)
    xhat = (widened(input).reshape(shape) - widened(mean).reshape(statistics)) * r
    like, dtype = ((c,), statistics_dtype(input)) if gamma is None else (gamma.shape, gamma.dtype)
    g = _affine(dz, gamma, None, group)
    return (
        _through_groups(g, xhat, r).reshape(input.shape).astype(input.dtype) if output_mask[0] else None,
        jnp.sum(dz * xhat, (0, 3)).reshape(like).astype(dtype) if output_mask[1] else None,
        jnp.sum(dz, (0, 3)).reshape(like).astype(dtype) if output_mask[2] else None,
    )


def _through_groups(g: Array, xhat: Array, rstd: Array) -> Array:
    """The gradient of a group's elements, from that of xhat."""
    return rstd * (g - mean_of(g, (2, 3)) - xhat * mean_of(g * xhat, (2, 3)))


def _slope(z: Array, scale: float) -> Array:
    """The derivative of swish."""
    sig = jax.nn.sigmoid(scale * z)
    return sig * (1 + scale * z * (1 - sig))


def _grouped(x: Array, num_groups: int) -> Array:
    """x seen as [N, groups, channels of a group, HxW]."""
    return x.reshape(x.shape[0], num_groups, x.shape[1] // num_groups, math.prod(x.shape[2:]))


def _by_channel(parameter: Array, num_groups: int) -> Array:
    return widened(parameter).reshape(1, num_groups, parameter.size // num_groups, 1)
