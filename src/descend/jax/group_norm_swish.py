"""Group norm followed by swish, and its gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax import Array

from descend.jax import definitions
from descend.jax.batching import apart, batch_second
from descend.jax.group_norm import Gradients, define, gradients, in_batch, statistics_in_batch
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


def _gradients(dy: Array, values: Values, wanted: Sequence[str]) -> Gradients:
    if not values["activate_swish"]:
        return gradients(dy, values, wanted, "x", "num_groups")
    mean, rstd, x, gamma, beta, groups = (values[name] for name in ("mean", "rstd", "x", "gamma", "beta", "num_groups"))
    needs = ("gamma" in wanted, "beta" in wanted)
    return group_norm_swish_grad(dy, mean, rstd, x, gamma, beta, groups, "NCHW", values["swish_scale"], *needs)


define(_FORWARD, definitions.group_norm_swish_tangents, _gradients, "x", "num_groups")


@_BACKWARD.batched
def _batched_backward(size: int, values: Values, dims: Mapping[str, int]) -> tuple[Results, Sequence[int]]:
    wide = {name: batch_second(values[name], dims.get(name), size) for name in ("dy", "x")}
    wide |= statistics_in_batch(values, dims, size, (wide["x"].shape[0], values["num_groups"]))
    dx, *parameters = _BACKWARD(**values | in_batch(values, dims, size, ("num_groups",)) | wide)
    return (apart(dx, 1, size), *(apart(p, 0, size) for p in parameters)), (1, 0, 0)
