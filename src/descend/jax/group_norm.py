"""Group norm and its gradient, and what all group norms share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import jax.numpy as jnp
from jax import Array

from descend.jax import definitions
from descend.jax.batching import apart, batch_first, batch_second
from descend.jax.derivatives import add_through_statistics
from descend.jax.library import Operator, Results, Values

_FORWARD = Operator("group_norm", definitions.group_norm)
_BACKWARD = Operator("group_norm_backward", definitions.group_norm_backward, lambda values: values["output_mask"])

Gradients = tuple[Array | None, Array | None, Array | None]
"""Those of x, gamma and beta."""


def group_norm(
    input: Array,
    gamma: Array | None,
    beta: Array | None,
    n: int,
    c: int,
    hxw: int,
    group: int,
    eps: float = 1e-5,
) -> tuple[Array, Array, Array]:
    """Group norm. Differentiable in ``input``, ``gamma`` and ``beta``::

        mean, var = mean and biased variance of each group
        rstd      = 1 / sqrt(var + eps)
        out       = (input - mean) * rstd * gamma + beta

    Shapes: ``input`` [n, c, ...], with ``hxw`` elements a channel; ``gamma`` and ``beta`` [c], None for ones and
    zeros; ``group`` divides c. Floating dtypes, mixed at will. Returns ``out`` like ``input``, and ``mean`` and
    ``rstd`` [n, group], float32 (float64 for float64 ``input``).

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnGroupNorm.
    """
    out, mean, rstd = _FORWARD(input=input, gamma=gamma, beta=beta, n=n, c=c, hxw=hxw, group=group, eps=eps)
    return out, mean, rstd


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
    output_mask: Sequence[bool] = (True, True, True),
) -> Gradients:
    """Gradients of group norm, None where ``output_mask`` is false; differentiable in all arrays::

        xhat       = (input - mean) * rstd
        g          = grad_out * gamma
        grad_input = rstd * (g - mean(g) - xhat * mean(g * xhat))                            means over the group
        grad_gamma = sum of grad_out * xhat over n and hw
        grad_beta  = sum of grad_out        over n and hw

    Shapes: ``grad_out`` and ``input`` have n * c * hxw elements, ``mean`` and ``rstd`` n * group, ``gamma`` c, in any
    shape. Returns gradients with the shapes and dtypes of ``input`` and, twice, of ``gamma``; where that is None, [c]
    and a statistic's dtype.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnGroupNormBackward.
    """
    grad_input, grad_gamma, grad_beta = _BACKWARD(
        grad_out=grad_out,
        input=input,
        mean=mean,
        rstd=rstd,
        gamma=gamma,
        n=n,
        c=c,
        hxw=hxw,
        group=group,
        output_mask=output_mask,
    )
    return grad_input, grad_gamma, grad_beta


def gradients(dy: Array, values: Values, wanted: Sequence[str], name: str, number: str) -> Gradients:
    """Those of group norm. Where the parameters' dtypes differ, so that theirs are rounded once, in float32."""
    x, gamma, beta = values[name], values["gamma"], values["beta"]
    if gamma is not None and beta is not None and gamma.dtype != beta.dtype:
        gamma = gamma.astype(definitions.statistics_dtype(x))
    n, c, hxw = x.shape[0], x.shape[1], math.prod(x.shape[2:])
    mask = tuple(each in wanted for each in (name, "gamma", "beta"))
    return group_norm_backward(dy, x, values["mean"], values["rstd"], gamma, n, c, hxw, values[number], mask)


def define(
    operator: Operator,
    tangents: Callable[[Values, Mapping[str, Array]], tuple[Array, ...]],
    gradients: Callable[[Array, Values, Sequence[str]], Gradients],
    name: str = "input",
    number: str = "group",
    channels: Sequence[str] = (),
) -> None:
    """Defines gradients and batches of a group norm of the array ``name`` in ``number`` groups.

    ``channels`` are the names of numbers that count channels.
    """

    def transpose(values: Values, cotangents: Sequence[Array | None], wanted: Sequence[str]) -> Values:
        x = values[name]
        dy, *through = cotangents
        dx = dgamma = dbeta = None
        if dy is not None:
            dx, dgamma, dbeta = gradients(dy, values, wanted)
        if name in wanted and any(c is not None for c in through):
            dmean, drstd = (None if s is None else _by_channel(s, x) for s in through)
            mean, rstd = (_by_channel(values[each], x) for each in ("mean", "rstd"))
            dx = add_through_statistics(dx, x, mean, rstd, dmean, drstd, math.prod(x.shape[1:]) // values[number])
        return {name: dx, "gamma": dgamma, "beta": dbeta}

    operator.differentiable((name, "gamma", "beta", "mean", "rstd"), tangents, transpose)

    # A batch becomes more channels in more groups: each sample then keeps gradients of its own for gamma and beta.
    @operator.batched
    def _batched(size: int, values: Values, dims: Mapping[str, int]) -> tuple[Results, Sequence[int]]:
        x = batch_second(values[name], dims.get(name), size)
        results = operator(**values | in_batch(values, dims, size, (number, *channels)) | {name: x})
        return tuple(apart(r, 1, size) for r in results), (1, 1, 1)


def in_batch(values: Values, dims: Mapping[str, int], size: int, counts: Sequence[str]) -> Values:
    """gamma, beta and the numbers of channels and groups of a batch of calls."""
    given = [each for each in ("gamma", "beta") if values.get(each) is not None]
    flat = {each: batch_first(values[each], dims.get(each), size).reshape(-1) for each in given}
    return flat | {each: size * values[each] for each in counts}


def statistics_in_batch(values: Values, dims: Mapping[str, int], size: int, shape: tuple[int, int]) -> Values:
    """mean and rstd, of each sample in any shape, as [N, groups] of all."""
    made = {}
    for each in ("mean", "rstd"):
        statistic = batch_first(values[each], dims.get(each), size).reshape(size, *shape)
        made[each] = batch_second(statistic, 0, size)
    return made


def _by_channel(statistic: Array, x: Array) -> Array:
    """[N, groups] as [N, C, 1, ...]: for each channel what its group has."""
    each = jnp.repeat(statistic, x.shape[1] // statistic.shape[1], axis=1)
    return each.reshape(*x.shape[:2], *[1] * (x.ndim - 2))


def _gradients(dy: Array, values: Values, wanted: Sequence[str]) -> Gradients:
    return gradients(dy, values, wanted, "input", "group")


define(_FORWARD, definitions.group_norm_tangents, _gradients, channels=("c",))


@_BACKWARD.batched
def _batched_backward(size: int, values: Values, dims: Mapping[str, int]) -> tuple[Results, Sequence[int]]:
    n, c, hxw, group, gamma = (values[name] for name in ("n", "c", "hxw", "group", "gamma"))
    first = {name: batch_first(values[name], dims.get(name), size) for name in ("grad_out", "input")}
    wide = {name: batch_second(array.reshape(size, n, c, hxw), 0, size) for name, array in first.items()}
    wide |= statistics_in_batch(values, dims, size, (n, group)) | in_batch(values, dims, size, ("c", "group"))
    dx, *parameters = _BACKWARD(**values | wide)
    of_gamma = (c,) if gamma is None else batch_first(gamma, dims.get("gamma"), size).shape[1:]
    results = [None if p is None else p.reshape(size, *of_gamma) for p in parameters]
    if dx is not None:
        dx = jnp.moveaxis(dx.reshape(n, size, c, hxw), 1, 0).reshape(first["input"].shape)
    return (dx, *results), (0, 0, 0)
