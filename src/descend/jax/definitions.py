"""Each operator in ``jax.numpy``: what second derivatives, forward mode and devices other than the CPU go through.

Names, shapes, dtypes and formulas are those of the operators; the arithmetic is float32, or float64 where the input is.
The tangents of a forward are written in its inputs and in the results that its gradient takes (mean, rstd, y).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array


def statistics_dtype(x: Array) -> Any:
    """The dtype of mean and rstd: float64 for float64 input, else float32."""
    return jnp.float64 if x.dtype == jnp.float64 else jnp.float32


def widened(array: Array) -> Array:
    """The array in the dtype of the arithmetic."""
    return array if array.dtype == jnp.float64 else array.astype(jnp.float32)


def _split(x: Array, normalized: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The dimensions of the rows, those within a row, and the shape of the statistics."""
    split = x.ndim - normalized
    return tuple(range(split)), tuple(range(split, x.ndim)), (*x.shape[:split], *[1] * normalized)


def _mean(x: Array, axes: Sequence[int]) -> Array:
    return jnp.mean(x, tuple(axes), keepdims=True)


def _sum_of_terms(like: Array, terms: Sequence[Array]) -> Array:
    return sum(terms, start=jnp.zeros_like(like))


# --- RMS norm --------------------------------------------------------------------------------------------------------


def rms_norm(x: Array, gamma: Array, epsilon: float) -> tuple[Array, Array]:
    """``y`` and ``rstd`` of RMS norm."""
    _, row, _ = _split(x, gamma.ndim)
    wide = widened(x)
    rstd = jax.lax.rsqrt(_mean(wide * wide, row) + epsilon)
    return (wide * rstd * widened(gamma)).astype(x.dtype), rstd.astype(statistics_dtype(x))


def rms_norm_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array, Array]:
    """The tangents of ``y`` and ``rstd``."""
    x, gamma, r = widened(values["x"]), widened(values["gamma"]), widened(values["rstd"])
    _, row, _ = _split(x, gamma.ndim)
    xhat = x * r
    ys, rs = [], []
    if "x" in moving:
        tx = widened(moving["x"])
        along = _mean(xhat * tx, row)
        ys.append(r * (tx - xhat * along) * gamma)
        rs.append(-r * r * along)
    if "gamma" in moving:
        ys.append(xhat * widened(moving["gamma"]))
    return _sum_of_terms(x, ys), _sum_of_terms(r, rs)


def add_rms_norm(x1: Array, x2: Array, gamma: Array, epsilon: float) -> tuple[Array, Array, Array]:
    """``y``, ``rstd`` and ``x`` of the RMS norm of ``x1 + x2``."""
    x = widened(x1) + widened(x2)
    y, rstd = rms_norm(x, gamma, epsilon)
    return y.astype(x1.dtype), rstd.astype(statistics_dtype(x1)), x.astype(x1.dtype)


def add_rms_norm_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """The tangents of ``y``, ``rstd`` and ``x``."""
    terms = [widened(moving[name]) for name in ("x1", "x2") if name in moving]
    x = _sum_of_terms(widened(values["x"]), terms)
    others = {name: moving[name] for name in moving if name == "gamma"}
    return *rms_norm_tangents(values, others | ({"x": x} if terms else {})), x


def gemma_rms_norm(x: Array, gamma: Array, epsilon: float) -> tuple[Array, Array]:
    """``y`` and ``rstd`` of the RMS norm with ``1 + gamma``."""
    return rms_norm(x, 1 + widened(gamma), epsilon)


def gemma_rms_norm_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array, Array]:
    """The tangents of ``y`` and ``rstd``."""
    return rms_norm_tangents({**values, "gamma": 1 + widened(values["gamma"])}, moving)


def rms_norm_grad(dy: Array, x: Array, rstd: Array, gamma: Array) -> tuple[Array, Array]:
    """``dx`` and ``dgamma`` of RMS norm."""
    rows, row, statistics = _split(x, gamma.ndim)
    wide_dy, r = widened(dy), widened(rstd).reshape(statistics)
    xhat, g = widened(x) * r, wide_dy * widened(gamma)
    dx = r * (g - xhat * _mean(g * xhat, row))
    return dx.astype(x.dtype), jnp.sum(wide_dy * xhat, rows).astype(statistics_dtype(x))


