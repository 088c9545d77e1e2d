"""Group norm followed by swish, and its gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
from jax import Array

from descend.jax import definitions
from descend.jax.batching import apart, batch_first, batch_second
from descend.jax.derivatives import add_through_statistics
from descend.jax.library import Operator, Results, Values

_FORWARD = Operator("group_norm_swish", definitions.group_norm_swish)
_BACKWARD = Operator(
    "group_norm_swish_grad",
    definitions.group_norm_swish_grad,
    lambda values: (True, values["dgamma_is_require"], values["dbeta_is_require"]),
)


def group_norm_swish(
    x: Array,
    gamma: Array,
    beta: Array,
    num_groups: int,
    data_format: str | None = "NCHW",
    eps: float = 1e-5,
    activate_swish: bool = True,
    swish_scale: float = 1.0,
) -> tuple[Array, Array, Array]:
    """Group norm, then swish where ``activate_swish``. Differentiable in ``x``, ``gamma`` and ``beta``::

        mean, var = mean and biased variance of each group
        rstd      = 1 / sqrt(var + eps)
        z         = (x - mean) * rstd * gamma + beta
        y         = z * sigmoid(swish_scale * z)

    Shapes: ``x`` [N, C, ...], ``gamma`` and ``beta`` [C]; ``num_groups`` divides C; ``data_format`` is not read.
    Floating dtypes, mixed at will. Returns ``y`` like ``x``, and ``mean`` and ``rstd`` [N, num_groups], float32
    (float64 for float64 ``x``). With ``swish_scale`` 1, swish is SiLU.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnGroupNormSwish.
    """
    y, mean, rstd = _FORWARD(
        x=x,
        gamma=gamma,
        beta=beta,
        num_groups=num_groups,
        data_format=data_format,
        eps=eps,
        activate_swish=activate_swish,
        swish_scale=swish_scale,
    )
    return y, mean, rstd


def group_norm_swish_grad(
    dy: Array,
    mean: Array,
    rstd: Array,
    x: Array,
    gamma: Array,
    beta: Array,
    num_groups: int,
    data_format: str | None = "NCHW",
    swish_scale: float = 1.0,
    dgamma_is_require: bool = True,
    dbeta_is_require: bool = True,
) -> tuple[Array, Array | None, Array | None]:
    """Gradients of group norm + swish, None where not required; differentiable in all arrays::

        z      = xhat * gamma + beta                        xhat = (x - mean) * rstd
        sig    = 1 / (1 + exp(-swish_scale * z))
        dz     = dy * sig * (1 + swish_scale * z * (1 - sig))
        dbeta  = sum of dz            over n and hw, per channel
        dgamma = sum of dz * xhat     over n and hw, per channel
        dx     = rstd * (dz * gamma - mean(dz * gamma) - xhat * mean(dz * gamma * xhat))      means over the group

    Shapes: ``dy`` as ``x``, ``mean`` and ``rstd`` N * num_groups elements, the rest as in `group_norm_swish`. Returns
    gradients with the shapes and dtypes of what they are for.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnGroupNormSwishGrad.
    """
    dx, dgamma, dbeta = _BACKWARD(
        dy=dy,
        mean=mean,
        rstd=rstd,
        x=x,
        gamma=gamma,
        beta=beta,
        num_groups=num_groups,
        data_format=data_format,
        swish_scale=swish_scale,
        dgamma_is_require=dgamma_is_require,
        dbeta_is_require=dbeta_is_require,
    )
    return dx, dgamma, dbeta


def _gradients(dy: Array, values: Values, wanted: Sequence[str]) -> tuple[Array, Array | None, Array | None]:
    """The backward operator, with or without swish.

    There is no operator for group norm alone, but where swish_scale is 0 the sigmoid is one half: twice that, exactly.
    """
    mean, rstd, x, gamma, beta = (values[name] for name in ("mean", "rstd", "x", "gamma", "beta"))
    groups, needs = values["num_groups"], ("gamma" in wanted, "beta" in wanted)
    if values["activate_swish"]:
        return group_norm_swish_grad(dy, mean, rstd, x, gamma, beta, groups, "NCHW", values["swish_scale"], *needs)
    wide = definitions.statistics_dtype(x)
    dx, *halves = group_norm_swish_grad(
        dy, mean, rstd, x, gamma.astype(wide) * 2, beta.astype(wide), groups, "NCHW", 0.0, *needs
    )
    dgamma, dbeta = (None if half is None else half * 2 for half in halves)
    return dx, dgamma, dbeta


def _by_channel(statistic: Array, x: Array) -> Array:
    """[N, groups] as [N, C, 1, ...]: for each channel what its group has."""
    each = jnp.repeat(statistic, x.shape[1] // statistic.shape[1], axis=1)
    return each.reshape(*x.shape[:2], *[1] * (x.ndim - 2))


def _transpose(values: Values, cotangents: Sequence[Array | None], wanted: Sequence[str]) -> Values:
    x = values["x"]
    dy, *through = cotangents
    dx = dgamma = dbeta = None
    if dy is not None:
        dx, dgamma, dbeta = _gradients(dy, values, wanted)
    if "x" in wanted and any(c is not None for c in through):
        dmean, drstd = (None if s is None else _by_channel(s, x) for s in through)
        mean, rstd = (_by_channel(values[name], x) for name in ("mean", "rstd"))
        dx = add_through_statistics(dx, x, mean, rstd, dmean, drstd, math.prod(x.shape[1:]) // values["num_groups"])
    return {"x": dx, "gamma": dgamma, "beta": dbeta}


_SAVED = ("x", "gamma", "beta", "mean", "rstd")
_FORWARD.differentiable(_SAVED, definitions.group_norm_swish_tangents, _transpose)

# A batch becomes more channels in more groups: each sample then keeps gradients of its own for gamma and beta.


def _parameters(values: Values, dims: Mapping[str, int], size: int) -> Values:
    flat = {name: batch_first(values[name], dims.get(name), size).reshape(-1) for name in ("gamma", "beta")}
    return flat | {"num_groups": size * values["num_groups"]}


@_FORWARD.batched
def _batched_forward(size: int, values: Values, dims: Mapping[str, int]) -> tuple[Results, Sequence[int]]:
    x = batch_second(values["x"], dims.get("x"), size)
    results = _FORWARD(**values | _parameters(values, dims, size) | {"x": x})
    return tuple(apart(r, 1, size) for r in results), (1, 1, 1)


@_BACKWARD.batched
def _batched_backward(size: int, values: Values, dims: Mapping[str, int]) -> tuple[Results, Sequence[int]]:
    wide = {name: batch_second(values[name], dims.get(name), size) for name in ("dy", "x")}
    samples, groups = wide["x"].shape[0], values["num_groups"]
    for name in ("mean", "rstd"):  # of each sample in any shape
        statistic = batch_first(values[name], dims.get(name), size).reshape(size, samples, groups)
        wide[name] = batch_second(statistic, 0, size)
    dx, *parameters = _BACKWARD(**values | _parameters(values, dims, size) | wide)
    return (apart(dx, 1, size), *(apart(p, 0, size) for p in parameters)), (1, 0, 0)
