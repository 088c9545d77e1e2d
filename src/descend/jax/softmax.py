"""Softmax and log softmax along a dimension, and their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax import Array

from descend.jax import definitions
from descend.jax.batching import batch_first
from descend.jax.library import Operator, Results, Values

_FORWARD = Operator("softmax", definitions.softmax)
_BACKWARD = Operator("softmax_backward", definitions.softmax_backward)
_LOG_FORWARD = Operator("log_softmax", definitions.log_softmax)
_LOG_BACKWARD = Operator("log_softmax_backward", definitions.log_softmax_backward)


def softmax(x: Array, dim: int = -1) -> Array:
    """Softmax along ``dim``. Differentiable in ``x``::

        out = exp(x - max(x)) / sum(exp(x - max(x)))        maximum and sum along dim

    Shapes: ``x`` of rank 0 to 8, a floating dtype. Returns ``out`` like ``x``.

    Raises AclnnError (a ValueError) where rank, dtype or ``dim`` does not fit. Source: aclnnSoftmax.
    """
    out: Array
    (out,) = _FORWARD(x=x, dim=dim)
    return out


def softmax_backward(grad_output: Array, output: Array, dim: int = -1) -> Array:
    """The gradient of softmax; differentiable in both arrays::

        out = grad_output * output - sum(grad_output * output) * output        sum along dim

    Shapes: ``output``, the result of `softmax`, as ``grad_output``. Returns the gradient, like ``grad_output``.

    Raises AclnnError (a ValueError) where shapes, dtypes or ``dim`` do not fit. Source: aclnnSoftmaxBackward.
    """
    out: Array
    (out,) = _BACKWARD(grad_output=grad_output, output=output, dim=dim)
    return out


def log_softmax(x: Array, dim: int = -1) -> Array:
    """Log softmax along ``dim``. Differentiable in ``x``::

        out = (x - max(x)) - log(sum(exp(x - max(x))))      maximum and sum along dim

    Shapes: ``x`` of rank 0 to 8, a floating dtype. Returns ``out`` like ``x``.

    Raises AclnnError (a ValueError) where rank, dtype or ``dim`` does not fit. Source: aclnnLogSoftmax.
    """
    out: Array
    (out,) = _LOG_FORWARD(x=x, dim=dim)
    return out


def log_softmax_backward(grad_output: Array, output: Array, dim: int = -1) -> Array:
    """The gradient of log softmax; differentiable in both arrays::

        out = grad_output - exp(output) * sum(grad_output)              sum along dim

    Shapes: ``output``, the result of `log_softmax`, as ``grad_output``. Returns the gradient, like ``grad_output``.

    Raises AclnnError (a ValueError) where shapes, dtypes or ``dim`` do not fit. Source: aclnnLogSoftmaxBackward.
    """
    out: Array
    (out,) = _LOG_BACKWARD(grad_output=grad_output, output=output, dim=dim)
    return out


def _transpose(values: Values, cotangents: Sequence[Array | None], wanted: Sequence[str]) -> Values:
    (dy,) = cotangents
    return {"x": None if dy is None else softmax_backward(dy, values["out"], values["dim"])}


def _log_transpose(values: Values, cotangents: Sequence[Array | None], wanted: Sequence[str]) -> Values:
    (dy,) = cotangents
    return {"x": None if dy is None else log_softmax_backward(dy, values["out"], values["dim"])}


_FORWARD.differentiable(("out",), definitions.softmax_tangents, _transpose)
_LOG_FORWARD.differentiable(("out",), definitions.log_softmax_tangents, _log_transpose)


def _batch(operator: Operator, *arrays: str) -> None:
    @operator.batched
    def call(size: int, values: Values, dims: Mapping[str, int]) -> tuple[Results, Sequence[int]]:
        first = {name: batch_first(values[name], dims.get(name), size) for name in arrays}
        dim, rank = values["dim"], first[arrays[0]].ndim - 1
        if rank == 0:  # the numbers of a batch, each a vector of one
            first = {name: array[:, None] for name, array in first.items()}
        (out,) = operator(**values | first | {"dim": dim % max(rank, 1) + 1})
        return (out.reshape(out.shape[: rank + 1]),), (0,)


for _operator in (_FORWARD, _LOG_FORWARD):
    _batch(_operator, "x")
for _operator in (_BACKWARD, _LOG_BACKWARD):
    _batch(_operator, "grad_output", "output")
