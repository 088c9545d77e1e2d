"""Each operator in a dozen lines of float64 NumPy: the definition that everything is measured against.

Parameters are named as in the functional API (``descend.rms_norm_grad``). Inputs may have any floating dtype,
``ml_dtypes.bfloat16`` included; they are converted to float64 first, which is exact, and results stay float64.
Infinities and NaN propagate as IEEE arithmetic has them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]


def _float64(array: npt.ArrayLike) -> Float64:
    return np.asarray(array, dtype=np.float64)


# NumPy would repeat what is smaller, and the results would be others, and perhaps larger than memory.


def _check_like(name: str, array: Float64, other_name: str, other: Float64) -> None:
    """Raise ValueError for an array that is not shaped as another."""
    if array.shape != other.shape:
        raise ValueError(f"{name} of shape {array.shape} is not shaped as {other_name}, {other.shape}")


def _check_row(x: Float64, gamma: Float64) -> None:
    """Raise ValueError unless gamma has the last dimensions of x."""
    if gamma.ndim > x.ndim or gamma.shape != x.shape[x.ndim - gamma.ndim :]:
        raise ValueError(f"gamma of shape {gamma.shape} is not shaped as the last dimensions of x, {x.shape}")


@np.errstate(all="ignore")
def rms_norm_grad(
    dy: npt.ArrayLike, x: npt.ArrayLike, rstd: npt.ArrayLike, gamma: npt.ArrayLike
) -> tuple[Float64, Float64]:
    """Gradients of RMS norm, as aclnnRmsNormGrad defines them.

    Shapes: ``dy`` as ``x``; ``gamma`` the last dimensions of ``x``; ``rstd`` one number a row, in any shape.
    Returns ``dx`` shaped as ``x`` and ``dgamma`` shaped as ``gamma``, both float64::

        xhat   = x * rstd
        g      = dy * gamma
        dx     = rstd * (g - xhat * mean(g * xhat over the row))
        dgamma = sum over rows of dy * xhat

    Raises ValueError where the shapes do not fit.
    """
    dy, x, rstd, gamma = _float64(dy), _float64(x), _float64(rstd), _float64(gamma)
    _check_row(x, gamma)
    _check_like("dy", dy, "x", x)
    split = x.ndim - gamma.ndim
    rows, row = tuple(range(split)), tuple(range(split, x.ndim))
    rstd = rstd.reshape(x.shape[:split] + (1,) * gamma.ndim)
    xhat = x * rstd
    g = dy * gamma
    mean = (g * xhat).sum(axis=row, keepdims=True) / gamma.size
    dx = rstd * (g - xhat * mean)
    dgamma = (dy * xhat).sum(axis=rows)
    return dx, dgamma


@np.errstate(all="ignore")
def rms_norm(x: npt.ArrayLike, gamma: npt.ArrayLike, epsilon: float = 1e-6) -> tuple[Float64, Float64]:
    """RMS norm, as aclnnRmsNorm defines it.

    Shapes: ``gamma`` has the last ``k`` dimensions of ``x``. Returns ``y`` shaped as ``x`` and ``rstd`` shaped
    ``x.shape[:-k] + (1,) * k``, both float64::

        rstd = 1 / sqrt(mean(x * x over the row) + epsilon)
        y    = x * rstd * gamma

    Raises ValueError where the shapes do not fit.
    """
    x, gamma = _float64(x), _float64(gamma)
    _check_row(x, gamma)
    row = tuple(range(x.ndim - gamma.ndim, x.ndim))
    mean = (x * x).sum(axis=row, keepdims=True) / gamma.size
    rstd = 1.0 / np.sqrt(mean + epsilon)
    y = x * rstd * gamma
    return y, rstd


@np.errstate(all="ignore")
def add_rms_norm(
    x1: npt.ArrayLike, x2: npt.ArrayLike, gamma: npt.ArrayLike, epsilon: float = 1e-6
) -> tuple[Float64, Float64, Float64]:
    """RMS norm of a sum, as aclnnAddRmsNorm defines it.

    Shapes: ``x2`` as ``x1``; ``gamma`` has the last ``k`` dimensions of ``x1``. Returns ``y`` shaped as ``x1``,
    ``rstd`` shaped ``x1.shape[:-k] + (1,) * k``, and the sum ``x``, all float64::

        x    = x1 + x2
        rstd = 1 / sqrt(mean(x * x over the row) + epsilon)
        y    = x * rstd * gamma

    Raises ValueError where the shapes do not fit.
    """
    x1, x2 = _float64(x1), _float64(x2)
    _check_like("x2", x2, "x1", x1)
    x = x1 + x2
    y, rstd = rms_norm(x, gamma, epsilon)
    return y, rstd, x


def deep_norm(
    x: npt.ArrayLike,
    gx: npt.ArrayLike,
    beta: npt.ArrayLike,
    gamma: npt.ArrayLike,
    alpha: float = 0.3,
    epsilon: float = 1e-6,
) -> tuple[Float64, Float64, Float64]:
    """Deep norm, which is layer norm of ``alpha * x + gx``, as aclnnDeepNorm defines it.

    Shapes: ``gx`` as ``x``; ``gamma`` and ``beta`` the last dimensions of ``x``. Returns ``mean``, ``rstd`` and ``y``,
    all float64, as `layer_norm` has them.

    Raises ValueError where the shapes do not fit.
    """
    x, gx, gamma, beta = _float64(x), _float64(gx), _float64(gamma), _float64(beta)
    _check_like("gx", gx, "x", x)
    _check_like("beta", beta, "gamma", gamma)
    y, mean, rstd = layer_norm(alpha * x + gx, gamma.shape, gamma, beta, epsilon)
    return mean, rstd, y


def add_layer_norm(
    x1: npt.ArrayLike,
    x2: npt.ArrayLike,
    gamma: npt.ArrayLike,
    beta: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    epsilon: float = 1e-5,
    additional_output: bool = False,
) -> tuple[Float64, Float64, Float64, Float64 | None]:
    """Layer norm of ``x = x1 + x2 + bias``, as aclnnAddLayerNorm defines it.

    Shapes: ``x2`` as ``x1``; ``gamma`` and ``beta`` the last dimensions of ``x1``; ``bias`` as one of them, or None.
    Returns ``y``, ``mean`` and ``rstd``, as `layer_norm` has them, and ``x``, None without ``additional_output``; all
    float64.

    Raises ValueError where the shapes do not fit.
    """
    x1, x2, gamma, beta = _float64(x1), _float64(x2), _float64(gamma), _float64(beta)
    _check_like("x2", x2, "x1", x1)
    _check_like("beta", beta, "gamma", gamma)
    x = x1 + x2
    if bias is not None:
        bias = _float64(bias)
        _check_like("bias", bias, "x1", x1 if bias.ndim == x1.ndim else gamma)
        x = x + bias
    return *layer_norm(x, gamma.shape, gamma, beta, epsilon), x if additional_output else None


def add_layer_norm_grad(
    dy: npt.ArrayLike,
    x1: npt.ArrayLike,
    x2: npt.ArrayLike | None,
    rstd: npt.ArrayLike,
    mean: npt.ArrayLike,
    gamma: npt.ArrayLike,
    dsum: npt.ArrayLike | None = None,
) -> tuple[Float64, Float64, Float64]:
    """Gradients of layer norm of ``x1 + x2``, as aclnnAddLayerNormGrad defines them.

    Shapes: ``x1``, ``x2`` and ``dsum`` as ``dy``; ``gamma`` the last dimensions of ``dy``; ``mean`` and ``rstd`` one
    number a row, in any shape. ``x2`` and ``dsum`` may be None, for zeros. Returns ``dx`` shaped as ``dy``, ``dgamma``
    and ``dbeta`` shaped as ``gamma``, all float64::

        dx = the gradient of layer norm at x1 + x2, with respect to its input, + dsum

    Raises ValueError where the shapes do not fit.
    """
    dy, x, gamma = _float64(dy), _float64(x1), _float64(gamma)
    if x2 is not None:
        _check_like("x2", _float64(x2), "x1", x)
        x = x + _float64(x2)
    dx, dgamma, dbeta = layer_norm_backward(dy, x, gamma.shape, mean, rstd, gamma)
    assert dx is not None
    assert dgamma is not None
    assert dbeta is not None
    if dsum is not None:
        _check_like("dsum", _float64(dsum), "dy", dy)
        dx = dx + _float64(dsum)
    return dx, dgamma, dbeta


def gemma_rms_norm(x: npt.ArrayLike, gamma: npt.ArrayLike, epsilon: float = 1e-6) -> tuple[Float64, Float64]:
    """RMS norm with a weight that is 1 + gamma, as aclnnGemmaRmsNorm defines it.

    Shapes and results are those of `rms_norm`::

        rstd = 1 / sqrt(mean(x * x over the row) + epsilon)
        y    = x * rstd * (1 + gamma)

    Raises ValueError where the shapes do not fit.
    """
    return rms_norm(x, 1.0 + _float64(gamma), epsilon)


@np.errstate(all="ignore")
def layer_norm_backward(
    grad_out: npt.ArrayLike,
    input: npt.ArrayLike,
    normalized_shape: int | Sequence[int],
    mean: npt.ArrayLike,
    rstd: npt.ArrayLike,
    weight: npt.ArrayLike | None = None,
    bias: npt.ArrayLike | None = None,
    output_mask: Sequence[bool] = (True, True, True),
) -> tuple[Float64 | None, Float64 | None, Float64 | None]:
    """Gradients of layer norm, as aclnnLayerNormBackward defines them.

    Shapes: ``grad_out`` as ``input``; ``normalized_shape`` the last dimensions of ``input``, and the shape of
    ``weight``; ``mean`` and ``rstd`` one number a row, in any shape. ``weight`` None stands for ones; ``bias`` is not
    read. Returns ``grad_input`` shaped as ``input``, ``grad_weight`` and ``grad_bias`` shaped as ``normalized_shape``,
    all float64, None where ``output_mask`` is false::

        xhat        = (input - mean) * rstd
        g           = grad_out * weight
        grad_input  = rstd * (g - mean(g over the row) - xhat * mean(g * xhat over the row))
        grad_weight = sum over rows of grad_out * xhat
        grad_bias   = sum over rows of grad_out

    Raises ValueError where the shapes do not fit.
    """
    grad_out, input = _float64(grad_out), _float64(input)
    _check_like("grad_out", grad_out, "input", input)
    rows, row, normalized = _layer_norm_axes(input, normalized_shape)
    statistics, elements = input.shape[: len(rows)] + (1,) * len(row), max(math.prod(normalized), 1)
    mean, rstd = _float64(mean).reshape(statistics), _float64(rstd).reshape(statistics)
    xhat = (input - mean) * rstd
    g = grad_out if weight is None else grad_out * _float64(weight).reshape(normalized)
    mean_g = g.sum(axis=row, keepdims=True) / elements
    mean_g_xhat = (g * xhat).sum(axis=row, keepdims=True) / elements
    grad_input = rstd * (g - mean_g - xhat * mean_g_xhat) if output_mask[0] else None
    grad_weight = (grad_out * xhat).sum(axis=rows) if output_mask[1] else None
    grad_bias = grad_out.sum(axis=rows) if output_mask[2] else None
    return grad_input, grad_weight, grad_bias


@np.errstate(all="ignore")
def deep_norm_grad(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    gx: npt.ArrayLike,
    gamma: npt.ArrayLike,
    mean: npt.ArrayLike,
    rstd: npt.ArrayLike,
    alpha: float = 0.3,
) -> tuple[Float64, Float64, Float64, Float64]:
    """Gradients of deep norm, which is layer norm of ``alpha * x + gx``, as aclnnDeepNormGrad defines them.

    Shapes: ``dy`` and ``gx`` as ``x``; ``gamma`` the last dimensions of ``x``; ``mean`` and ``rstd`` one number a row,
    in any shape. Returns ``dx`` and ``dgx`` shaped as ``x``, ``dbeta`` and ``dgamma`` shaped as ``gamma``, all
    float64::

        dgx = the gradient of layer norm at alpha * x + gx, with respect to its input
        dx  = alpha * dgx

    Raises ValueError where the shapes do not fit.
    """
    x, gx, gamma = _float64(x), _float64(gx), _float64(gamma)
    _check_like("gx", gx, "x", x)
    dgx, dgamma, dbeta = layer_norm_backward(dy, alpha * x + gx, gamma.shape, mean, rstd, gamma)
    assert dgx is not None
    assert dbeta is not None
    assert dgamma is not None
    return alpha * dgx, dgx, dbeta, dgamma


@np.errstate(all="ignore")
def layer_norm(
    input: npt.ArrayLike,
    normalized_shape: int | Sequence[int],
    weight: npt.ArrayLike | None = None,
    bias: npt.ArrayLike | None = None,
    eps: float = 1e-5,
) -> tuple[Float64, Float64, Float64]:
    """Layer norm, as aclnnLayerNorm defines it.

    Shapes: ``normalized_shape`` is the last dimensions of ``input``, and the shape of ``weight`` (None stands for
    ones) and ``bias`` (None for zeros). Returns ``out`` shaped as ``input``, and ``mean`` and ``rstd`` with 1 for each
    normalised dimension, all float64; a row without elements has mean 0 and rstd NaN::

        mean, var = mean and biased variance of each row
        rstd      = 1 / sqrt(var + eps)
        out       = (input - mean) * rstd * weight + bias

    Raises ValueError where the shapes do not fit.
    """
    input = _float64(input)
    _, row, normalized = _layer_norm_axes(input, normalized_shape)
    elements = math.prod(normalized)
    mean = input.sum(axis=row, keepdims=True) / max(elements, 1)
    var = ((input - mean) ** 2).sum(axis=row, keepdims=True) / np.float64(elements)
    rstd = 1.0 / np.sqrt(var + eps)
    out = (input - mean) * rstd
    if weight is not None:
        out = out * _float64(weight).reshape(normalized)
    if bias is not None:
        out = out + _float64(bias).reshape(normalized)
    return out, mean, rstd


def _layer_norm_axes(
    input: Float64, normalized_shape: int | Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The axes that count rows, those of a row, and a row's shape."""
    normalized = tuple(int(n) for n in np.atleast_1d(normalized_shape))
    split = input.ndim - len(normalized)
    if input.shape[max(split, 0) :] != normalized:
        raise ValueError(f"normalized_shape {normalized} is not the last dimensions of the shape {input.shape}")
    return tuple(range(split)), tuple(range(split, input.ndim)), normalized


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
    x, bias = _float64(x), _float64(beta)
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
    mean, rstd = _float64(mean).reshape(statistic), _float64(rstd).reshape(statistic)
    gamma = _float64(gamma).reshape(channel)
    xhat = (x.reshape(shape) - mean) * rstd
    dz = _float64(dy).reshape(shape) * slope(xhat * gamma)
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
    weight = np.ones(c) if gamma is None else _float64(gamma)
    dx, *parameters = _group_norm_gradients(grad_out, _float64(input), mean, rstd, weight, shape, np.ones_like)
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
    x = _float64(x)
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
    input = _float64(input)
    shape, elements = (n, group, c // group, hxw), c // group * hxw
    groups = np.ascontiguousarray(input).reshape(shape)
    flat = groups.reshape(n, group, elements)  # one axis, so that NumPy adds it up in pairs
    mean = flat.sum(axis=-1, keepdims=True) / max(elements, 1)
    var = ((flat - mean) ** 2).sum(axis=-1, keepdims=True) / np.float64(elements)
    mean, rstd = mean[..., None], 1 / np.sqrt(var + eps)[..., None]
    out = (groups - mean) * rstd
    if gamma is not None:
        out = out * _float64(gamma).reshape(1, *shape[1:3], 1)
    if beta is not None:
        out = out + _float64(beta).reshape(1, *shape[1:3], 1)
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


@np.errstate(all="ignore")
def scaled_masked_softmax_backward(
    grad_output: npt.ArrayLike,
    y: npt.ArrayLike,
    mask: npt.ArrayLike | None,
    scale: float = 1.0,
    fix_triu_mask: bool = False,
) -> Float64:
    """Gradient of the scaled, masked softmax, as aclnnScaledMaskedSoftmaxBackward defines it.

    Shapes: ``y`` as ``grad_output``; ``mask`` broadcasts to it, None masks nothing; with ``fix_triu_mask`` it is
    ignored, and what lies above the diagonal of the last two axes is masked. Returns an array shaped as
    ``grad_output``, float64::

        out = 0                                                       where mask is true
        out = scale * (grad_output * y - y * sum(grad_output * y))    elsewhere

    Raises ValueError where the shapes do not fit.
    """
    grad_output, y = _float64(grad_output), _float64(y)
    _check_like("grad_output", grad_output, "y", y)
    total = (grad_output * y).sum(axis=-1, keepdims=True)
    return np.where(_softmax_mask(mask, y.shape, fix_triu_mask), 0.0, scale * (grad_output * y - y * total))


@np.errstate(all="ignore")
def scaled_masked_softmax(
    x: npt.ArrayLike, mask: npt.ArrayLike | None, scale: float = 1.0, fix_triu_mask: bool = False
) -> Float64:
    """Scaled, masked softmax over the last axis, as aclnnScaledMaskedSoftmax defines it.

    Shapes: ``mask`` broadcasts to that of ``x``, None masks nothing; with ``fix_triu_mask`` it is ignored, and what
    lies above the diagonal of the last two axes is masked. Returns an array shaped as ``x``, float64::

        z = -10000 where mask is true, scale * x elsewhere
        y = exp(z - max(z)) / sum(exp(z - max(z)))

    Raises ValueError where the shapes do not fit.
    """
    x = _float64(x)
    z = np.where(_softmax_mask(mask, x.shape, fix_triu_mask), -10000.0, scale * x)
    e = np.exp(z - z.max(axis=-1, keepdims=True, initial=-np.inf))
    y: Float64 = e / e.sum(axis=-1, keepdims=True)
    return y


def _softmax_mask(mask: npt.ArrayLike | None, shape: tuple[int, ...], triangle: bool) -> npt.NDArray[np.bool_]:
    if triangle:
        return np.triu(np.ones(shape[-2:], np.bool_), 1)
    return np.broadcast_to(np.asarray(False if mask is None else mask, np.bool_), shape)


@np.errstate(all="ignore")
def softmax(x: npt.ArrayLike, dim: int = -1) -> Float64:
    """Softmax along ``dim``, as aclnnSoftmax defines it.

    Shapes: ``x`` of any shape; a number is a vector of one. Returns an array shaped as ``x``, float64::

        out = exp(x - max(x)) / sum(exp(x - max(x)))        maximum and sum along dim

    Raises ValueError where ``dim`` does not fit.
    """
    e = np.exp(_below_largest(x, dim))
    return np.asarray(e / e.sum(axis=dim, keepdims=True)).reshape(np.shape(x))


@np.errstate(all="ignore")
def log_softmax(x: npt.ArrayLike, dim: int = -1) -> Float64:
    """Log softmax along ``dim``, as aclnnLogSoftmax defines it.

    Shapes: as for `softmax`. Returns an array shaped as ``x``, float64::

        out = (x - max(x)) - log(sum(exp(x - max(x))))      maximum and sum along dim

    Raises ValueError where ``dim`` does not fit.
    """
    below = _below_largest(x, dim)
    return np.asarray(below - np.log(np.exp(below).sum(axis=dim, keepdims=True))).reshape(np.shape(x))


def _below_largest(x: npt.ArrayLike, dim: int) -> Float64:
    wide = np.atleast_1d(_float64(x))
    below: Float64 = wide - wide.max(axis=dim, keepdims=True, initial=-np.inf)
    return below


@np.errstate(all="ignore")
def softmax_backward(grad_output: npt.ArrayLike, output: npt.ArrayLike, dim: int = -1) -> Float64:
    """Gradient of softmax along ``dim``, as aclnnSoftmaxBackward defines it.

    Shapes: ``output``, the result of `softmax`, as ``grad_output``. Returns an array of this shape, float64::

        out = grad_output * output - sum(grad_output * output) * output        sum along dim

    Raises ValueError where the shapes or ``dim`` do not fit.
    """
    grad_output, output = _float64(grad_output), _float64(output)
    _check_like("grad_output", grad_output, "output", output)
    dy, y = np.atleast_1d(grad_output, output)
    return np.asarray(dy * y - (dy * y).sum(axis=dim, keepdims=True) * y).reshape(output.shape)


@np.errstate(all="ignore")
def log_softmax_backward(grad_output: npt.ArrayLike, output: npt.ArrayLike, dim: int = -1) -> Float64:
    """Gradient of log softmax along ``dim``, as aclnnLogSoftmaxBackward defines it.

    Shapes: ``output``, the result of `log_softmax`, as ``grad_output``. Returns an array of this shape, float64::

        out = grad_output - exp(output) * sum(grad_output)              sum along dim

    Raises ValueError where the shapes or ``dim`` do not fit.
    """
    grad_output, output = _float64(grad_output), _float64(output)
    _check_like("grad_output", grad_output, "output", output)
    dy, y = np.atleast_1d(grad_output, output)
    return np.asarray(dy - np.exp(y) * dy.sum(axis=dim, keepdims=True)).reshape(output.shape)


@np.errstate(all="ignore")
def cross_entropy_loss(
    input: npt.ArrayLike,
    target: npt.ArrayLike,
    weight: npt.ArrayLike | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
) -> tuple[Float64, Float64, Float64 | None, Float64 | None]:
    """Cross entropy, as aclnnCrossEntropyLoss defines it, with the zloss that its gradient's page has.

    Shapes: ``input`` [N, C], ``target`` [N], ``weight`` [C]. Returns ``loss`` ([1], or [N] for "none"), ``log_prob``
    [N, C], ``zloss`` shaped as ``loss`` where ``return_zloss`` is true and ``lse`` [N] where the scale is not 0, else
    None, all float64::

        lse      = log(sum over c of exp(input))
        log_prob = input - lse
        loss     = -(1 - s) * weight[t] * log_prob[t] - s / C * sum over c of weight * log_prob
        zloss    = scale * lse^2, which is added to the loss

    A row whose target is ``ignore_index`` counts for nothing; one whose target is no class is NaN. "mean" divides
    losses by the sum of weight[t], zlosses by the rows that count. Raises ValueError where the shapes do not fit.
    """
    scores = _float64(input)
    counts, target, of_classes, of_target = _targets(scores, target, weight, ignore_index)
    most = scores.max(1, initial=-np.inf)
    log = np.log(np.exp(scores - most[:, None]).sum(1))
    log_prob = (scores - most[:, None]) - log[:, None]
    smooth = -(log_prob * of_classes).sum(1) if label_smoothing else 0.0
    loss = -of_target * np.take_along_axis(log_prob, target[:, None], 1)[:, 0]
    loss = np.where(counts, (1 - label_smoothing) * loss + label_smoothing / scores.shape[1] * smooth, 0)
    lse = most + log
    zloss = np.where(counts, lse_square_scale_for_zloss * lse * lse, 0)
    if reduction != "none":
        loss, zloss = loss.sum(keepdims=True), zloss.sum(keepdims=True)
    if reduction == "mean":
        loss, zloss = loss / of_target.sum(), zloss / counts.sum()
    scaled = lse_square_scale_for_zloss != 0
    return loss + zloss if scaled else loss, log_prob, zloss if return_zloss else None, lse if scaled else None


@np.errstate(all="ignore")
def cross_entropy_loss_grad(
    grad_loss: npt.ArrayLike,
    log_prob: npt.ArrayLike,
    target: npt.ArrayLike,
    weight: npt.ArrayLike | None = None,
    grad_zloss: npt.ArrayLike | None = None,
    lse_for_zloss: npt.ArrayLike | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
) -> Float64:
    """The gradient of cross entropy, as aclnnCrossEntropyLossGrad defines it.

    Shapes: ``log_prob`` [N, C], ``target`` [N], ``weight`` [C], ``grad_loss`` and ``grad_zloss`` [N] for "none", else
    one number, ``lse_for_zloss`` [N]. With ``lse_for_zloss`` [N, 1] ``log_prob`` is the forward's input. Returns
    float64 [N, C]::

        out = exp(log_prob) * (a + b * sum of weight + z) - b * weight - (a at the target)
        a   = g * (1 - s) * weight[t],  b = g * s / C,  z = 2 * scale * lse * (grad_loss + grad_zloss)

    g is ``grad_loss``, of "mean" over the sum of weight[t]; z of "mean" is over the rows that count. Rows whose target
    is ``ignore_index`` are 0. Raises ValueError where the shapes do not fit.
    """
    scores = _float64(log_prob)
    counts, target, of_classes, of_target = _targets(scores, target, weight, ignore_index)
    lse = None if lse_for_zloss is None else _float64(lse_for_zloss)
    if lse is not None and lse.ndim == 2:
        scores = scores - lse
    grad = _float64(grad_loss).reshape(-1)
    both = grad if grad_zloss is None or np.size(grad_zloss) == 0 else grad + _float64(grad_zloss).reshape(-1)
    if reduction == "mean":
        grad, both = grad / of_target.sum(), both / counts.sum()
    of_row = grad * (1 - label_smoothing) * of_target
    smooth = np.broadcast_to(grad * (label_smoothing / scores.shape[1]), of_row.shape)
    factor = of_row + smooth * of_classes.sum()
    if lse_square_scale_for_zloss and lse is not None:
        factor = factor + 2 * lse_square_scale_for_zloss * lse.reshape(-1) * both
    out = np.exp(scores) * factor[:, None] - smooth[:, None] * of_classes
    out[np.arange(len(out)), target] -= of_row
    return np.where(counts[:, None], out, 0)


def _targets(
    scores: Float64, target: npt.ArrayLike, weight: npt.ArrayLike | None, ignored: int
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64], Float64, Float64]:
    """Which rows count, their classes (0 where there is none), the classes' weights and the rows' (0: do not count)."""
    target = np.asarray(target, np.int64)
    of_classes = np.ones(scores.shape[1:]) if weight is None else _float64(weight)
    if scores.ndim != 2 or target.shape != scores.shape[:1] or of_classes.shape != scores.shape[1:]:
        raise ValueError(f"shapes {scores.shape}, {target.shape} and {of_classes.shape} are not [N, C], [N] and [C]")
    counts, exists = target != ignored, (target >= 0) & (target < scores.shape[1])
    target = np.where(counts & exists, target, 0)
    return counts, target, of_classes, np.where(counts, np.where(exists, of_classes[target], np.nan), 0)


