"""Softmax and its logarithm, also scaled and masked."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from descend.reference.arrays import Float64, check_like, float64


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
    grad_output, y = float64(grad_output), float64(y)
    check_like("grad_output", grad_output, "y", y)
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
    x = float64(x)
    z = np.where(_softmax_mask(mask, x.shape, fix_triu_mask), -10000.0, scale * x)
    e = np.exp(z - z.max(axis=-1, keepdims=True, initial=-np.inf))
    y: Float64 = e / e.sum(axis=-1, keepdims=True)
    return y


def _softmax_mask(mask: npt.ArrayLike | None, shape: tuple[int, ...], triangle: bool) -> npt.NDArray[np.bool_]:
    if triangle:
        if len(shape) < 2:
            raise ValueError(f"a matrix has a diagonal, and an array of shape {shape} has none")
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
    wide = np.atleast_1d(float64(x))
    below: Float64 = wide - wide.max(axis=dim, keepdims=True, initial=-np.inf)
    return below


@np.errstate(all="ignore")
def softmax_backward(grad_output: npt.ArrayLike, output: npt.ArrayLike, dim: int = -1) -> Float64:
    """Gradient of softmax along ``dim``, as aclnnSoftmaxBackward defines it.

    Shapes: ``output``, the result of `softmax`, as ``grad_output``. Returns an array of this shape, float64::

        out = grad_output * output - sum(grad_output * output) * output        sum along dim

    Raises ValueError where the shapes or ``dim`` do not fit.
    """
    grad_output, output = float64(grad_output), float64(output)
    check_like("grad_output", grad_output, "output", output)
    dy, y = np.atleast_1d(grad_output, output)
    return np.asarray(dy * y - (dy * y).sum(axis=dim, keepdims=True) * y).reshape(output.shape)


@np.errstate(all="ignore")
def log_softmax_backward(grad_output: npt.ArrayLike, output: npt.ArrayLike, dim: int = -1) -> Float64:
    """Gradient of log softmax along ``dim``, as aclnnLogSoftmaxBackward defines it.

    Shapes: ``output``, the result of `log_softmax`, as ``grad_output``. Returns an array of this shape, float64::

        out = grad_output - exp(output) * sum(grad_output)              sum along dim

    Raises ValueError where the shapes or ``dim`` do not fit.
    """
    grad_output, output = float64(grad_output), float64(output)
    check_like("grad_output", grad_output, "output", output)
    dy, y = np.atleast_1d(grad_output, output)
    return np.asarray(dy - np.exp(y) * dy.sum(axis=dim, keepdims=True)).reshape(output.shape)
