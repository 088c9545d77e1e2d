"""RMS norm and its gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from jax import Array

from descend.jax import definitions
from descend.jax.batching import batch_first
from descend.jax.derivatives import add_through_statistics
from descend.jax.library import Kernel, Operator, Results, Values, call_each

_FORWARD = Operator("rms_norm", definitions.rms_norm)
_BACKWARD = Operator("rms_norm_grad", definitions.rms_norm_grad)


def rms_norm(x: Array, gamma: Array, epsilon: float = 1e-6) -> tuple[Array, Array]:
    """RMS norm: each row divided by its root mean square, times a weight. Differentiable in ``x`` and ``gamma``::

        rstd = 1 / sqrt(mean(x * x over the row) + epsilon)
        y    = x * rstd * gamma

    Shapes: ``gamma`` has the last dimensions of ``x``. Floating dtypes, mixed at will. Returns ``y`` like ``x`` and
    ``rstd``, float32 (float64 for float64 ``x``), of ``x``'s rank with 1 for each dimension of ``gamma``.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnRmsNorm.
    """
    y, rstd = _FORWARD(x=x, gamma=gamma, epsilon=epsilon)
    return y, rstd


def rms_norm_grad(dy: Array, x: Array, rstd: Array, gamma: Array) -> tuple[Array, Array]:
    """Gradients of RMS norm; differentiable in all four::

        xhat   = x * rstd
        g      = dy * gamma
        dx     = rstd * (g - xhat * mean(g * xhat over the row))
        dgamma = sum over rows of dy * xhat

    Shapes: ``dy`` as ``x``, ``gamma`` the last dimensions of ``x``, ``rstd`` one number a row. Returns ``dx`` like
    ``x`` and ``dgamma`` shaped as ``gamma``, float32 (float64 for float64 ``x``).

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnRmsNormGrad.
    """
    dx, dgamma = _BACKWARD(dy=dy, x=x, rstd=rstd, gamma=gamma)
    return dx, dgamma


def define(operator: Operator, tangents: Kernel, weight: Callable[[Array], Array]) -> None:
    """Defines the derivatives and batches of RMS norm with the weight ``weight(gamma)``."""

    def transpose(values: Values, cotangents: Sequence[Array | None], wanted: Sequence[str]) -> Values:
        x, gamma, rstd = values["x"], values["gamma"], values["rstd"]
        dy, drstd = cotangents
        dx = dgamma = None
        if dy is not None:
            dx, dgamma = rms_norm_grad(dy, x, rstd, weight(gamma))
        if drstd is not None and "x" in wanted:
            dx = add_through_statistics(dx, x, None, rstd, None, drstd, gamma.size)
        return {"x": dx, "gamma": dgamma}

    operator.differentiable(("x", "gamma", "rstd"), tangents, transpose)

    @operator.batched
    def _batched(size: int, values: Values, dims: Mapping[str, int]) -> tuple[Results, Sequence[int]]:
        if "gamma" in dims:
            return call_each(operator, values, dims)
        return operator(**values | {"x": batch_first(values["x"], dims.get("x"), size)}), (0, 0)


define(_FORWARD, definitions.rms_norm_tangents, lambda gamma: gamma)