@np.errstate(all="ignore")
def swi_glu(x: npt.ArrayLike, dim: int = -1) -> Float64:
    """SwiGLU, as aclnnSwiGlu defines it.

    Shapes: ``x`` has an even size along ``dim``. Returns an array of half of that size along ``dim``, float64::

        a, b = the first and the second half of x along dim
        out  = a * sigmoid(a) * b

    Raises ValueError where the shape does not fit.
    """
    a, b = np.split(_float64(x), 2, dim)
    out: Float64 = a / (1 + np.exp(-a)) * b
    return out


@np.errstate(all="ignore")
def swi_glu_grad(y_grad: npt.ArrayLike, x: npt.ArrayLike, dim: int = -1) -> Float64:
    """The gradient of SwiGLU, as aclnnSwiGluGrad defines it.

    Shapes: ``x`` has an even size along ``dim``, ``y_grad`` half of that. Returns an array shaped as ``x``, float64::

        a, b  = the first and the second half of x along dim
        out_a = y_grad * (sigmoid(a) + sigmoid(a) * (1 - sigmoid(a)) * a) * b
        out_b = y_grad * sigmoid(a) * a

    Raises ValueError where the shapes do not fit.
    """
    y_grad = _float64(y_grad)
    a, b = np.split(_float64(x), 2, dim)
    _check_like("y_grad", y_grad, "half of x", a)
    # sigmoid(-a) by itself: 1 - sig would cancel. exp() may overflow to infinity, and 1 / infinity is 0.
    sig, rest = 1 / (1 + np.exp(-a)), 1 / (1 + np.exp(a))
    return np.concatenate((y_grad * (sig + sig * rest * a) * b, y_grad * sig * a), dim)


