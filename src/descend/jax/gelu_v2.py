"""GELU, by erf or by tanh, and its gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax import Array

from descend.jax import definitions
from descend.jax.batching import batch_first
from descend.jax.library import Operator, Results, Values

_FORWARD = Operator("gelu_v2", definitions.gelu_v2)
_BACKWARD = Operator("gelu_backward_v2", definitions.gelu_backward_v2)


def gelu_v2(x: Array, approximate: int = 0) -> Array:
    """GELU: ``x`` times the normal distribution's function of ``x``. Differentiable in ``x``::

        y = x * (1 + erf(x / sqrt(2))) / 2                                  approximate 0
        y = x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2         approximate 1

    Shapes: ``x`` of rank 0 to 8, a floating dtype. Returns ``y`` like ``x``.

    Raises AclnnError (a ValueError) where rank, dtype or ``approximate`` does not fit. Source: aclnnGeluV2; with
    ``approximate=1`` also aclnnGelu.
    """
    y: Array
    (y,) = _FORWARD(x=x, approximate=approximate)
    return y


def gelu_backward_v2(grad_output: Array, x: Array, approximate: str = "none") -> Array:
    """The gradient of GELU; differentiable in both arrays::

        grad_input = grad_output * (Phi(x) + x * exp(-x^2 / 2) / sqrt(2 * pi))      "none"; Phi(x) = y / x
        grad_input = grad_output * (s + x * s * (1 - s) * u')                       "tanh"; s = y / x = sigmoid(u)

    Shapes: ``grad_output`` and ``x`` broadcast to that of the result, whose dtype is the one that both promote to.

    Raises AclnnError (a ValueError) where shapes, dtypes or ``approximate`` do not fit. Source: aclnnGeluBackwardV2;
    with "tanh" also aclnnGeluBackward.
    """
    grad_input: Array
    (grad_input,) = _BACKWARD(grad_output=grad_output, x=x, approximate=approximate)
    return grad_input


def _transpose(values: Values, cotangents: Sequence[Array | None], wanted: Sequence[str]) -> Values:
    (dy,) = cotangents
    return {"x": None if dy is None else gelu_backward_v2(dy, values["x"], "tanh" if values["approximate"] else "none")}


_FORWARD.differentiable(("x",), definitions.gelu_v2_tangents, _transpose)


@_FORWARD.batched
def _batched_forward(size: int, values: Values, dims: Mapping[str, int]) -> tuple[Results, Sequence[int]]:
    return _FORWARD(**values | {"x": batch_first(values["x"], dims.get("x"), size)}), (0,)


@_BACKWARD.batched
def _batched_backward(size: int, values: Values, dims: Mapping[str, int]) -> tuple[Results, Sequence[int]]:
    first = {name: batch_first(values[name], dims.get(name), size) for name in ("grad_output", "x")}
    rank = max(array.ndim for array in first.values())
    # The samples broadcast, so that what has fewer dimensions gets 1s behind the batch.
    first = {name: a.reshape(size, *[1] * (rank - a.ndim), *a.shape[1:]) for name, a in first.items()}
    return _BACKWARD(**values | first), (0,)
