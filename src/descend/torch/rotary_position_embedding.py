"""Rotary position embedding, pairs of each row turned by angles of their own, and its gradient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from descend.torch import definitions
from descend.torch.batching import batch_first
from descend.torch.derivatives import differentiate_backward, keep
from descend.torch.library import Operator
from descend.torch.sharding import Split, sharded

_FORWARD = Operator("rotary_position_embedding")
_BACKWARD = Operator("rotary_position_embedding_grad")


def rotary_position_embedding(x: Tensor, cos: Tensor, sin: Tensor, mode: int = 0) -> Tensor:
    """Each pair of a row's elements turned by an angle of its own. Differentiable in all three tensors::

        out_a = x_a * cos_a - x_b * sin_a        a, b: the two members of each pair
        out_b = x_b * cos_b + x_a * sin_b

    ``mode`` tells where the members are: 0 at i and i + D/2 of a row of D elements, 1 at 2 i and 2 i + 1, 2 as 0 in
    each half of the row, 3 as 1 in ``x`` and as 0 in ``cos``, ``sin`` and the result.

    Shapes: ``x`` of rank 1 to 8, D even, in mode 2 a multiple of 4; ``cos`` and ``sin`` of its rank and last size, and
    of size 1 or ``x``'s before. Floating dtypes, mixed at will. Returns ``out`` like ``x``.

    Raises AclnnError (a ValueError) where the shapes, the dtypes or the mode do not fit. Source:
    aclnnRotaryPositionEmbedding.
    """
    result: Tensor = _FORWARD(x, cos, sin, mode)
    return result


def rotary_position_embedding_grad(
    dy: Tensor, cos: Tensor, sin: Tensor, x: Tensor | None = None, mode: int = 0
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of rotary position embedding; differentiable in all four tensors::

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
    result: tuple[Tensor, Tensor | None, Tensor | None] = _BACKWARD(dy, cos, sin, x, mode)
    return result


@_FORWARD.fake
def _fake_forward(x: Tensor, cos: Tensor, sin: Tensor, mode: int = 0) -> Tensor:
    return x.new_empty(x.shape)


@_BACKWARD.fake
def _fake_backward(
    dy: Tensor, cos: Tensor, sin: Tensor, x: Tensor | None = None, mode: int = 0
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    sums = (None, None) if x is None else (cos.new_empty(cos.shape), sin.new_empty(sin.shape))
    return dy.new_empty(dy.shape), *sums


class _RotaryPositionEmbedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keyset: Any, named: dict[str, Any], x: Tensor, cos: Tensor, sin: Tensor, mode: int) -> Any:
        out = _FORWARD.forward(keyset, (x, cos, sin, mode), named)
        # x is for the gradients of cos and sin alone.
        ctx.save_for_backward(keep(x) if any(ctx.needs_input_grad[3:5]) else None, keep(cos), keep(sin))
        ctx.mode = mode
        ctx.set_materialize_grads(False)
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> Any:
        x, cos, sin = ctx.saved_tensors
        gradients = (None, None, None) if dy is None else _BACKWARD.overload(dy, cos, sin, x, ctx.mode)
        return None, None, *gradients, None


_FORWARD.differentiable(_RotaryPositionEmbedding, definitions.rotary_position_embedding)
differentiate_backward(_BACKWARD, definitions.rotary_position_embedding_grad)


@_FORWARD.batched
def _batched_forward(
    size: int, dims: list[int | None], x: Tensor, cos: Tensor, sin: Tensor, mode: int
) -> tuple[Any, Any]:
    if dims[1] is None and dims[2] is None:
        angles = cos.unsqueeze(0), sin.unsqueeze(0)
    else:
        angles = batch_first(cos, dims[1], size), batch_first(sin, dims[2], size)
    return _FORWARD.overload(batch_first(x, dims[0], size), *angles, mode), 0


@_BACKWARD.batched
def _batched_backward(
    size: int, dims: list[int | None], dy: Tensor, cos: Tensor, sin: Tensor, x: Tensor | None, mode: int
) -> tuple[Any, Any]:
    first = (batch_first(t, d, size) for t, d in zip((dy, cos, sin, x), dims, strict=False))
    results = _BACKWARD.overload(*first, mode)
    return results, tuple(None if r is None else 0 for r in results)


def _cuts(x: Tensor, cos: Tensor) -> Iterator[tuple[int, int | None]]:
    """The dimensions that rows can be cut along, each with that of cos and sin, None where they are broadcast."""
    for dim in range(x.dim() - 1):
        yield dim, dim if cos.shape[dim] == x.shape[dim] else None


@sharded(_FORWARD)
def _sharded_forward(x: Tensor, cos: Tensor, sin: Tensor, mode: int) -> Iterable[Split]:
    return [Split((d, c, c), (d,)) for d, c in _cuts(x, cos)]


@sharded(_BACKWARD)
def _sharded_backward(dy: Tensor, cos: Tensor, sin: Tensor, x: Tensor | None, mode: int) -> Iterable[Split]:
    ways = []
    for d, c in _cuts(dy, cos):
        args = (d, c, c) if x is None else (d, c, c, d)
        ways.append(Split(args, (d, "sum", "sum") if c is None else (d, c, c)))
    return ways
