"""Softmax of scaled, masked scores, and its gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax import Array

from descend.jax import definitions
from descend.jax.batching import batch_first
from descend.jax.library import Operator, Results, Values

_FORWARD = Operator("scaled_masked_softmax", definitions.scaled_masked_softmax)
_BACKWARD = Operator("scaled_masked_softmax_backward", definitions.scaled_masked_softmax_backward)


def scaled_masked_softmax(x: Array, mask: Array | None, scale: float = 1.0, fix_triu_mask: bool = False) -> Array:
    """Softmax over the last axis of ``scale * x``, -10000 where masked. Differentiable in ``x``::

        z = -10000 where mask is true, scale * x elsewhere
        y = exp(z - max(z)) / sum(exp(z - max(z)))

    Shapes: ``x`` of rank 1 to 8, a floating dtype; ``mask`` bool, broadcasts to ``x``, None masks nothing; with
    ``fix_triu_mask`` it is ignored, and what lies above the diagonal of the last two axes is masked. Returns ``y``
    like ``x``; a row that is masked as a whole gives equal numbers.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnScaledMaskedSoftmax.
    """
    y: Array
    (y,) = _FORWARD(x=x, mask=mask, scale=scale, fix_triu_mask=fix_triu_mask)
    return y


def scaled_masked_softmax_backward(
    grad_output: Array, y: Array, mask: Array | None, scale: float = 1.0, fix_triu_mask: bool = False
) -> Array:
    """Gradient of the scaled, masked softmax; differentiable in ``grad_output`` and ``y``::

        out = 0                                                       where mask is true
        out = scale * (grad_output * y - y * sum(grad_output * y))    elsewhere

    Shapes: ``y`` as ``grad_output`` and of its dtype, the rest as in `scaled_masked_softmax`. Returns the gradient,
    like ``grad_output``.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnScaledMaskedSoftmaxBackward.
    """
    out: Array
    (out,) = _BACKWARD(grad_output=grad_output, y=y, mask=mask, scale=scale, fix_triu_mask=fix_triu_mask)
    return out


def _transpose(values: Values, cotangents: Sequence[Array | None], wanted: Sequence[str]) -> Values:
    (dy,) = cotangents
    attributes = (values[name] for name in ("y", "mask", "scale", "fix_triu_mask"))
    return {"x": None if dy is None else scaled_masked_softmax_backward(dy, *attributes)}


_FORWARD.differentiable(("y", "mask"), definitions.scaled_masked_softmax_tangents, _transpose)


def _batched(size: int, values: Values, dims: Mapping[str, int], scores: Sequence[str]) -> Values:
    """The arguments with the batch in front, where a mask of each sample broadcasts to its scores."""
    first = {name: batch_first(values[name], dims.get(name), size) for name in scores}
    if "mask" in dims:
        mask = batch_first(values["mask"], dims["mask"], size)
        rank = first[scores[0]].ndim
        first["mask"] = mask.reshape(size, *[1] * (rank - mask.ndim), *mask.shape[1:])
    return values | first


@_FORWARD.batched
def _batched_forward(size: int, values: Values, dims: Mapping[str, int]) -> tuple[Results, Sequence[int]]:
    return _FORWARD(**_batched(size, values, dims, ("x",))), (0,)


@_BACKWARD.batched
def _batched_backward(size: int, values: Values, dims: Mapping[str, int]) -> tuple[Results, Sequence[int]]:
    return _BACKWARD(**_batched(size, values, dims, ("grad_output", "y"))), (0,)
