"""Group norm, also with an activation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from descend.reference.arrays import Float64, float64


@np.errstate(all="ignore")
def group_norm_swish_grad(
    dy: npt.ArrayLike,
    mean: npt.ArrayLike,
    rstd: npt.ArrayLike,
    x: npt.ArrayLike,
    gamma: npt.ArrayLike,
    beta: npt.ArrayLike,
    num_groups: int,
    data_format: str | None = "NCHW",
    swish_scale: float = 1.0,
    dgamma_is_require: bool = True,
    dbeta_is_require: bool = True,
) -> tuple[Float64, Float64 | None, Float64 | None]:
    """Gradients of group norm followed by swish, as aclnnGroupNormSwishGrad defines them.

    Shapes: ``dy`` as ``x``, ``[N, C, ...]``; ``mean`` and ``rstd`` one number a group of each sample, in any shape;
    ``gamma`` and ``beta`` ``[C]``. Returns ``dx`` shaped as ``x``, ``dgamma`` and ``dbeta`` ``[C]`` (None where not
    required), float64::

        xhat   = (x - mean) * rstd
        z      = xhat * gamma + beta
        sig    = 1 / (1 + exp(-swish_scale * z))
        dz     = dy * sig * (1 + swish_scale * z * (1 - sig))
        dbeta  = sum of dz over n and hw, per channel
        dgamma = sum of dz * xhat over n and hw, per channel
        dx     = rstd * (dz * gamma - mean(dz * gamma) - xhat * mean(dz * gamma * xhat)), means over the group

    Raises ValueError where the shapes do not fit.
    """
    x, bias = float64(x), float64(beta)
    shape = (x.shape[0], num_groups, x.shape[1] // num_groups, math.prod(x.shape[2:]))

    def slope(z: Float64) -> Float64:
        return _swish_slope(z + bias.reshape(1, *shape[1:3], 1), swish_scale)

    dx, dgamma, dbeta = _group_norm_gradients(dy, x, mean, rstd, gamma, shape, slope)
    return dx, dgamma if dgamma_is_require else None, dbeta if dbeta_is_require else None


def _swish_slope(z: Float64, scale: float) -> Float64:
    """The derivative of swish at z."""
    u = scale * z
    # sigmoid(-u) by itself: 1 - sig would cancel. exp() may overflow to infinity, and 1 / infinity is 0.
    sig, rest = 1 / (1 + np.exp(-u)), 1 / (1 + np.exp(u))
    slope: Float64 = sig + np.where(np.abs(u) < 800, u * sig * rest, u * 0)
    return slope


def _group_norm_gradients(
    dy: npt.ArrayLike,
    x: Float64,
    mean: npt.ArrayLike,
    rstd: npt.ArrayLike,
    gamma: npt.ArrayLike,
    shape: tuple[int, int, int, int],
    slope: Callable[[Float64], Float64],
) -> tuple[Float64, Float64, Float64]:
    """dx, dgamma and dbeta of [N, G, D, HxW]; ``slope`` is that of what follows, at xhat * gamma."""
    statistic, channel, group, elements = (*shape[:2], 1, 1), (1, *shape[1:3], 1), (2, 3), shape[2] * shape[3]
    mean, rstd = float64(mean).reshape(statistic), float64(rstd).reshape(statistic)
    gamma = float64(gamma).reshape(channel)
    xhat = (x.reshape(shape) - mean) * rstd
    dz = float64(dy).reshape(shape) * slope(xhat * gamma)
    c1 = (dz * gamma).sum(axis=group, keepdims=True) / elements if elements else 0.0
    c2 = (dz * gamma * xhat).sum(axis=group, keepdims=True) / elements if elements else 0.0
    dx = rstd * (dz * gamma - c1 - xhat * c2)
    return dx.reshape(x.shape), (dz * xhat).sum(axis=(0, 3)).ravel(), dz.sum(axis=(0, 3)).ravel()


@np.errstate(all="ignore")
def group_norm_backward(
    grad_out: npt.ArrayLike,
    input: npt.ArrayLike,
    mean: npt.ArrayLike,
    rstd: npt.ArrayLike,
    gamma: npt.ArrayLike | None,
    n: int,
    c: int,
    hxw: int,
    group: int,
    output_mask: Sequence[bool] = (True, True, True),
) -> tuple[Float64 | None, Float64 | None, Float64 | None]:
    """Gradients of group norm, as aclnnGroupNormBackward defines them.

    Shapes: ``grad_out`` and ``input`` have ``n * c * hxw`` elements, ``mean`` and ``rstd`` one number a group of each
    sample, ``gamma`` ``c`` elements (None stands for ones), each in any shape. Returns ``grad_input`` shaped as
    ``input``, ``grad_gamma`` and ``grad_beta`` shaped as ``gamma``, else ``[c]`` (None where ``output_mask`` is false),
    float64::

        xhat       = (input - mean) * rstd
        g          = grad_out * gamma
        grad_input = rstd * (g - mean(g) - xhat * mean(g * xhat)), means over the group
        grad_gamma = sum of grad_out * xhat over n and hw
        grad_beta  = sum of grad_out over n and hw

    Raises ValueError where the shapes do not fit.
    """
    shape = (n, group, c // group, hxw)
    weight = np.broadcast_to(1.0, (c,)) if gamma is None else float64(gamma)  # c may be too large for memory
    dx, *parameters = _group_norm_gradients(grad_out, float64(input), mean, rstd, weight, shape, np.ones_like)
    results = (dx, *(parameter.reshape(weight.shape) for parameter in parameters))
    first, second, third = (r if wanted else None for r, wanted in zip(results, output_mask, strict=True))
    return first, second, third


@np.errstate(all="ignore")
def group_norm_swish(
    x: npt.ArrayLike,
    gamma: npt.ArrayLike,
    beta: npt.ArrayLike,
    num_groups: int,
    data_format: str | None = "NCHW",
    eps: float = 1e-5,
    activate_swish: bool = True,
    swish_scale: float = 1.0,
) -> tuple[Float64, Float64, Float64]:
    """Group norm, then swish, as aclnnGroupNormSwish defines it.

    Shapes: ``x`` is ``[N, C, ...]``, ``gamma`` and ``beta`` ``[C]``. Returns ``y`` shaped as ``x``, and ``mean`` and
    ``rstd`` ``[N, num_groups]``, all float64; a group without elements has mean 0 and rstd NaN::

        mean, var = mean and biased variance of each group
        rstd      = 1 / sqrt(var + eps)
        z         = (x - mean) * rstd * gamma + beta
        y         = z / (1 + exp(-swish_scale * z)) if activate_swish else z

    Raises ValueError where the shapes do not fit.
    """
    x = float64(x)
    z, mean, rstd = group_norm(x, gamma, beta, x.shape[0], x.shape[1], math.prod(x.shape[2:]), num_groups, eps)
    return z / (1 + np.exp(-swish_scale * z)) if activate_swish else z, mean, rstd


@np.errstate(all="ignore")
def group_norm(
    input: npt.ArrayLike,
    gamma: npt.ArrayLike | None,
    beta: npt.ArrayLike | None,
    n: int,
    c: int,
    hxw: int,
    group: int,
    eps: float = 1e-5,
) -> tuple[Float64, Float64, Float64]:
    """Group norm, as aclnnGroupNorm defines it.

    Shapes: ``input`` is ``[n, c, ...]``, with ``hxw`` elements a channel; ``gamma`` (None stands for ones) and ``beta``
    (None for zeros) ``[c]``. Returns ``out`` shaped as ``input``, and ``mean`` and ``rstd`` ``[n, group]``, all
    float64; a group without elements has mean 0 and rstd NaN::

        mean, var = mean and biased variance of each group
        rstd      = 1 / sqrt(var + eps)
        out       = (input - mean) * rstd * gamma + beta

    Raises ValueError where the shapes do not fit.
    """
    input = float64(input)
    shape, elements = (n, group, c // group, hxw), c // group * hxw
    groups = np.ascontiguousarray(input).reshape(shape)
    flat = groups.reshape(n, group, elements)  # one axis, so that NumPy adds it up in pairs
    mean = flat.sum(axis=-1, keepdims=True) / max(elements, 1)
    var = ((flat - mean) ** 2).sum(axis=-1, keepdims=True) / np.float64(elements)
    mean, rstd = mean[..., None], 1 / np.sqrt(var + eps)[..., None]
    out = (groups - mean) * rstd
    if gamma is not None:
        out = out * float64(gamma).reshape(1, *shape[1:3], 1)
    if beta is not None:
        out = out + float64(beta).reshape(1, *shape[1:3], 1)
    return out.reshape(input.shape), mean.reshape(n, group), rstd.reshape(n, group)


def group_norm_silu(
    input: npt.ArrayLike, gamma: npt.ArrayLike | None, beta: npt.ArrayLike | None, group: int, eps: float = 1e-5
) -> tuple[Float64, Float64, Float64]:
    """Group norm, then SiLU, as aclnnGroupNormSilu defines it.

    Shapes: ``input`` is ``[N, C, ...]``, ``gamma`` (None stands for ones) and ``beta`` (None for zeros) ``[C]``.
    Returns ``out`` shaped as ``input``, and ``mean`` and ``rstd`` ``[N, group]``, all float64::

        z, mean, rstd = the group norm of input
        out           = z / (1 + exp(-z))

    Raises ValueError where the shapes do not fit.
    """
    channels = np.shape(input)[1]
    ones = np.ones(channels) if gamma is None else gamma
    return group_norm_swish(input, ones, np.zeros(channels) if beta is None else beta, group, eps=eps)
