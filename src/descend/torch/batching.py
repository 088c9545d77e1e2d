"""What the operators' rules for ``torch.func.vmap`` share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor

from descend.torch.library import Operator


@overload
def batch_first(tensor: Tensor, dim: int | None, size: int) -> Tensor: ...
@overload
def batch_first(tensor: None, dim: int | None, size: int) -> None: ...
def batch_first(tensor: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """The tensor with its batch dimension in front; one without is repeated, without a copy."""
    if tensor is None:
        return None
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def batch_second(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """[X, Y, ...] of each sample as [X, size * Y, ...]: the batch becomes more channels, groups or heads."""
    return batch_first(tensor, dim, size).transpose(0, 1).flatten(1, 2)


def call_each(
    operator: Operator, size: int, dims: Sequence[int | None], args: Sequence[Any]
) -> tuple[tuple[Tensor | None, ...], tuple[int | None, ...]]:
    """One call a sample, where the samples' sums over rows must not mix; the results are stacked in front."""
    calls = [
        operator.overload(*(a if d is None else a.select(d, i) for a, d in zip(args, dims, strict=True)))
        for i in range(size)
    ]
    results = tuple(None if r[0] is None else torch.stack(r) for r in zip(*calls, strict=True))
    return results, tuple(None if r is None else 0 for r in results)
