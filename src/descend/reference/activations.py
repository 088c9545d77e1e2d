"""SwiGLU and GELU."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from descend.reference.arrays import Float64, check_like, check_one_of, float64


@np.errstate(all="ignore")
def swi_glu(x: npt.ArrayLike, dim: int = -1) -> Float64:
    """SwiGLU, as aclnnSwiGlu defines it.

    Shapes: ``x`` has an even size along ``dim``. Returns an array of half of that size along ``dim``, float64::

        a, b = the first and the second half of x along dim
        out  = a * sigmoid(a) * b

    Raises ValueError where the shape does not fit.
    """
    a, b = _halves(float64(x), dim)
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
    y_grad = float64(y_grad)
    a, b = _halves(float64(x), dim)
    check_like("y_grad", y_grad, "half of x", a)
    # sigmoid(-a) by itself: 1 - sig would cancel. exp() may overflow to infinity, and 1 / infinity is 0.
    sig, rest = 1 / (1 + np.exp(-a)), 1 / (1 + np.exp(a))
    return np.concatenate((y_grad * (sig + sig * rest * a) * b, y_grad * sig * a), dim)


def _halves(x: Float64, dim: int) -> list[Float64]:
    if not -x.ndim <= dim < x.ndim or x.shape[dim] % 2:
        raise ValueError(f"x of shape {x.shape} cannot be cut into halves along dimension {dim}")
    return np.split(x, 2, dim)


_SQRT_HALF, _SQRT_8_PER_PI, _CUBE = math.sqrt(0.5), math.sqrt(8 / math.pi), 0.044715
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


@np.errstate(all="ignore")
def gelu_v2(x: npt.ArrayLike, approximate: int = 0) -> Float64:
    """GELU, as aclnnGeluV2 defines it, and with ``approximate`` 1 as aclnnGelu does.

    Shapes: ``x`` of any shape. Returns an array of that shape, float64::

        y = x * Phi(x),  Phi(x) = (1 + erf(x / sqrt(2))) / 2
        y = x * sigmoid(u),  u = 2 * sqrt(2 / pi) * (x + 0.044715 * x^3)           approximate 1

    Raises ValueError for another ``approximate``.
    """
    check_one_of("approximate", approximate, (0, 1))
    x = float64(x)
    # By erfc and exp: 1 + erf and 1 + tanh would cancel where x < 0.
    y: Float64 = x / (1 + np.exp(-_SQRT_8_PER_PI * (x + _CUBE * x**3))) if approximate else x * _phi(x)
    return y


@np.errstate(all="ignore")
def gelu_backward_v2(grad_output: npt.ArrayLike, x: npt.ArrayLike, approximate: str = "none") -> Float64:
    """The gradient of GELU, as aclnnGeluBackwardV2 defines it, and with "tanh" as aclnnGeluBackward does.

    Shapes: ``grad_output`` and ``x`` broadcast to the result, float64::

        grad_input = grad_output * (Phi(x) + x * exp(-x^2 / 2) / sqrt(2 * pi))
        grad_input = grad_output * (s + x * s * (1 - s) * u'),  s = sigmoid(u)     approximate "tanh"

    Raises ValueError where the shapes do not broadcast, and for another ``approximate``.
    """
    check_one_of("approximate", approximate, ("none", "tanh"))
    grad_output, x = float64(grad_output), float64(x)
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
