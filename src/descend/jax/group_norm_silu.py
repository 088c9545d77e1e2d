"""Group norm followed by SiLU. Its gradient is that of group norm followed by swish."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

from descend.jax import definitions
from descend.jax.group_norm import Gradients, define
from descend.jax.group_norm_swish import group_norm_swish_grad
from descend.jax.library import Operator, Values

_FORWARD = Operator("group_norm_silu", definitions.group_norm_silu)


def group_norm_silu(
    input: Array, gamma: Array | None, beta: Array | None, group: int, eps: float = 1e-5
) -> tuple[Array, Array, Array]:
    """Group norm, then SiLU. Differentiable in ``input``, ``gamma`` and ``beta``::

        mean, var = mean and biased variance of each group
        rstd      = 1 / sqrt(var + eps)
        z         = (input - mean) * rstd * gamma + beta
        out       = z * sigmoid(z)

    Shapes: ``input`` [N, C, ...], ``gamma`` and ``beta`` [C], None for ones and zeros; ``group`` divides C. Floating
    dtypes, mixed at will. Returns ``out`` like ``input``, and ``mean`` and ``rstd`` [N, group], float32 (float64 for
    float64 ``input``).

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnGroupNormSilu.
    """
    out, mean, rstd = _FORWARD(input=input, gamma=gamma, beta=beta, group=group, eps=eps)
    return out, mean, rstd


def _gradients(dy: Array, values: Values, wanted: Sequence[str]) -> Gradients:
    mean, rstd, x, gamma, beta = (values[name] for name in ("mean", "rstd", "input", "gamma", "beta"))
    weight = jnp.ones(x.shape[1:2], x.dtype) if gamma is None else gamma
    bias = jnp.zeros(x.shape[1:2], x.dtype) if beta is None else beta
    needs = ("gamma" in wanted, "beta" in wanted)
    return group_norm_swish_grad(dy, mean, rstd, x, weight, bias, values["group"], "NCHW", 1.0, *needs)


define(_FORWARD, definitions.group_norm_silu_tangents, _gradients)
