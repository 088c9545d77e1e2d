"""Softmax of scaled, masked scores, and its gradient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from descend.torch import definitions
from descend.torch.batching import batch_first
from descend.torch.derivatives import differentiate_backward, keep, results_again
from descend.torch.library import Operator, recording
from descend.torch.sharding import Split, sharded

_FORWARD = Operator("scaled_masked_softmax")
_BACKWARD = Operator("scaled_masked_softmax_backward")


def scaled_masked_softmax(x: Tensor, mask: Tensor | None, scale: float = 1.0, fix_triu_mask: bool = False) -> Tensor:
    """Softmax over the last axis of ``scale * x``, -10000 where masked. Differentiable in ``x``::

        z = -10000 where mask is true, scale * x elsewhere
        y = exp(z - max(z)) / sum(exp(z - max(z)))

    Shapes: ``x`` of rank 1 to 8, a floating dtype; ``mask`` bool, broadcasts to ``x``, None masks nothing; with
    ``fix_triu_mask`` it is ignored, and what lies above the diagonal of the last two axes is masked. Returns ``y``
    like ``x``; a row that is masked as a whole gives equal numbers.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnScaledMaskedSoftmax.
    """
    result: Tensor = _FORWARD(x, mask, scale, fix_triu_mask)
    return result


def scaled_masked_softmax_backward(
    grad_output: Tensor, y: Tensor, mask: Tensor | None, scale: float = 1.0, fix_triu_mask: bool = False
) -> Tensor:
    """Gradient of the scaled, masked softmax; differentiable in ``grad_output`` and ``y``::

        out = 0                                                       where mask is true
        out = scale * (grad_output * y - y * sum(grad_output * y))    elsewhere

    Shapes: ``y`` as ``grad_output`` and of its dtype, the rest as in `scaled_masked_softmax`. Returns the gradient,
    like ``grad_output``.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnScaledMaskedSoftmaxBackward.
    """
    result: Tensor = _BACKWARD(grad_output, y, mask, scale, fix_triu_mask)
    return result


@_FORWARD.fake
def _fake_forward(x: Tensor, mask: Tensor | None, scale: float = 1.0, fix_triu_mask: bool = False) -> Tensor:
    return x.new_empty(x.shape)


@_BACKWARD.fake
def _fake_backward(
    grad_output: Tensor, y: Tensor, mask: Tensor | None, scale: float = 1.0, fix_triu_mask: bool = False
) -> Tensor:
    return grad_output.new_empty(grad_output.shape)


class _ScaledMaskedSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, keyset: Any, named: dict[str, Any], x: Tensor, mask: Tensor | None, scale: float, fix_triu_mask: bool
    ) -> Any:
        y = _FORWARD.forward(keyset, (x, mask, scale, fix_triu_mask), named)
        ctx.save_for_backward(y, keep(mask), x if recording() else None)
        ctx.attributes = scale, fix_triu_mask
        ctx.set_materialize_grads(False)
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None) -> Any:
        y, mask, x = ctx.saved_tensors
        if x is not None:
            (y,) = results_again(_FORWARD, (x, mask, *ctx.attributes), (y,))
        dx = None if grad_output is None else _BACKWARD.overload(grad_output, y, mask, *ctx.attributes)
        return None, None, dx, None, None, None


_FORWARD.differentiable(_ScaledMaskedSoftmax, definitions.scaled_masked_softmax)
differentiate_backward(_BACKWARD, definitions.scaled_masked_softmax_backward)


def _batched_mask(mask: Tensor | None, dim: int | None, size: int, rank: int) -> Tensor | None:
    """A mask of each sample as one that broadcasts to samples of a rank, the batch in front."""
    if mask is None or dim is None:
        return mask
    first = batch_first(mask, dim, size)
    return first.reshape(size, *[1] * (rank - first.dim() + 1), *first.shape[1:])


@_FORWARD.batched
def _batched_forward(
    size: int, dims: list[int | None], x: Tensor, mask: Tensor | None, *attributes: Any
) -> tuple[Any, Any]:
    first = batch_first(x, dims[0], size)
    return _FORWARD.overload(first, _batched_mask(mask, dims[1], size, first.dim() - 1), *attributes), 0


@_BACKWARD.batched
def _batched_backward(
    size: int, dims: list[int | None], grad_output: Tensor, y: Tensor, mask: Tensor | None, *attributes: Any
) -> tuple[Any, Any]:
    grad, first = batch_first(grad_output, dims[0], size), batch_first(y, dims[1], size)
    return _BACKWARD.overload(grad, first, _batched_mask(mask, dims[2], size, first.dim() - 1), *attributes), 0


def _cuts(x: Tensor, mask: Tensor | None, fix_triu_mask: bool) -> Iterator[tuple[int, int | None]]:
    """The dimensions that scores can be cut along, each with the mask's, which is None where the mask broadcasts."""
    for dim in range(x.dim() - 1 - fix_triu_mask):
        at = -1 if mask is None else dim - x.dim() + mask.dim()
        yield dim, at if mask is not None and at >= 0 and mask.shape[at] == x.shape[dim] else None


@sharded(_FORWARD)
def _sharded_forward(x: Tensor, mask: Tensor | None, scale: float, fix_triu_mask: bool) -> Iterable[Split]:
    return [Split((d, m), (d,)) for d, m in _cuts(x, mask, fix_triu_mask)]


@sharded(_BACKWARD)
def _sharded_backward(
    grad_output: Tensor, y: Tensor, mask: Tensor | None, scale: float, fix_triu_mask: bool
) -> Iterable[Split]:
    return [Split((d, d, m), (d,)) for d, m in _cuts(y, mask, fix_triu_mask)]