# --- layer norm ------------------------------------------------------------------------------------------------------


def layer_norm(
    input: Array, normalized_shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    """``out``, ``mean`` and ``rstd`` of layer norm."""
    _, row, _ = _split(input, len(normalized_shape))
    wide = widened(input)
    mean = _mean(wide, row)
    centred = wide - mean
    rstd = jax.lax.rsqrt(_mean(centred * centred, row) + eps)
    out = centred * rstd
    if weight is not None:
        out = out * widened(weight)
    if bias is not None:
        out = out + widened(bias)
    return out.astype(input.dtype), mean.astype(statistics_dtype(input)), rstd.astype(statistics_dtype(input))


def layer_norm_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """The tangents of ``out``, ``mean`` and ``rstd``."""
    x, mean, r = (widened(values[name]) for name in ("input", "mean", "rstd"))
    _, row, _ = _split(x, len(values["normalized_shape"]))
    xhat = (x - mean) * r
    outs, means, rs = [], [], []
    if "input" in moving:
        tx = widened(moving["input"])
        level, along = _mean(tx, row), _mean(xhat * tx, row)
        t = r * (tx - level - xhat * along)
        outs.append(t if values["weight"] is None else t * widened(values["weight"]))
        means.append(level)
        rs.append(-r * r * along)
    if "weight" in moving:
        outs.append(xhat * widened(moving["weight"]))
    if "bias" in moving:
        outs.append(jnp.broadcast_to(widened(moving["bias"]), x.shape))
    return _sum_of_terms(x, outs), _sum_of_terms(r, means), _sum_of_terms(r, rs)


def deep_norm(
    x: Array, gx: Array, beta: Array, gamma: Array, alpha: float, epsilon: float
) -> tuple[Array, Array, Array]:
    """``mean``, ``rstd`` and ``y`` of deep norm."""
    y, mean, rstd = layer_norm(alpha * widened(x) + widened(gx), gamma.shape, gamma, beta, epsilon)
    return mean.astype(statistics_dtype(x)), rstd.astype(statistics_dtype(x)), y.astype(x.dtype)


def deep_norm_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """The tangents of ``mean``, ``rstd`` and ``y``."""
    alpha = values["alpha"]
    factors = {"x": alpha, "gx": 1}
    terms = [factors[name] * widened(moving[name]) for name in factors if name in moving]
    y, mean, rstd, _ = _norm_tangents(alpha * widened(values["x"]) + widened(values["gx"]), values, moving, terms)
    return mean, rstd, y


def _norm_tangents(
    x: Array, values: Mapping[str, Any], moving: Mapping[str, Array], terms: Sequence[Array]
) -> tuple[Array, Array, Array, Array]:
    """The tangents of the layer norm of ``x`` and of its statistics, and that of ``x``, which has these terms."""
    tangent = _sum_of_terms(x, terms)
    inputs = {"weight": "gamma", "bias": "beta"}
    given = {name: moving[of] for name, of in inputs.items() if of in moving} | ({"input": tangent} if terms else {})
    gamma = values["gamma"]
    norm = {**values, "input": x, "normalized_shape": gamma.shape, "weight": gamma}
    return *layer_norm_tangents(norm, given), tangent


def add_layer_norm(
    x1: Array,
    x2: Array,
    gamma: Array,
    beta: Array,
    bias: Array | None,
    epsilon: float,
    additional_output: bool,
) -> tuple[Array, Array, Array, Array | None]:
    """``y``, ``mean``, ``rstd`` and ``x`` of the layer norm of ``x1 + x2 + bias``."""
    x = _sum_of_three(x1, x2, bias)
    y, mean, rstd = layer_norm(x, gamma.shape, gamma, beta, epsilon)
    dtype, wide = sum_dtype(x1, x2), statistics_dtype(x1)
    return y.astype(dtype), mean.astype(wide), rstd.astype(wide), x.astype(dtype) if additional_output else None


def _sum_of_three(x1: Array, x2: Array, bias: Array | None) -> Array:
    x = widened(x1) + widened(x2)
    return x if bias is None else x + widened(bias)


def sum_dtype(x1: Array, x2: Array) -> Any:
    """The dtype of add_layer_norm's results of rows: float32, or float64, where the terms have two."""
    wide = jnp.float64 if jnp.float64 in (x1.dtype, x2.dtype) else jnp.float32
    return x1.dtype if x1.dtype == x2.dtype else wide


def add_layer_norm_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array, ...]:
    """The tangents of ``y``, ``mean``, ``rstd`` and, where it is a result, ``x``."""
    x = _sum_of_three(values["x1"], values["x2"], values["bias"])
    terms = [widened(moving[name]) for name in ("x1", "x2", "bias") if name in moving]
    tangents = _norm_tangents(x, values, moving, terms)
    return tangents if values["additional_output"] else tangents[:3]


