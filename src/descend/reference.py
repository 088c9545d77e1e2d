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
