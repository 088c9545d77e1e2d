"""SwiGLU, swish of one half times the other, and its gradient."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from descend.torch.batching import batch_first
from descend.torch.definitions import swi_glu as _definition
from descend.torch.definitions import swi_glu_grad as _gradient_definition
from descend.torch.derivatives import differentiate_backward, keep
from descend.torch.library import Operator
from descend.torch.sharding import Split, sharded

_FORWARD = Operator("swi_glu")
_BACKWARD = Operator("swi_glu_grad")


def swi_glu(x: Tensor, dim: int = -1) -> Tensor:
    """Swish of the first half of ``x`` along ``dim``, times the second half. Differentiable in ``x``::

        out = a * sigmoid(a) * b        a, b: the halves of x

    Shapes: ``x`` of rank 1 to 8, a floating dtype, of an even size along ``dim``. Returns ``out`` like ``x``, of half
    of that size.

    Raises AclnnError (a ValueError) where the shape or dtype does not fit. Source: aclnnSwiGlu.
    """
    result: Tensor = _FORWARD(x, dim)
    return result


def swi_glu_grad(y_grad: Tensor, x: Tensor, dim: int = -1) -> Tensor:
    """The gradient of SwiGLU; differentiable in both tensors::

        out_a = y_grad * (sig + sig * (1 - sig) * a) * b        sig = sigmoid(a); a, b: the halves of x
        out_b = y_grad * sig * a                                out_a, out_b: the halves of the result

    Shapes: ``y_grad`` as half of ``x`` along ``dim``. Returns the gradient, like ``x``.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnSwiGluGrad.
    """
    result: Tensor = _BACKWARD(y_grad, x, dim)
    return result


@_FORWARD.fake
def _fake_forward(x: Tensor, dim: int = -1) -> Tensor:
    shape = list(x.shape)
    shape[dim] = shape[dim] // 2
    return x.new_empty(shape)


@_BACKWARD.fake
def _fake_backward(y_grad: Tensor, x: Tensor, dim: int = -1) -> Tensor:
    return x.new_empty(x.shape)


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keyset: Any, named: dict[str, Any], x: Tensor, dim: int) -> Any:
        out = _FORWARD.forward(keyset, (x, dim), named)
        ctx.save_for_backward(keep(x))
        ctx.dim = dim
        ctx.set_materialize_grads(False)
        return out

    @staticmethod
    def backward(ctx: Any, y_grad: Tensor | None) -> Any:
        (x,) = ctx.saved_tensors
        return None, None, None if y_grad is None else _BACKWARD.overload(y_grad, x, ctx.dim), None


_FORWARD.differentiable(_SwiGlu, _definition)
differentiate_backward(_BACKWARD, _gradient_definition)


def _behind_batch(dim: int) -> int:
    return dim if dim < 0 else dim + 1


@_FORWARD.batched
def _batched_forward(size: int, dims: list[int | None], x: Tensor, dim: int) -> tuple[Any, Any]:
    return _FORWARD.overload(batch_first(x, dims[0], size), _behind_batch(dim)), 0


@_BACKWARD.batched
def _batched_backward(size: int, dims: list[int | None], y_grad: Tensor, x: Tensor, dim: int) -> tuple[Any, Any]:
    return _BACKWARD.overload(batch_first(y_grad, dims[0], size), batch_first(x, dims[1], size), _behind_batch(dim)), 0


@sharded(_FORWARD)
def _sharded_forward(x: Tensor, dim: int) -> Iterable[Split]:
    return [Split((d,), (d,)) for d in range(x.dim()) if d != dim % x.dim()]


@sharded(_BACKWARD)
def _sharded_backward(y_grad: Tensor, x: Tensor, dim: int) -> Iterable[Split]:
    return [Split((d, d), (d,)) for d in range(x.dim()) if d != dim % x.dim()]