def add_layer_norm_grad(
    dy: Array, x1: Array, x2: Array | None, rstd: Array, mean: Array, gamma: Array, dsum: Array | None
) -> tuple[Array, Array, Array]:
    """``dx``, ``dgamma`` and ``dbeta`` of the layer norm of ``x1 + x2``."""
    x = widened(x1) if x2 is None else widened(x1) + widened(x2)
    mask = (True, True, True)
    gradients = layer_norm_backward(widened(dy), x, gamma.shape, mean, rstd, widened(gamma), None, mask)
    dx, dgamma, dbeta = (g for g in gradients if g is not None)
    dx = dx if dsum is None else dx + widened(dsum)
    return dx.astype(dy.dtype), dgamma.astype(statistics_dtype(dy)), dbeta.astype(statistics_dtype(dy))


def layer_norm_backward(
    grad_out: Array,
    input: Array,
    normalized_shape: Sequence[int],
    mean: Array,
    rstd: Array,
    weight: Array | None,
    bias: Array | None,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None, Array | None]:
    """``grad_input``, ``grad_weight`` and ``grad_bias`` of layer norm, None where masked out."""
    rows, row, statistics = _split(input, len(normalized_shape))
    grad, r = widened(grad_out), widened(rstd).reshape(statistics)
    xhat = (widened(input) - widened(mean).reshape(statistics)) * r
    g = grad if weight is None else grad * widened(weight)
    dtypes = parameter_dtypes(input, weight, bias)
    return (
        (r * (g - _mean(g, row) - xhat * _mean(g * xhat, row))).astype(input.dtype) if output_mask[0] else None,
        jnp.sum(grad * xhat, rows).astype(dtypes[0]) if output_mask[1] else None,
        jnp.sum(grad, rows).astype(dtypes[1]) if output_mask[2] else None,
    )


def parameter_dtypes(input: Array, weight: Array | None, bias: Array | None) -> tuple[Any, Any]:
    """The dtypes of layer norm's two parameter gradients: their parameter's, else the other's, else a statistic's."""
    either = weight if weight is not None else bias
    common = statistics_dtype(input) if either is None else either.dtype
    return common, common if bias is None else bias.dtype


# --- group norm + swish ----------------------------------------------------------------------------------------------


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
    mean = _mean(wide, (2, 3))
    centred = wide - mean
    rstd = jax.lax.rsqrt(_mean(centred * centred, (2, 3)) + eps)
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
        level, along = _mean(tx, (2, 3)), _mean(xhat * tx, (2, 3))
        zs.append(_affine(r * (tx - level - xhat * along), gamma, None, groups))
        means.append(level)
        rs.append(-r * r * along)
    if "gamma" in moving:
        zs.append(xhat * _by_channel(moving["gamma"], groups))
    if "beta" in moving:
        zs.append(jnp.broadcast_to(_by_channel(moving["beta"], groups), xhat.shape))
    tangent = _sum_of_terms(xhat, zs)
    if scale is not None:
        tangent = tangent * _slope(_affine(xhat, gamma, values["beta"], groups), scale)
    tmean, trstd = (_sum_of_terms(r, terms).reshape(x.shape[0], groups) for terms in (means, rs))
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
    return rstd * (g - _mean(g, (2, 3)) - xhat * _mean(g * xhat, (2, 3)))