_SQRT_HALF, _SQRT_8_PER_PI, _CUBE = math.sqrt(0.5), math.sqrt(8 / math.pi), 0.044715
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


@np.errstate(all="ignore")
def gelu_v2(x: npt.ArrayLike, approximate: int = 0) -> Float64:
    """GELU, as aclnnGeluV2 defines it, and with ``approximate`` 1 as aclnnGelu does.

    Shapes: ``x`` of any shape. Returns an array of that shape, float64::

        y = x * Phi(x),  Phi(x) = (1 + erf(x / sqrt(2))) / 2
        y = x * sigmoid(u),  u = 2 * sqrt(2 / pi) * (x + 0.044715 * x^3)           approximate 1
    """
    x = _float64(x)
    # By erfc and exp: 1 + erf and 1 + tanh would cancel where x < 0.
    y: Float64 = x / (1 + np.exp(-_SQRT_8_PER_PI * (x + _CUBE * x**3))) if approximate else x * _phi(x)
    return y


@np.errstate(all="ignore")
def gelu_backward_v2(grad_output: npt.ArrayLike, x: npt.ArrayLike, approximate: str = "none") -> Float64:
    """The gradient of GELU, as aclnnGeluBackwardV2 defines it, and with "tanh" as aclnnGeluBackward does.

    Shapes: ``grad_output`` and ``x`` broadcast to the result, float64::

        grad_input = grad_output * (Phi(x) + x * exp(-x^2 / 2) / sqrt(2 * pi))
        grad_input = grad_output * (s + x * s * (1 - s) * u'),  s = sigmoid(u)     approximate "tanh"

    Raises ValueError where the shapes do not broadcast.
    """
    grad_output, x = _float64(grad_output), _float64(x)
    if approximate == "tanh":
        near = np.clip(x, -100, 100)  # beyond, the slope is 0 or 1, and x^2 may overflow
        u = _SQRT_8_PER_PI * (near + _CUBE * near**3)
        sig, rest = 1 / (1 + np.exp(-u)), 1 / (1 + np.exp(u))
        slope = sig + near * sig * rest * _SQRT_8_PER_PI * (1 + 3 * _CUBE * near**2)
        slope = np.where(np.isinf(x), np.nan, slope)
    else:
        slope = _phi(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    grad_input: Float64 = grad_output * slope
    return grad_input


def _phi(x: Float64) -> Float64:
    result: Float64 = _erfc(-x * _SQRT_HALF) / 2
    return result


@np.errstate(all="ignore")
def rotary_position_embedding(x: npt.ArrayLike, cos: npt.ArrayLike, sin: npt.ArrayLike, mode: int = 0) -> Float64:
    """Rotary position embedding, as aclnnRotaryPositionEmbedding defines it.

    Shapes: ``x`` [..., D] with D even, in mode 2 a multiple of 4; ``cos`` and ``sin`` broadcast to it and have D, too.
    Returns an array shaped as ``x``, float64::

        out = x * cos + turned * sin
        mode 0, half:             turned = (-x2, x1), x1 and x2 the halves of each row
        mode 1, interleave:       turned = (-x[1], x[0], -x[3], x[2], ...)
        mode 2, quarter:          turned = (-x2, x1, -x4, x3), x1 to x4 the quarters of each row
        mode 3, interleave-half:  as mode 0 of (x[0], x[2], ..., x[1], x[3], ...)

    Raises ValueError where the shapes do not fit.
    """
    x, cos, sin = _float64(x), _float64(cos), _float64(sin)
    _check_rotary(x, cos, sin)
    x = _halves_of_pairs(x, mode)
    out: Float64 = x * cos + _quarter_turn(x, mode) * sin
    return out


@np.errstate(all="ignore")
def rotary_position_embedding_grad(
    dy: npt.ArrayLike, cos: npt.ArrayLike, sin: npt.ArrayLike, x: npt.ArrayLike | None = None, mode: int = 0
) -> tuple[Float64, Float64 | None, Float64 | None]:
    """Gradients of rotary position embedding, as aclnnRotaryPositionEmbeddingGrad defines them.

    Shapes: ``dy`` and ``x`` [..., D], ``cos`` and ``sin`` as in the forward. Returns ``dx`` shaped as ``dy``, ``dcos``
    and ``dsin`` as ``cos``, float64; without ``x`` None for the latter two::

        dx   = dy * cos - turned(dy * sin)                turned as in the forward; in mode 3 in x's order again
        dcos = sum over what cos is broadcast to of dy * x
        dsin = sum over the same of dy * turned(x)

    Raises ValueError where the shapes do not fit.
    """
    dy, cos, sin = _float64(dy), _float64(cos), _float64(sin)
    _check_rotary(dy, cos, sin)
    dx = dy * cos - _quarter_turn(dy * sin, mode)
    if mode == 3:
        dx = np.stack(np.split(dx, 2, -1), -1).reshape(dy.shape)
    if x is None:
        return dx, None, None
    x = _float64(x)
    _check_like("x", x, "dy", dy)
    x = _halves_of_pairs(x, mode)
    axes = tuple(d for d, size in enumerate(cos.shape) if size == 1 and d < dy.ndim - 1)
    terms = dy * x, dy * _quarter_turn(x, mode)
    dcos, dsin = (t.sum(axes, keepdims=True) if axes else t for t in terms)
    return dx, dcos, dsin


def _check_rotary(x: Float64, cos: Float64, sin: Float64) -> None:
    _check_like("sin", sin, "cos", cos)
    fits = cos.ndim == x.ndim and all(c in (1, s) for c, s in zip(cos.shape, x.shape, strict=True))
    if not fits or cos.shape[-1] != x.shape[-1]:
        raise ValueError(f"cos has shape {cos.shape}, which does not broadcast to {x.shape} or has another last size")


def _halves_of_pairs(x: Float64, mode: int) -> Float64:
    """In mode 3 each row's even elements, then its odd ones."""
    return np.concatenate((x[..., ::2], x[..., 1::2]), -1) if mode == 3 else x


def _quarter_turn(x: Float64, mode: int) -> Float64:
    """(-b, a) in the place of each pair (a, b) of a row."""
    if mode == 1:
        return np.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape)
    parts = np.split(x, 4 if mode == 2 else 2, -1)
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return np.concatenate([part for a, b in pairs for part in (-b, a)], -1)


