"""RMS norm and layer norm, also of sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from descend.jax.definitions.arrays import Array, dimensions, mean_of, statistics_dtype, sum_of_terms, widened

# --- RMS norm --------------------------------------------------------------------------------------------------------


def rms_norm(x: Array, gamma: Array, epsilon: float) -> tuple[Array, Array]:
    """``y`` and ``rstd`` of RMS norm."""
    _, row, _ = dimensions(x, gamma.ndim)
    wide = widened(x)
    rstd = jax.lax.rsqrt(mean_of(wide * wide, row) + epsilon)
    return (wide * rstd * widened(gamma)).astype(x.dtype), rstd.astype(statistics_dtype(x))


def rms_norm_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array, Array]:
    """The tangents of ``y`` and ``rstd``."""
    x, gamma, r = widened(values["x"]), widened(values["gamma"]), widened(values["rstd"])
    _, row, _ = dimensions(x, gamma.ndim)
    xhat = x * r
    ys, rs = [], []
    if "x" in moving:
        tx = widened(moving["x"])
        along = mean_of(xhat * tx, row)
        ys.append(r * (tx - xhat * along) * gamma)
        rs.append(-r * r * along)
    if "gamma" in moving:
        ys.append(xhat * widened(moving["gamma"]))
    return sum_of_terms(x, ys), sum_of_terms(r, rs)


def add_rms_norm(x1: Array, x2: Array, gamma: Array, epsilon: float) -> tuple[Array, Array, Array]:
    """``y``, ``rstd`` and ``x`` of the RMS norm of ``x1 + x2``."""
    x = widened(x1) + widened(x2)
    y, rstd = rms_norm(x, gamma, epsilon)
    return y.astype(x1.dtype), rstd.astype(statistics_dtype(x1)), x.astype(x1.dtype)


def add_rms_norm_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """The tangents of ``y``, ``rstd`` and ``x``."""
    terms = [widened(moving[name]) for name in ("x1", "x2") if name in moving]
    x = sum_of_terms(widened(values["x"]), terms)
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
    rows, row, statistics = dimensions(x, gamma.ndim)
    wide_dy, r = widened(dy), widened(rstd).reshape(statistics)
    xhat, g = widened(x) * r, wide_dy * widened(gamma)
    dx = r * (g - xhat * mean_of(g * xhat, row))
    return dx.astype(x.dtype), jnp.sum(wide_dy * xhat, rows).astype(statistics_dtype(x))


# --- layer norm ------------------------------------------------------------------------------------------------------


def layer_norm(
    input: Array, normalized_shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    """``out``, ``mean`` and ``rstd`` of layer norm."""
    _, row, _ = dimensions(input, len(normalized_shape))
    wide = widened(input)
    mean = mean_of(wide, row)
    centred = wide - mean
    rstd = jax.lax.rsqrt(mean_of(centred * centred, row) + eps)
    out = centred * rstd
    if weight is not None:
        out = out * widened(weight)
    if bias is not None:
        out = out + widened(bias)
    return out.astype(input.dtype), mean.astype(statistics_dtype(input)), rstd.astype(statistics_dtype(input))


def layer_norm_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """The tangents of ``out``, ``mean`` and ``rstd``."""
    x, mean, r = (widened(values[name]) for name in ("input", "mean", "rstd"))
    _, row, _ = dimensions(x, len(values["normalized_shape"]))
    xhat = (x - mean) * r
    outs, means, rs = [], [], []
    if "input" in moving:
        tx = widened(moving["input"])
        level, along = mean_of(tx, row), mean_of(xhat * tx, row)
        t = r * (tx - level - xhat * along)
        outs.append(t if values["weight"] is None else t * widened(values["weight"]))
        means.append(level)
        rs.append(-r * r * along)
    if "weight" in moving:
        outs.append(xhat * widened(moving["weight"]))
    if "bias" in moving:
        outs.append(jnp.broadcast_to(widened(moving["bias"]), x.shape))
    return sum_of_terms(x, outs), sum_of_terms(r, means), sum_of_terms(r, rs)


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
    tangent = sum_of_terms(x, terms)
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
    rows, row, statistics = dimensions(input, len(normalized_shape))
    grad, r = widened(grad_out), widened(rstd).reshape(statistics)
    xhat = (widened(input) - widened(mean).reshape(statistics)) * r
    g = grad if weight is None else grad * widened(weight)
    dtypes = parameter_dtypes(input, weight, bias)
    return (
        (r * (g - mean_of(g, row) - xhat * mean_of(g * xhat, row))).astype(input.dtype) if output_mask[0] else None,
        jnp.sum(grad * xhat, rows).astype(dtypes[0]) if output_mask[1] else None,
        jnp.sum(grad, rows).astype(dtypes[1]) if output_mask[2] else None,
    )


def parameter_dtypes(input: Array, weight: Array | None, bias: Array | None) -> tuple[Any, Any]:
    """The dtypes of layer norm's two parameter gradients: their parameter's, else the other's, else a statistic's."""
    either = weight if weight is not None else bias
    common = statistics_dtype(input) if either is None else either.dtype
    return common, common if bias is None else bias.dtype