def _slope(z: Array, scale: float) -> Array:
    """The derivative of swish."""
    sig = jax.nn.sigmoid(scale * z)
    return sig * (1 + scale * z * (1 - sig))


def _grouped(x: Array, num_groups: int) -> Array:
    """x seen as [N, groups, channels of a group, HxW]."""
    return x.reshape(x.shape[0], num_groups, x.shape[1] // num_groups, math.prod(x.shape[2:]))


def _by_channel(parameter: Array, num_groups: int) -> Array:
    return widened(parameter).reshape(1, num_groups, parameter.size // num_groups, 1)


# --- softmax ---------------------------------------------------------------------------------------------------------


def scaled_masked_softmax(x: Array, mask: Array | None, scale: float, fix_triu_mask: bool) -> tuple[Array]:
    """``y`` of the scaled, masked softmax."""
    z = scale * widened(x)
    masked = _masked(x, mask, fix_triu_mask)
    if masked is not None:
        z = jnp.where(masked, -10000.0, z)
    return (jax.nn.softmax(z, -1).astype(x.dtype),)


def scaled_masked_softmax_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array]:
    """The tangent of ``y``."""
    y, tx = widened(values["y"]), values["scale"] * widened(moving["x"])
    masked = _masked(y, values["mask"], values["fix_triu_mask"])
    if masked is not None:
        tx = jnp.where(masked, 0.0, tx)
    product = y * tx
    return (product - y * jnp.sum(product, -1, keepdims=True),)


def scaled_masked_softmax_backward(
    grad_output: Array, y: Array, mask: Array | None, scale: float, fix_triu_mask: bool
) -> tuple[Array]:
    """The gradient of the scaled, masked softmax."""
    product = widened(grad_output) * widened(y)
    out = scale * (product - widened(y) * jnp.sum(product, -1, keepdims=True))
    masked = _masked(y, mask, fix_triu_mask)
    if masked is not None:
        out = jnp.where(masked, 0.0, out)
    return (out.astype(y.dtype),)


def _masked(x: Array, mask: Array | None, triangle: bool) -> Array | None:
    return jnp.triu(jnp.ones(x.shape[-2:], bool), 1) if triangle else mask


def softmax(x: Array, dim: int) -> tuple[Array]:
    """Softmax along ``dim``."""
    return (_along(x, dim, jax.nn.softmax).astype(x.dtype),)


def log_softmax(x: Array, dim: int) -> tuple[Array]:
    """Log softmax along ``dim``."""
    return (_along(x, dim, jax.nn.log_softmax).astype(x.dtype),)


def _along(x: Array, dim: int, function: Any) -> Array:
    """A function along ``dim``; a number is a vector of one."""
    made: Array = function(jnp.atleast_1d(widened(x)), dim).reshape(x.shape)
    return made


def softmax_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array]:
    """The tangent of the result, which is as its gradient."""
    return (_of_softmax(moving["x"], values["out"], values["dim"]),)


def log_softmax_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array]:
    """The tangent of the result."""
    tx, y, dim = jnp.atleast_1d(widened(moving["x"])), jnp.atleast_1d(widened(values["out"])), values["dim"]
    return ((tx - jnp.sum(jnp.exp(y) * tx, dim, keepdims=True)).reshape(values["out"].shape),)


def softmax_backward(grad_output: Array, output: Array, dim: int) -> tuple[Array]:
    """The gradient of softmax."""
    return (_of_softmax(grad_output, output, dim).astype(grad_output.dtype),)


def log_softmax_backward(grad_output: Array, output: Array, dim: int) -> tuple[Array]:
    """The gradient of log softmax."""
    dy, y = jnp.atleast_1d(widened(grad_output)), jnp.atleast_1d(widened(output))
    dx = dy - jnp.exp(y) * jnp.sum(dy, dim, keepdims=True)
    return (dx.reshape(output.shape).astype(grad_output.dtype),)


def _of_softmax(v: Array, y: Array, dim: int) -> Array:
    v, wide = jnp.atleast_1d(widened(v)), jnp.atleast_1d(widened(y))
    return ((v - jnp.sum(v * wide, dim, keepdims=True)) * wide).reshape(y.shape)