@np.errstate(all="ignore")
def nsa_compress_grad(
    output_grad: npt.ArrayLike,
    input: npt.ArrayLike,
    weight: npt.ArrayLike,
    act_seq_len: Sequence[int] | None = None,
    *,
    compress_block_size: int,
    compress_stride: int,
    act_seq_len_type: int = 0,
    layout: str | None = "TND",
) -> tuple[Float64, Float64]:
    """Gradients of the compression of native sparse attention, as aclnnNsaCompressGrad defines them.

    Shapes: ``output_grad`` [windows, N, D], ``input`` [T, N, D], ``weight`` [W, N]. ``act_seq_len`` tells where the
    sequences end (``act_seq_len_type`` 0) or how long each is (1); None or empty: one sequence. Returns
    ``input_grad`` shaped as ``input`` and ``weight_grad`` shaped as ``weight``, both float64::

        weight_grad[w, n]   = sum over c, d of output_grad[c, n, d] * input[start(c) + w, n, d]
        input_grad[t, n, :] = sum over (c, w) with start(c) + w = t of weight[w, n] * output_grad[c, n, :]

    Raises ValueError where the shapes do not fit.
    """
    output_grad, input, weight = _float64(output_grad), _float64(input), _float64(weight)
    starts = _window_starts(input, weight, act_seq_len, act_seq_len_type, compress_block_size, compress_stride)
    if output_grad.shape != (len(starts), *input.shape[1:]):
        raise ValueError(f"shapes {output_grad.shape} and {input.shape} do not fit {len(starts)} windows")
    input_grad, weight_grad = np.zeros_like(input), np.zeros_like(weight)
    for grad, start in zip(output_grad, starts, strict=True):
        window = slice(start, start + compress_block_size)
        input_grad[window] += weight[:, :, None] * grad
        weight_grad += (input[window] * grad).sum(axis=-1)
    return input_grad, weight_grad


