"""The gradient of deep norm."""

from __future__ import annotations

from jax import Array

from descend.jax.definitions import layer_norm_backward, statistics_dtype, widened
from descend.jax.library import operator


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