# --- cross entropy ---------------------------------------------------------------------------------------------------


def cross_entropy_loss(
    input: Array,
    target: Array,
    weight: Array | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    lse_square_scale_for_zloss: float,
    return_zloss: bool,
) -> tuple[Array, Array, Array | None, Array | None]:
    """``loss``, ``log_prob``, ``zloss`` and ``lse`` of cross entropy."""
    wide, scale = widened(input), lse_square_scale_for_zloss
    lse = jax.nn.logsumexp(wide, 1)
    log_prob = wide - lse[:, None]
    rows = _Targets(wide, target, ignore_index)
    loss, zloss = rows.losses(log_prob, lse, _weights(wide, weight), reduction, label_smoothing, scale)
    return (
        loss.astype(input.dtype),
        log_prob.astype(input.dtype),
        zloss.astype(input.dtype) if return_zloss else None,
        lse.astype(input.dtype) if scale else None,
    )


def cross_entropy_loss_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array, ...]:
    """The tangents of all results that there are."""
    log_prob, scale = widened(values["log_prob"]), values["lse_square_scale_for_zloss"]
    lse = widened(values["lse_for_zloss"]) if scale else jnp.zeros(log_prob.shape[:1], log_prob.dtype)
    weight, zero = _weights(log_prob, values["weight"]), jnp.zeros_like
    direct = widened(moving["input"]) if "input" in moving else zero(log_prob)
    of_weight = widened(moving["weight"]).astype(log_prob.dtype) if "weight" in moving else zero(weight)
    of_lse = jnp.sum(jnp.exp(log_prob) * direct, 1)
    of_log_prob = direct - of_lse[:, None]
    rows = _Targets(log_prob, values["target"], values["ignore_index"])
    losses = functools.partial(
        rows.losses, reduction=values["reduction"], smoothing=values["label_smoothing"], scale=scale
    )
    _, (loss, zloss) = jax.jvp(losses, (log_prob, lse, weight), (of_log_prob, of_lse, of_weight))
    wanted = (True, True, values["return_zloss"], scale != 0)
    return tuple(t for t, w in zip((loss, of_log_prob, zloss, of_lse), wanted, strict=True) if w)


def cross_entropy_loss_gradients(
    values: Mapping[str, Any], cotangents: Sequence[Array | None], gradient: Callable[..., Array]
) -> dict[str, Array]:
    """The gradients of ``input`` and ``weight``; ``gradient`` is the operator that is the one through the loss."""
    log_prob, target, weight, scale = (
        values[name] for name in ("log_prob", "target", "weight", "lse_square_scale_for_zloss")
    )
    given = dict(zip(present_of(values), cotangents, strict=True))
    names = ("reduction", "ignore_index", "label_smoothing", "lse_square_scale_for_zloss")
    loss, zloss = given["loss"], given.get("zloss")
    found, parts = {}, []
    if loss is not None or zloss is not None:
        grad = jnp.zeros(zloss.shape, zloss.dtype) if loss is None and zloss is not None else loss
        lse = values["lse_for_zloss"] if scale else None
        parts.append(gradient(grad, log_prob, target, weight, zloss, lse, *(values[name] for name in names)))
    wide, direct, of_lse = widened(log_prob), given["log_prob"], given.get("lse_for_zloss")
    if direct is not None or of_lse is not None:
        direct = jnp.zeros_like(wide) if direct is None else widened(direct)
        through = -jnp.sum(direct, 1) + (0 if of_lse is None else widened(of_lse))
        parts.append(direct + jnp.exp(wide) * through[:, None])
    if parts:
        found["input"] = parts[0] if len(parts) == 1 else widened(parts[0]) + parts[1]
    if weight is not None and loss is not None:
        rows = _Targets(wide, target, values["ignore_index"])
        zero = jnp.zeros(wide.shape[:1], wide.dtype)

        def of_weight(weights: Array) -> Array:
            return rows.losses(wide, zero, weights, values["reduction"], values["label_smoothing"], 0.0)[0]

        _, pull = jax.vjp(of_weight, _weights(wide, weight))
        found["weight"] = pull(loss.astype(wide.dtype))[0]
    return found


