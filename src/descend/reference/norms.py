"""RMS norm and layer norm, also of sums."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from descend.reference.arrays import Float64, check_like, check_row, float64


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
    dy, x, rstd, gamma = float64(dy), float64(x), float64(rstd), float64(gamma)
    check_row(x, gamma)
    check_like("dy", dy, "x", x)
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
    x, gamma = float64(x), float64(gamma)
    check_row(x, gamma)
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
    x1, x2 = float64(x1), float64(x2)
    check_like("x2", x2, "x1", x1)
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
    x, gx, gamma, beta = float64(x), float64(gx), float64(gamma), float64(beta)
    check_like("gx", gx, "x", x)
    check_like("beta", beta, "gamma", gamma)
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
    x1, x2, gamma, beta = float64(x1), float64(x2), float64(gamma), float64(beta)
    check_like("x2", x2, "x1", x1)
    check_like("beta", beta, "gamma", gamma)
    x = x1 + x2
    if bias is not None:
        bias = float64(bias)
        check_like("bias", bias, "x1", x1 if bias.ndim == x1.ndim else gamma)
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
    dy, x, gamma = float64(dy), float64(x1), float64(gamma)
    if x2 is not None:
        check_like("x2", float64(x2), "x1", x)
        x = x + float64(x2)
    dx, dgamma, dbeta = layer_norm_backward(dy, x, gamma.shape, mean, rstd, gamma)
    assert dx is not None
    assert dgamma is not None
    assert dbeta is not None
    if dsum is not None:
        check_like("dsum", float64(dsum), "dy", dy)
        dx = dx + float64(dsum)
    return dx, dgamma, dbeta


def gemma_rms_norm(x: npt.ArrayLike, gamma: npt.ArrayLike, epsilon: float = 1e-6) -> tuple[Float64, Float64]:
    """RMS norm with a weight that is 1 + gamma, as aclnnGemmaRmsNorm defines it.

    Shapes and results are those of `rms_norm`::

        rstd = 1 / sqrt(mean(x * x over the row) + epsilon)
        y    = x * rstd * (1 + gamma)

    Raises ValueError where the shapes do not fit.
    """
    return rms_norm(x, 1.0 + float64(gamma), epsilon)


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
    grad_out, input = float64(grad_out), float64(input)
    check_like("grad_out", grad_out, "input", input)
    rows, row, normalized = _layer_norm_axes(input, normalized_shape)
    statistics, elements = input.shape[: len(rows)] + (1,) * len(row), max(math.prod(normalized), 1)
    mean, rstd = float64(mean).reshape(statistics), float64(rstd).reshape(statistics)
    xhat = (input - mean) * rstd
    g = grad_out if weight is None else grad_out * float64(weight).reshape(normalized)
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
    x, gx, gamma = float64(x), float64(gx), float64(gamma)
    check_like("gx", gx, "x", x)
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
    input = float64(input)
    _, row, normalized = _layer_norm_axes(input, normalized_shape)
    elements = math.prod(normalized)
    mean = input.sum(axis=row, keepdims=True) / max(elements, 1)
    var = ((input - mean) ** 2).sum(axis=row, keepdims=True) / np.float64(elements)
    rstd = 1.0 / np.sqrt(var + eps)
    out = (input - mean) * rstd
    if weight is not None:
        out = out * float64(weight).reshape(normalized)
    if bias is not None:
        out = out + float64(bias).reshape(normalized)
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
