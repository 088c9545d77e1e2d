"""Softmax and log softmax along a dimension, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from descend.torch import definitions
from descend.torch.batching import batch_first
from descend.torch.derivatives import differentiate_backward, results_again
from descend.torch.library import Operator, recording
from descend.torch.sharding import Split, sharded

_FORWARD = Operator("softmax")
_BACKWARD = Operator("softmax_backward")
_LOG_FORWARD = Operator("log_softmax")
_LOG_BACKWARD = Operator("log_softmax_backward")

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax along ``dim``, as ``torch.nn.functional.softmax`` has it. Differentiable in ``x``::

        out = exp(x - max(x)) / sum(exp(x - max(x)))        maximum and sum along dim

    Shapes: ``x`` of rank 0 to 8. Returns ``out`` like ``x``, or with ``dtype`` of that dtype, in which it is computed.
    Dtypes that the operator does not have are left to PyTorch.

    Raises AclnnError (a ValueError) where rank or ``dim`` does not fit. Source: aclnnSoftmax.
    """
    return _of(_FORWARD, torch.softmax, x, dim, dtype)


def log_softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """Log softmax along ``dim``, as ``torch.nn.functional.log_softmax`` has it. Differentiable in ``x``::

        out = (x - max(x)) - log(sum(exp(x - max(x))))      maximum and sum along dim

    Shapes, dtypes and errors are those of `softmax`. Source: aclnnLogSoftmax.
    """
    return _of(_LOG_FORWARD, torch.log_softmax, x, dim, dtype)


def softmax_backward(grad_output: Tensor, output: Tensor, dim: int = -1) -> Tensor:
    """The gradient of softmax; differentiable in both tensors::

        out = grad_output * output - sum(grad_output * output) * output        sum along dim

    Shapes: ``output``, the result of `softmax`, as ``grad_output``. Returns the gradient, like ``grad_output``.

    Raises AclnnError (a ValueError) where shapes, dtypes or ``dim`` do not fit. Source: aclnnSoftmaxBackward.
    """
    result: Tensor = _BACKWARD(grad_output, output, dim)
    return result


def log_softmax_backward(grad_output: Tensor, output: Tensor, dim: int = -1) -> Tensor:
    """The gradient of log softmax; differentiable in both tensors::

        out = grad_output - exp(output) * sum(grad_output)              sum along dim

    Shapes: ``output``, the result of `log_softmax`, as ``grad_output``. Returns the gradient, like ``grad_output``.

    Raises AclnnError (a ValueError) where shapes, dtypes or ``dim`` do not fit. Source: aclnnLogSoftmaxBackward.
    """
    result: Tensor = _LOG_BACKWARD(grad_output, output, dim)
    return result


def _of(operator: Operator, pytorchs: Callable[..., Tensor], x: Tensor, dim: int, dtype: torch.dtype | None) -> Tensor:
    if (dtype or x.dtype) not in _DTYPES:
        return pytorchs(x, dim, dtype)
    result: Tensor = operator(x if dtype is None else x.to(dtype), dim)
    return result


def _derive(forward: Operator, backward: Operator, definition: Any, of_gradient: Any) -> None:
    @forward.fake
    def fake_forward(x: Tensor, dim: int = -1) -> Tensor:
        return x.new_empty(x.shape)

    @backward.fake
    def fake_backward(grad_output: Tensor, output: Tensor, dim: int = -1) -> Tensor:
        return grad_output.new_empty(grad_output.shape)

    class Softmax(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, keyset: Any, named: dict[str, Any], x: Tensor, dim: int) -> Any:
            out = forward.forward(keyset, (x, dim), named)
            ctx.save_for_backward(out, x if recording() else None)
            ctx.dim = dim
            ctx.set_materialize_grads(False)
            return out

        @staticmethod
        def backward(ctx: Any, grad_output: Tensor | None) -> Any:
            out, x = ctx.saved_tensors
            if x is not None:
                (out,) = results_again(forward, (x, ctx.dim), (out,))
            return None, None, None if grad_output is None else backward.overload(grad_output, out, ctx.dim), None

    forward.differentiable(Softmax, definition)
    differentiate_backward(backward, of_gradient)

    @forward.batched
    def batched_forward(size: int, dims: list[int | None], x: Tensor, dim: int) -> tuple[Any, Any]:
        return _in_batch(forward, [batch_first(x, dims[0], size)], dim), 0

    @backward.batched
    def batched_backward(size: int, dims: list[int | None], dy: Tensor, y: Tensor, dim: int) -> tuple[Any, Any]:
        return _in_batch(backward, [batch_first(dy, dims[0], size), batch_first(y, dims[1], size)], dim), 0

    @sharded(forward)
    def sharded_forward(x: Tensor, dim: int) -> Iterable[Split]:
        return [Split((d,), (d,)) for d in range(x.dim()) if d != dim % x.dim()]

    @sharded(backward)
    def sharded_backward(grad_output: Tensor, output: Tensor, dim: int) -> Iterable[Split]:
        return [Split((d, d), (d,)) for d in range(output.dim()) if d != dim % output.dim()]


def _in_batch(operator: Operator, first: list[Tensor], dim: int) -> Tensor:
    """One call of a batch, which stands in front. Of a batch of numbers each is a vector of one."""
    rank = first[0].dim() - 1
    if rank == 0:
        return operator.overload(*(t.unsqueeze(1) for t in first), 1).squeeze(1)  # type: ignore[no-any-return]
    return operator.overload(*first, dim % rank + 1)  # type: ignore[no-any-return]


_derive(_FORWARD, _BACKWARD, definitions.softmax, definitions.softmax_backward)
_derive(_LOG_FORWARD, _LOG_BACKWARD, definitions.log_softmax, definitions.log_softmax_backward)