def present_of(values: Mapping[str, Any]) -> list[str]:
    """The results of cross entropy that there are."""
    wanted = (True, True, values["return_zloss"], values["lse_square_scale_for_zloss"] != 0)
    return [n for n, w in zip(("loss", "log_prob", "zloss", "lse_for_zloss"), wanted, strict=True) if w]


def cross_entropy_loss_grad(
    grad_loss: Array,
    log_prob: Array,
    target: Array,
    weight: Array | None,
    grad_zloss: Array | None,
    lse_for_zloss: Array | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    lse_square_scale_for_zloss: float,
) -> tuple[Array]:
    """The gradient of cross entropy for its input."""
    scores, scale = widened(log_prob), lse_square_scale_for_zloss
    rows, weights = _Targets(scores, target, ignore_index), _weights(scores, weight)
    if lse_for_zloss is not None and lse_for_zloss.ndim == 2:
        scores = scores - lse_for_zloss.astype(scores.dtype)
    grad = grad_loss.astype(scores.dtype).reshape(-1)
    both = grad if grad_zloss is None or not grad_zloss.size else grad + grad_zloss.astype(scores.dtype).reshape(-1)
    of_rows = rows.weight(weights)
    if reduction == "mean":
        grad, both = grad / jnp.sum(of_rows), both / jnp.sum(rows.counts)
    of_row = grad * (1 - label_smoothing) * of_rows
    smooth = jnp.broadcast_to(grad * (label_smoothing / log_prob.shape[1]), of_row.shape)
    factor = of_row + smooth * jnp.sum(weights)
    if scale and lse_for_zloss is not None:
        factor = factor + 2 * scale * lse_for_zloss.astype(scores.dtype).reshape(-1) * both
    out = jnp.exp(scores) * factor[:, None] - smooth[:, None] * weights
    out = out.at[jnp.arange(len(out)), rows.target].add(-of_row)
    return (jnp.where(rows.counts[:, None], out, 0).astype(log_prob.dtype),)


def _weights(scores: Array, weight: Array | None) -> Array:
    return jnp.ones(scores.shape[1], scores.dtype) if weight is None else weight.astype(scores.dtype)


class _Targets:
    """Of each row whether it counts, and its class, 0 where there is none."""

    def __init__(self, scores: Array, target: Array, ignored: int) -> None:
        self.counts, self._exists = target != ignored, (target >= 0) & (target < scores.shape[1])
        self.target = jnp.where(self.counts & self._exists, target, 0)

    def weight(self, weights: Array) -> Array:
        """The weights of the rows, NaN where there is no class, 0 where they do not count."""
        return jnp.where(self.counts, jnp.where(self._exists, weights[self.target], jnp.nan), 0)

    def losses(
        self, log_prob: Array, lse: Array, weights: Array, reduction: str, smoothing: float, scale: float
    ) -> tuple[Array, Array]:
        """``loss`` and ``zloss``."""
        of_rows = self.weight(weights)
        loss = -(1 - smoothing) * of_rows * jnp.take_along_axis(log_prob, self.target[:, None], 1)[:, 0]
        if smoothing:
            loss = loss - smoothing / log_prob.shape[1] * jnp.where(self.counts, jnp.sum(log_prob * weights, 1), 0)
        zloss = jnp.where(self.counts, scale * lse * lse, 0)
        if reduction != "none":
            loss, zloss = jnp.sum(loss)[None], jnp.sum(zloss)[None]
        if reduction == "mean":
            loss, zloss = loss / jnp.sum(of_rows), zloss / jnp.sum(self.counts)
        return (loss + zloss if scale else loss), zloss


# --- SwiGLU ----------------------------------------------------------------------------------------------------------


def swi_glu(x: Array, dim: int) -> tuple[Array]:
    """SwiGLU of the halves of ``x``."""
    a, b = jnp.split(widened(x), 2, dim)
    return ((a * jax.nn.sigmoid(a) * b).astype(x.dtype),)


def swi_glu_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array]:
    """The tangent of the result."""
    a, b = jnp.split(widened(values["x"]), 2, values["dim"])
    ta, tb = jnp.split(widened(moving["x"]), 2, values["dim"])
    sig = jax.nn.sigmoid(a)
    return (sig * (1 + a * (1 - sig)) * b * ta + a * sig * tb,)