@np.errstate(all="ignore")
def nsa_compress(
    input: npt.ArrayLike,
    weight: npt.ArrayLike,
    act_seq_len: Sequence[int] | None = None,
    *,
    compress_block_size: int,
    compress_stride: int,
    act_seq_len_type: int = 0,
    layout: str | None = "TND",
) -> Float64:
    """The compression of native sparse attention, as aclnnNsaCompress defines it.

    Shapes: ``input`` [T, N, D], ``weight`` [W, N]. ``act_seq_len`` tells where the sequences end
    (``act_seq_len_type`` 0) or how long each is (1); None or empty: one sequence. Returns [windows, N, D], float64::

        output[c, n, :] = sum over w < W of weight[w, n] * input[start(c) + w, n, :]

    Raises ValueError where the shapes do not fit.
    """
    input, weight = _float64(input), _float64(weight)
    starts = _window_starts(input, weight, act_seq_len, act_seq_len_type, compress_block_size, compress_stride)
    windows = [(weight[:, :, None] * input[s : s + compress_block_size]).sum(axis=0) for s in starts]
    return np.array(windows).reshape(len(starts), *input.shape[1:])


def _window_starts(
    input: Float64, weight: Float64, act_seq_len: Sequence[int] | None, kind: int, width: int, stride: int
) -> list[int]:
    """The first token of every window: none across two sequences. ValueError where shapes or sequences do not fit."""
    if weight.shape != (width, input.shape[1]):
        raise ValueError(f"shapes {input.shape} and {weight.shape} do not fit a block size of {width}")
    lengths = list(act_seq_len or [len(input)])
    ends = lengths if kind == 0 else list(itertools.accumulate(lengths))
    begins = [0, *ends[:-1]]
    if any(begin > end for begin, end in zip(begins, ends, strict=True)) or ends[-1] > len(input):
        raise ValueError(f"sequences that end at {ends} do not fit {len(input)} tokens")
    return [s for begin, end in zip(begins, ends, strict=True) for s in range(begin, end - width + 1, stride)]


