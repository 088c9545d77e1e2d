"""Rotary position embedding."""

from __future__ import annotations

import torch
from torch import Tensor

from descend.torch.definitions.tensors import widened


def rotary_position_embedding(x: Tensor, cos: Tensor, sin: Tensor, mode: int = 0) -> Tensor:
    """Rotary position embedding."""
    wide = _halves_of_pairs(widened(x), mode)
    return (wide * widened(cos) + _quarter_turn(wide, mode) * widened(sin)).to(x.dtype)


def rotary_position_embedding_grad(
    dy: Tensor, cos: Tensor, sin: Tensor, x: Tensor | None = None, mode: int = 0
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """``dx``, ``dcos`` and ``dsin`` of rotary position embedding."""
    wide = widened(dy)
    dx = wide * widened(cos) - _quarter_turn(wide * widened(sin), mode)
    if mode == 3:
        dx = torch.stack(dx.chunk(2, -1), -1).flatten(-2)
    if x is None:
        return dx.to(dy.dtype), None, None
    of_x = _halves_of_pairs(widened(x), mode)
    dcos, dsin = (wide * of_x).sum_to_size(cos.shape), (wide * _quarter_turn(of_x, mode)).sum_to_size(sin.shape)
    return dx.to(dy.dtype), dcos.to(cos.dtype), dsin.to(sin.dtype)


def _halves_of_pairs(x: Tensor, mode: int) -> Tensor:
    """In mode 3 each row's even elements, then its odd ones."""
    return torch.cat((x[..., ::2], x[..., 1::2]), -1) if mode == 3 else x


def _quarter_turn(x: Tensor, mode: int) -> Tensor:
    """(-b, a) in the place of each pair (a, b) of a row."""
    if mode == 1:
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    parts = x.chunk(4 if mode == 2 else 2, -1)
    return torch.cat([part for a, b in zip(parts[::2], parts[1::2], strict=True) for part in (-b, a)], -1)
