"""Layer norm of a sum, and its gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
from jax import Array

from descend.jax import definitions
from descend.jax.batching import batch_first
from descend.jax.derivatives import add_through_statistics
from descend.jax.library import Operator, Results, Values, call_each

_FORWARD = Operator(
    "add_layer_norm", definitions.add_layer_norm, lambda values: (True, True, True, values["additional_output"])
)
_BACKWARD = Operator("add_layer_norm_grad", definitions.add_layer_norm_grad)


def add_layer_norm(
    x1: Array,
    x2: Array,
    gamma: Array,
    beta: Array,
    bias: Array | None = None,
    epsilon: float = 1e-5,
    additional_output: bool = False,
) -> tuple[Array, Array, Array, Array | None]:
    """Layer norm of a sum, and the sum. Differentiable in all arrays::

        x         = x1 + x2 + bias
        mean, var = mean and biased variance of each row of x
        rstd      = 1 / sqrt(var + epsilon)
        y         = (x - mean) * rstd * gamma + beta

    Shapes: ``x2`` as ``x1``; ``gamma`` and ``beta`` the last dimensions of ``x1``; ``bias`` as ``gamma`` or as ``x1``,
    None for zeros. Floating dtypes, mixed at will. Returns ``y`` like ``x1``, ``mean`` and ``rstd``, float32 (float64
    for float64 ``x1``), of ``x1``'s rank with 1 for each dimension of ``gamma``, and ``x`` like ``x1``, None without
    ``additional_output``. Where ``x1`` and ``x2`` have two dtypes ``y`` and ``x`` are float32, or float64 if one is.
    ``y`` is computed from the sum before that is rounded.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnAddLayerNorm.
    """
    y, mean, rstd, x = _FORWARD(
        x1=x1, x2=x2, gamma=gamma, beta=beta, bias=bias, epsilon=epsilon, additional_output=additional_output
    )
    return y, mean, rstd, x


def add_layer_norm_grad(
    dy: Array, x1: Array, x2: Array | None, rstd: Array, mean: Array, gamma: Array, dsum: Array | None = None
) -> tuple[Array, Array, Array]:
    """Gradients of layer norm of a sum; differentiable in all arrays::

        xhat   = (x1 + x2 - mean) * rstd
        g      = dy * gamma
        dx     = rstd * (g - mean(g over the row) - xhat * mean(g * xhat over the row)) + dsum
        dgamma = sum over rows of dy * xhat
        dbeta  = sum over rows of dy

    Shapes: ``x1``, ``x2`` and ``dsum`` as ``dy``; ``gamma`` the last dimensions of ``dy``; ``mean`` and ``rstd`` one
    number a row. ``x2`` None: ``x1`` is the sum; ``dsum`` None: nothing came in for it. Returns ``dx`` like ``dy``,
    ``dgamma`` and ``dbeta`` of gamma's shape, float32 (float64 for float64 ``dy``).

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnAddLayerNormGrad.
    """
    dx, dgamma, dbeta = _BACKWARD(dy=dy, x1=x1, x2=x2, rstd=rstd, mean=mean, gamma=gamma, dsum=dsum)
    return dx, dgamma, dbeta


def _transpose(values: Values, cotangents: Sequence[Array | None], wanted: Sequence[str]) -> Values:
    x1, x2, bias, gamma, mean, rstd = (values[n] for n in ("x1", "x2", "bias", "gamma", "mean", "rstd"))
    dy, dmean, drstd, *rest = cotangents
    dx = rest[0] if rest else None
    dgamma = dbeta = None
    if bias is not None:
        x1, x2 = definitions.widened(x1) + definitions.widened(x2) + definitions.widened(bias), None
    if dy is not None:
        dx, dgamma, dbeta = add_layer_norm_grad(dy, x1, x2, rstd, mean, gamma, dx)
    if {"x1", "x2", "bias"} & set(wanted) and not (dmean is None and drstd is None):
        x = definitions.widened(x1) if x2 is None else definitions.widened(x1) + definitions.widened(x2)
        dx = add_through_statistics(dx, x, mean, rstd, dmean, drstd, gamma.size)
    dbias = dx
    if dx is not None and bias is not None and bias.shape != dx.shape:
        dbias = jnp.sum(definitions.widened(dx), tuple(range(dx.ndim - bias.ndim)))
    return {"x1": dx, "x2": dx, "gamma": dgamma, "beta": dbeta, "bias": dbias}


_SAVED = ("x1", "x2", "bias", "gamma", "mean", "rstd")
_FORWARD.differentiable(_SAVED, definitions.add_layer_norm_tangents, _transpose)


@_FORWARD.batched
def _batched(size: int, values: Values, dims: Mapping[str, int]) -> tuple[Results, Sequence[int | None]]:
    if dims.keys() - {"x1", "x2"}:
        return call_each(_FORWARD, values, dims)
    terms = {name: batch_first(values[name], dims.get(name), size) for name in ("x1", "x2")}
    bias = values["bias"]
    if bias is not None and bias.ndim > values["gamma"].ndim:
        terms["bias"] = batch_first(bias, None, size)
    results = _FORWARD(**values | terms)
    return results, tuple(None if r is None else 0 for r in results)
