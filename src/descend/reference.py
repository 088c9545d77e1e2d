"""Each operator in a dozen lines of float64 NumPy: the definition that everything is measured against.

Parameters are named as in the functional API (``descend.rms_norm_grad``). Inputs may have any floating dtype,
``ml_dtypes.bfloat16`` included; they are converted to float64 first, which is exact, and results stay float64.
Infinities and NaN propagate as IEEE arithmetic has them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]


def _float64(array: npt.ArrayLike) -> Float64:
    return np.asarray(array, dtype=np.float64)


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
    row = tuple(range(x.ndim - gamma.ndim, x.ndim))
    mean = (x * x).sum(axis=row, keepdims=True) / gamma.size
    rstd = 1.0 / np.sqrt(mean + epsilon)
    y = x * rstd * gamma
    return y, rstd


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