def swi_glu_grad(y_grad: Array, x: Array, dim: int) -> tuple[Array]:
    """The gradient of SwiGLU."""
    a, b = jnp.split(widened(x), 2, dim)
    sig, dy = jax.nn.sigmoid(a), widened(y_grad)
    return (jnp.concatenate((dy * sig * (1 + a * (1 - sig)) * b, dy * sig * a), dim).astype(x.dtype),)


# --- Rotary position embedding ---------------------------------------------------------------------------------------


def rotary_position_embedding(x: Array, cos: Array, sin: Array, mode: int) -> tuple[Array]:
    """Rotary position embedding."""
    wide = _halves_of_pairs(widened(x), mode)
    return ((wide * widened(cos) + _quarter_turn(wide, mode) * widened(sin)).astype(x.dtype),)


def rotary_position_embedding_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array]:
    """The tangent of the result."""
    mode = values["mode"]
    x, cos, sin = _halves_of_pairs(widened(values["x"]), mode), widened(values["cos"]), widened(values["sin"])
    terms = []
    if "x" in moving:
        tangent = _halves_of_pairs(widened(moving["x"]), mode)
        terms.append(tangent * cos + _quarter_turn(tangent, mode) * sin)
    if "cos" in moving:
        terms.append(x * widened(moving["cos"]))
    if "sin" in moving:
        terms.append(_quarter_turn(x, mode) * widened(moving["sin"]))
    return (_sum_of_terms(x, terms),)


def rotary_position_embedding_grad(
    dy: Array, cos: Array, sin: Array, x: Array | None, mode: int
) -> tuple[Array, Array | None, Array | None]:
    """``dx``, ``dcos`` and ``dsin`` of rotary position embedding."""
    wide = widened(dy)
    dx = wide * widened(cos) - _quarter_turn(wide * widened(sin), mode)
    if mode == 3:
        dx = jnp.stack(jnp.split(dx, 2, -1), -1).reshape(dy.shape)
    if x is None:
        return dx.astype(dy.dtype), None, None
    axes = tuple(d for d, size in enumerate(cos.shape[:-1]) if size == 1)
    of_x = _halves_of_pairs(widened(x), mode)
    dcos = jnp.sum(wide * of_x, axes, keepdims=True)
    dsin = jnp.sum(wide * _quarter_turn(of_x, mode), axes, keepdims=True)
    return dx.astype(dy.dtype), dcos.astype(cos.dtype), dsin.astype(sin.dtype)


def _halves_of_pairs(x: Array, mode: int) -> Array:
    """In mode 3 each row's even elements, then its odd ones."""
    return jnp.concatenate((x[..., ::2], x[..., 1::2]), -1) if mode == 3 else x


def _quarter_turn(x: Array, mode: int) -> Array:
    """(-b, a) in the place of each pair (a, b) of a row."""
    if mode == 1:
        return jnp.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape)
    parts = jnp.split(x, 4 if mode == 2 else 2, -1)
    return jnp.concatenate([part for a, b in zip(parts[::2], parts[1::2], strict=True) for part in (-b, a)], -1)


# --- GELU ------------------------------------------------------------------------------------------------------------


def gelu_v2(x: Array, approximate: int) -> tuple[Array]:
    """GELU of ``x``."""
    return (jax.nn.gelu(widened(x), approximate=approximate == 1).astype(x.dtype),)


def gelu_slope(x: Array, by_tanh: bool) -> Array:
    """The slope of GELU at ``x``, not rounded to its dtype."""
    wide = widened(x)
    if not by_tanh:
        return jax.scipy.special.ndtr(wide) + wide * jnp.exp(-wide * wide / 2) / math.sqrt(2 * math.pi)
    steep, cube = math.sqrt(8 / math.pi), 0.044715
    near = jnp.clip(wide, -100, 100)  # beyond, the slope is 0 or 1, and x^2 may overflow
    sig = jax.nn.sigmoid(steep * (near + cube * near**3))
    return sig * (1 + near * (1 - sig) * steep * (1 + 3 * cube * near**2))


