"""SwiGLU, swish of one half times the other, and its gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax import Array

from descend.jax import definitions
from descend.jax.batching import batch_first
from descend.jax.library import Operator, Results, Values

_FORWARD = Operator("swi_glu", definitions.swi_glu)
_BACKWARD = Operator("swi_glu_grad", definitions.swi_glu_grad)


def swi_glu(x: Array, dim: int = -1) -> Array:
    """Swish of the first half of ``x`` along ``dim``, times the second half. Differentiable in ``x``::

        out = a * sigmoid(a) * b        a, b: the halves of x

    Shapes: ``x`` of rank 1 to 8, a floating dtype, of an even size along ``dim``. Returns ``out`` like ``x``, of half
    of that size.

    Raises AclnnError (a ValueError) where the shape or dtype does not fit. Source: aclnnSwiGlu.
    """
    out: Array
    (out,) = _FORWARD(x=x, dim=dim)
    return out


def swi_glu_grad(y_grad: Array, x: Array, dim: int = -1) -> Array:
    """The gradient of SwiGLU; differentiable in both arrays::

        out_a = y_grad * (sig + sig * (1 - sig) * a) * b        sig = sigmoid(a); a, b: the halves of x
        out_b = y_grad * sig * a                                out_a, out_b: the halves of the result

    Shapes: ``y_grad`` as half of ``x`` along ``dim``. Returns the gradient, like ``x``.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnSwiGluGrad.
    """
    out: Array
    (out,) = _BACKWARD(y_grad=y_grad, x=x, dim=dim)
    return out


def _transpose(values: Values, cotangents: Sequence[Array | None], wanted: Sequence[str]) -> Values:
    (dy,) = cotangents
    return {"x": None if dy is None else swi_glu_grad(dy, values["x"], values["dim"])}


_FORWARD.differentiable(("x",), definitions.swi_glu_tangents, _transpose)


def _batched(size: int, values: Values, dims: Mapping[str, int], names: Sequence[str]) -> Values:
    """The arguments with the batch in front, so that a dim that counts from the front lies one further."""
    first = {name: batch_first(values[name], dims.get(name), size) for name in names}
    return first | {"dim": values["dim"] if values["dim"] < 0 else values["dim"] + 1}


@_FORWARD.batched
def _batched_forward(size: int, values: Values, dims: Mapping[str, int]) -> tuple[Results, Sequence[int]]:
    return _FORWARD(**_batched(size, values, dims, ("x",))), (0,)


@_BACKWARD.batched
def _batched_backward(size: int, values: Values, dims: Mapping[str, int]) -> tuple[Results, Sequence[int]]:
    return _BACKWARD(**_batched(size, values, dims, ("y_grad", "x"))), (0,)