@np.errstate(all="ignore")
def apply_adam_w_v2(
    var: npt.ArrayLike,
    m: npt.ArrayLike,
    v: npt.ArrayLike,
    max_grad_norm: npt.ArrayLike | None,
    grad: npt.ArrayLike,
    step: npt.ArrayLike,
    lr: float = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    weight_decay: float = 0.01,
    eps: float = 1e-8,
    amsgrad: bool = False,
    maximize: bool = False,
) -> tuple[Float64, Float64, Float64, Float64 | None]:
    """A step of AdamW, as aclnnApplyAdamWV2 defines it.

    Shapes: ``m``, ``v``, ``grad`` and, with ``amsgrad``, ``max_grad_norm`` as ``var``; ``step`` of one element, the
    steps before this one. Returns the new ``var``, ``m``, ``v`` and, with ``amsgrad``, ``max_grad_norm``, float64::

        m   = beta1 * m + (1 - beta1) * g                 g = grad, or -grad with maximize
        v   = beta2 * v + (1 - beta2) * g^2               u = v, or the largest v so far; t = step + 1
        var = (1 - lr * weight_decay) * var - lr * (m / (1 - beta1^t)) / (sqrt(u / (1 - beta2^t)) + eps)

    Raises ValueError where the shapes do not fit.
    """
    var, m, v, grad = _float64(var), _float64(m), _float64(v), _float64(grad)
    for name, array in (("m", m), ("v", v), ("grad", grad)):
        _check_like(name, array, "var", var)
    t = _float64(step).item() + 1
    g = -grad if maximize else grad
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    largest = None
    if amsgrad and max_grad_norm is not None:
        largest = _float64(max_grad_norm)
        _check_like("max_grad_norm", largest, "var", var)
        largest = np.maximum(largest, v)
    # 1 - beta^t: of a beta near 1 the difference would have few digits left.
    correction1, correction2 = -np.expm1(t * np.log([beta1, beta2]))
    root = np.sqrt((v if largest is None else largest) / correction2)
    moved: Float64 = (1 - lr * weight_decay) * var - lr * (m / correction1) / (root + eps)
    return moved, m, v, largest
