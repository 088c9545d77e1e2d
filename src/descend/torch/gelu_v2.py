"""GELU, by erf or by tanh, and its gradient."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from descend.torch.batching import batch_first
from descend.torch.definitions import gelu_backward_v2 as _gradient_definition
from descend.torch.definitions import gelu_v2 as _definition
from descend.torch.derivatives import differentiate_backward, keep
from descend.torch.library import Operator
from descend.torch.sharding import Split, sharded

_FORWARD = Operator("gelu_v2")
_BACKWARD = Operator("gelu_backward_v2")


def gelu_v2(x: Tensor, approximate: int = 0) -> Tensor:
    """GELU: ``x`` times the normal distribution's function of ``x``. Differentiable in ``x``::

        y = x * (1 + erf(x / sqrt(2))) / 2                                  approximate 0
        y = x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2         approximate 1

    Shapes: ``x`` of rank 0 to 8, a floating dtype. Returns ``y`` like ``x``.

    Raises AclnnError (a ValueError) where rank, dtype or ``approximate`` does not fit. Source: aclnnGeluV2; with
    ``approximate=1`` also aclnnGelu.
    """
    result: Tensor = _FORWARD(x, approximate)
    return result


def gelu_backward_v2(grad_output: Tensor, x: Tensor, approximate: str = "none") -> Tensor:
    """The gradient of GELU; differentiable in both tensors::

        grad_input = grad_output * (Phi(x) + x * exp(-x^2 / 2) / sqrt(2 * pi))      "none"; Phi(x) = y / x
        grad_input = grad_output * (s + x * s * (1 - s) * u')                       "tanh"; s = y / x = sigmoid(u)

    Shapes: ``grad_output`` and ``x`` broadcast to that of the result, whose dtype is the one that both promote to.

    Raises AclnnError (a ValueError) where shapes, dtypes or ``approximate`` do not fit. Source: aclnnGeluBackwardV2;
    with "tanh" also aclnnGeluBackward.
    """
    result: Tensor = _BACKWARD(grad_output, x, approximate)
    return result


@_FORWARD.fake
def _fake_forward(x: Tensor, approximate: int = 0) -> Tensor:
    return x.new_empty(x.shape)


@_BACKWARD.fake
def _fake_backward(grad_output: Tensor, x: Tensor, approximate: str = "none") -> Tensor:
    shape = torch.broadcast_shapes(grad_output.shape, x.shape)
    return x.new_empty(shape, dtype=torch.promote_types(grad_output.dtype, x.dtype))


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keyset: Any, named: dict[str, Any], x: Tensor, approximate: int) -> Any:
        y = _FORWARD.forward(keyset, (x, approximate), named)
        ctx.save_for_backward(keep(x))
        ctx.form = "tanh" if approximate else "none"
        ctx.set_materialize_grads(False)
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None) -> Any:
        (x,) = ctx.saved_tensors
        return None, None, None if grad_output is None else _BACKWARD.overload(grad_output, x, ctx.form), None


_FORWARD.differentiable(_Gelu, _definition)
differentiate_backward(_BACKWARD, _gradient_definition)


@_FORWARD.batched
def _batched_forward(size: int, dims: list[int | None], x: Tensor, approximate: int) -> tuple[Any, Any]:
    return _FORWARD.overload(batch_first(x, dims[0], size), approximate), 0


@_BACKWARD.batched
def _batched_backward(
    size: int, dims: list[int | None], grad_output: Tensor, x: Tensor, approximate: str
) -> tuple[Any, Any]:
    first = [batch_first(tensor, dim, size) for tensor, dim in zip((grad_output, x), dims, strict=False)]
    rank = max(tensor.dim() for tensor in first)
    # The samples broadcast, so that what has fewer dimensions gets 1s behind the batch.
    first = [t.reshape(size, *[1] * (rank - t.dim()), *t.shape[1:]) for t in first]
    return _BACKWARD.overload(*first, approximate), 0


@sharded(_FORWARD)
def _sharded_forward(x: Tensor, approximate: int) -> Iterable[Split]:
    return [Split((d,), (d,)) for d in range(x.dim())]


@sharded(_BACKWARD)
def _sharded_backward(grad_output: Tensor, x: Tensor, approximate: str) -> Iterable[Split]:
    shape = torch.broadcast_shapes(grad_output.shape, x.shape)

    def own(tensor: Tensor, d: int) -> int | None:
        """The dimension of a tensor that becomes dimension d of the result; None where it broadcasts along that."""
        place = d - len(shape) + tensor.dim()
        return None if place < 0 or (tensor.shape[place] == 1 and shape[d] != 1) else place

    return [Split((own(grad_output, d), own(x, d)), (d,)) for d in range(len(shape))]
