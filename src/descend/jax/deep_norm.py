"""Deep norm and its gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax import Array

from descend.jax import definitions
from descend.jax.batching import batch_first
from descend.jax.definitions import layer_norm_backward, statistics_dtype, widened
from descend.jax.derivatives import add_through_statistics
from descend.jax.library import Operator, Results, Values, call_each, operator

_FORWARD = Operator("deep_norm", definitions.deep_norm)


def deep_norm(
    x: Array, gx: Array, beta: Array, gamma: Array, alpha: float = 0.3, epsilon: float = 1e-6
) -> tuple[Array, Array, Array]:
    """Deep norm. Differentiable in ``x``, ``gx``, ``beta`` and ``gamma``::

        z         = alpha * x + gx
        mean, var = mean and biased variance of each row of z
        rstd      = 1 / sqrt(var + epsilon)
        y         = (z - mean) * rstd * gamma + beta

    Shapes: ``gx`` as ``x``; ``gamma`` and ``beta`` the last dimensions of ``x``. Floating dtypes, mixed at will.
    Returns ``mean`` and ``rstd``, float32 (float64 for float64 ``x``), of ``x``'s rank with 1 for each dimension of
    ``gamma``, and ``y`` like ``x``.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnDeepNorm.
    """
    mean, rstd, y = _FORWARD(x=x, gx=gx, beta=beta, gamma=gamma, alpha=alpha, epsilon=epsilon)
    return mean, rstd, y


@operator
def deep_norm_grad(
    dy: Array, x: Array, gx: Array, gamma: Array, mean: Array, rstd: Array, alpha: float = 0.3
) -> tuple[Array, Array, Array, Array]:
    """Gradients of deep norm, which is layer norm of ``alpha * x + gx``; differentiable in all arrays::

        xhat   = (alpha * x + gx - mean) * rstd
        g      = dy * gamma
        dgx    = rstd * (g - mean(g over the row) - xhat * mean(g * xhat over the row))
        dx     = alpha * dgx
        dbeta  = sum over rows of dy
        dgamma = sum over rows of dy * xhat

    Shapes: ``dy`` and ``gx`` as ``x``, ``gamma`` the last dimensions of ``x``, ``mean`` and ``rstd`` one number a row.
    Returns ``dx`` and ``dgx`` like ``x``, ``dbeta`` and ``dgamma`` of gamma's shape, float32 (float64 for float64
    ``x``).

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnDeepNormGrad.
    """
    dy, z, gamma = widened(dy), alpha * widened(x) + widened(gx), widened(gamma)
    gradients = layer_norm_backward(dy, z, gamma.shape, mean, rstd, gamma, None, (True, True, True))
    dgx, dgamma, dbeta = (g for g in gradients if g is not None)
    wide = statistics_dtype(x)
    return (alpha * dgx).astype(x.dtype), dgx.astype(x.dtype), dbeta.astype(wide), dgamma.astype(wide)


def _transpose(values: Values, cotangents: Sequence[Array | None], wanted: Sequence[str]) -> Values:
    x, gx, gamma, mean, rstd = (values[name] for name in ("x", "gx", "gamma", "mean", "rstd"))
    alpha = values["alpha"]
    dmean, drstd, dy = cotangents
    found: Values = dict.fromkeys(("x", "gx", "beta", "gamma"))
    if dy is not None:
        found = dict(zip(found, deep_norm_grad(dy, x, gx, gamma, mean, rstd, alpha), strict=True))
    if ("x" in wanted or "gx" in wanted) and not (dmean is None and drstd is None):
        z = alpha * widened(x) + widened(gx)
        dgx = add_through_statistics(found["gx"], z, mean, rstd, dmean, drstd, gamma.size)
        found |= {"gx": dgx, "x": alpha * dgx}
    return found


_FORWARD.differentiable(("x", "gx", "gamma", "mean", "rstd"), definitions.deep_norm_tangents, _transpose)


@_FORWARD.batched
def _batched(size: int, values: Values, dims: Mapping[str, int]) -> tuple[Results, Sequence[int]]:
    if "gamma" in dims or "beta" in dims:
        return call_each(_FORWARD, values, dims)
    terms = {name: batch_first(values[name], dims.get(name), size) for name in ("x", "gx")}
    return _FORWARD(**values | terms), (0, 0, 0)
