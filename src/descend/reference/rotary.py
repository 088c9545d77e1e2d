"""Rotary position embedding."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from descend.reference.arrays import Float64, check_like, check_one_of, float64


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

    Raises ValueError where the shapes do not fit, and for another ``mode``.
    """
    x, cos, sin = float64(x), float64(cos), float64(sin)
    _check_rotary(x, cos, sin, mode)
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

    Raises ValueError where the shapes do not fit, and for another ``mode``.
    """
    dy, cos, sin = float64(dy), float64(cos), float64(sin)
    _check_rotary(dy, cos, sin, mode)
    dx = dy * cos - _quarter_turn(dy * sin, mode)
    if mode == 3:
        dx = np.stack(np.split(dx, 2, -1), -1).reshape(dy.shape)
    if x is None:
        return dx, None, None
    x = float64(x)
    check_like("x", x, "dy", dy)
    x = _halves_of_pairs(x, mode)
    axes = tuple(d for d, size in enumerate(cos.shape) if size == 1 and d < dy.ndim - 1)
    terms = dy * x, dy * _quarter_turn(x, mode)
    dcos, dsin = (t.sum(axes, keepdims=True) if axes else t for t in terms)
    return dx, dcos, dsin


def _check_rotary(x: Float64, cos: Float64, sin: Float64, mode: int) -> None:
    check_one_of("mode", mode, range(4))
    check_like("sin", sin, "cos", cos)
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
