"""Rotary position embedding, pairs of each row turned by angles of their own, and its gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax import Array

from descend.jax import definitions
from descend.jax.batching import batch_first
from descend.jax.library import Operator, Results, Values

_FORWARD = Operator("rotary_position_embedding", definitions.rotary_position_embedding)
_BACKWARD = Operator(
    "rotary_position_embedding_grad",
    definitions.rotary_position_embedding_grad,
    lambda values: (True, "x" in values, "x" in values),
)


def rotary_position_embedding(x: Array, cos: Array, sin: Array, mode: int = 0) -> Array:
    """Each pair of a row's elements turned by an angle of its own. Differentiable in all three arrays::

        out_a = x_a * cos_a - x_b * sin_a        a, b: the two members of each pair
        out_b = x_b * cos_b + x_a * sin_b

    ``mode`` tells where the members are: 0 at i and i + D/2 of a row of D elements, 1 at 2 i and 2 i + 1, 2 as 0 in
    each half of the row, 3 as 1 in ``x`` and as 0 in ``cos``, ``sin`` and the result.

    Shapes: ``x`` of rank 1 to 8, D even, in mode 2 a multiple of 4; ``cos`` and ``sin`` of its rank and last size, and
    of size 1 or ``x``'s before. Floating dtypes, mixed at will. Returns ``out`` like ``x``.

    Raises AclnnError (a ValueError) where the shapes, the dtypes or the mode do not fit. Source:
    aclnnRotaryPositionEmbedding.
    """
    out: Array
    (out,) = _FORWARD(x=x, cos=cos, sin=sin, mode=mode)
    return out


def rotary_position_embedding_grad(
    dy: Array, cos: Array, sin: Array, x: Array | None = None, mode: int = 0
) -> tuple[Array, Array | None, Array | None]:
    """Gradients of rotary position embedding; differentiable in all four arrays::

        dx_a   = dy_a * cos_a + dy_b * sin_b              a, b: the two members of each pair
        dx_b   = dy_b * cos_b - dy_a * sin_a
        dcos   = sum over what cos is broadcast to of dy * x
        dsin_a = sum over the same of -dy_a * x_b
        dsin_b = sum over the same of dy_b * x_a

    Shapes: ``dy`` as ``x``, the rest as in `rotary_position_embedding`. Returns ``dx`` like ``dy``, and ``dcos`` and
    ``dsin`` like ``cos`` and ``sin``; without ``x`` None for the latter two.

    Raises AclnnError (a ValueError) where the shapes, the dtypes or the mode do not fit. Source:
    aclnnRotaryPositionEmbeddingGrad.
    """
    dx, dcos, dsin = _BACKWARD(dy=dy, cos=cos, sin=sin, x=x, mode=mode)
    return dx, dcos, dsin


def _transpose(values: Values, cotangents: Sequence[Array | None], wanted: Sequence[str]) -> Values:
    (dy,) = cotangents
    if dy is None:
        return {}
    x = values["x"] if {"cos", "sin"} & set(wanted) else None
    gradients = rotary_position_embedding_grad(dy, values["cos"], values["sin"], x, values["mode"])
    return dict(zip(("x", "cos", "sin"), gradients, strict=True))


_FORWARD.differentiable(("x", "cos", "sin"), definitions.rotary_position_embedding_tangents, _transpose)


@_FORWARD.batched
def _batched_forward(size: int, values: Values, dims: Mapping[str, int]) -> tuple[Results, Sequence[int]]:
    first = {"x": batch_first(values["x"], dims.get("x"), size)}
    for name in ("cos", "sin"):
        shared = not {"cos", "sin"} & dims.keys()
        first[name] = values[name][None] if shared else batch_first(values[name], dims.get(name), size)
    return _FORWARD(**values | first), (0,)


@_BACKWARD.batched
def _batched_backward(size: int, values: Values, dims: Mapping[str, int]) -> tuple[Results, Sequence[int]]:
    names = [name for name in ("dy", "cos", "sin", "x") if values[name] is not None]
    first = {name: batch_first(values[name], dims.get(name), size) for name in names}
    return _BACKWARD(**values | first), (0, 0, 0)