def gelu_v2_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array]:
    """The tangent of the result."""
    return (gelu_slope(values["x"], values["approximate"] == 1) * widened(moving["x"]),)


def gelu_backward_v2(grad_output: Array, x: Array, approximate: str) -> tuple[Array]:
    """The gradient of GELU."""
    dtype = jnp.promote_types(grad_output.dtype, x.dtype)
    return ((widened(grad_output) * gelu_slope(x, approximate == "tanh")).astype(dtype),)


# --- NSA compression -------------------------------------------------------------------------------------------------


def nsa_compress(
    input: Array,
    weight: Array,
    act_seq_len: Sequence[int] | None,
    layout: str | None,
    compress_block_size: int,
    compress_stride: int,
    act_seq_len_type: int,
) -> tuple[Array]:
    """``output`` of the compression of native sparse attention."""
    windows = _windows(input, act_seq_len, compress_block_size, compress_stride, act_seq_len_type)
    return (jnp.sum(widened(input)[windows] * widened(weight)[:, :, None], 1).astype(input.dtype),)


def nsa_compress_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array]:
    """The tangent of ``output``, which is linear in either input."""
    names = ("act_seq_len", "compress_block_size", "compress_stride", "act_seq_len_type")
    windows = _windows(values["input"], *(values[name] for name in names))
    tokens, weight = widened(values["input"]), widened(values["weight"])[:, :, None]
    terms = []
    if "input" in moving:
        terms.append(jnp.sum(widened(moving["input"])[windows] * weight, 1))
    if "weight" in moving:
        terms.append(jnp.sum(tokens[windows] * widened(moving["weight"])[:, :, None], 1))
    return (sum(terms[1:], start=terms[0]),)


def nsa_compress_grad(
    output_grad: Array,
    input: Array,
    weight: Array,
    act_seq_len: Sequence[int] | None,
    compress_block_size: int,
    compress_stride: int,
    act_seq_len_type: int,
    layout: str | None,
) -> tuple[Array, Array]:
    """``input_grad`` and ``weight_grad`` of the compression of native sparse attention."""
    windows = _windows(input, act_seq_len, compress_block_size, compress_stride, act_seq_len_type)
    grad = widened(output_grad)[:, None]
    input_grad = jnp.zeros_like(widened(input)).at[windows].add(grad * widened(weight)[:, :, None])
    weight_grad = jnp.sum(grad * widened(input)[windows], (0, 3))
    return input_grad.astype(input.dtype), weight_grad.astype(weight.dtype)


def _windows(input: Array, act_seq_len: Sequence[int] | None, width: int, stride: int, kind: int) -> Any:
    """The tokens of each window, [windows, W]."""
    lengths = list(act_seq_len or [input.shape[0]])
    ends = lengths if kind == 0 else list(itertools.accumulate(lengths))
    sequences = zip([0, *ends[:-1]], ends, strict=True)
    starts = [s for begin, end in sequences for s in range(begin, end - width + 1, stride)]
    return np.array(starts, np.int32).reshape(-1, 1) + np.arange(width, dtype=np.int32)


# --- AdamW -----------------------------------------------------------------------------------------------------------


def apply_adam_w_v2(
    var: Array,
    m: Array,
    v: Array,
    max_grad_norm: Array | None,
    grad: Array,
    step: Array,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
) -> tuple[Array, Array, Array, Array | None]:
    """``var``, ``m``, ``v`` and ``max_grad_norm`` after a step of AdamW."""
    t = widened(step).reshape(()) + 1
    g = -widened(grad) if maximize else widened(grad)
    mean = beta1 * widened(m) + (1 - beta1) * g
    square = beta2 * widened(v) + (1 - beta2) * g * g
    most = jnp.maximum(widened(max_grad_norm), square) if amsgrad and max_grad_norm is not None else None
    root = jnp.sqrt((square if most is None else most) / (1 - beta2**t))
    changed = (1 - lr * weight_decay) * widened(var) - lr * (mean / (1 - beta1**t)) / (root + eps)
    largest = None if most is None or max_grad_norm is None else most.astype(max_grad_norm.dtype)
    return changed.astype(var.dtype), mean.astype(m.dtype), square.astype(v.dtype), largest
