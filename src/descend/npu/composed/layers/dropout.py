"""Dropout by torch_npu's own operators: masks of bits or bytes, what they do, and their gradients.

    dropout(x)             = x / (1 - p) where the mask keeps a number, else 0
    dropout_add_softmax    = dropout(softmax(x1 + alpha * x))

Which numbers a mask keeps follows from a seed and an offset: see `descend.npu.composed.random`. Documents:
torch_npu.npu_dropout_with_add_softmax, npu_dropout_do_mask, npu_dropout_gen_mask; aclnnDropoutGenMaskV2,
aclnnDropoutDoMask.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_float, check_shape, wide
from descend.npu.composed.random import Dropout, Kept, aligned, bits, draw, from_bits
from descend.npu.composed.refusal import refuse


def _npu_dropout_gen_mask(
    self: Tensor,
    size: Sequence[int],
    p: float,
    seed: int,
    offset: int,
    parallel: bool | None = True,
    sync: bool | None = None,
) -> Tensor:
    """The mask of a tensor of ``size``: uint8, one bit a number from the lowest on, 1 for what is kept."""
    return bits(Dropout(_keep("_npu_dropout_gen_mask", p), seed, offset), math.prod(size))


def npu_dropout_gen_mask(size: Sequence[int], p: float, **options: Any) -> Tensor:
    """As `_npu_dropout_gen_mask`, with a seed of the default generator. ``options`` are those of a new tensor."""
    return new_bits("npu_dropout_gen_mask", p, math.prod(size))


def _npu_dropout(self: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Dropout, and its mask of bits."""
    check_float("_npu_dropout", self=self)
    mask = new_bits("_npu_dropout", p, self.numel())
    return by_bits("_npu_dropout", self, mask, p), mask


def npu_dropout_do_mask(self: Tensor, mask: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Dropout by a mask of bits, and the mask."""
    return by_bits("npu_dropout_do_mask", self, mask, p), mask


def npu_dropout_backward(grad_output: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The gradient of dropout by a mask of bits. ``scale`` is the probability with which a number is dropped."""
    return by_bits("npu_dropout_backward", grad_output, mask, scale)


def _dropout_with_byte_mask(self: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Dropout, and its mask of one byte a number: uint8, shaped as ``self``, 1 for what is kept."""
    operator = "_dropout_with_byte_mask"
    kept = Kept(_drawn(operator, p)).places(0, self.numel()).view(self.shape)
    return _dropped(operator, self, kept, p), kept.to(torch.uint8)


def _dropout_with_byte_mask_backward(grad_output: Tensor, mask: Tensor, p: float) -> Tensor:
    """The gradient."""
    operator = "_dropout_with_byte_mask_backward"
    return _dropped(operator, grad_output, _from_bytes(operator, mask, grad_output), p)


def npu_dropout_with_add_softmax(
    self: Tensor, x1: Tensor, alpha: float, prob: float, dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The mask, a byte a number up to a multiple of 128; the softmax of x1 + alpha * self; and its dropout."""
    operator = "npu_dropout_with_add_softmax"
    check_float(operator, self=self, x1=x1)
    check_shape(operator, "x1", x1, self.shape, "self")
    mask = aligned(_drawn(operator, prob), self.numel())
    softmax = torch.softmax(wide(x1).add(wide(self), alpha=alpha), dim)
    dropped = _dropped(operator, softmax, mask[: self.numel()].view(self.shape), prob)
    return mask.to(torch.uint8), softmax.to(x1.dtype), dropped.to(x1.dtype)


def npu_dropout_with_add_softmax_backward(
    grad: Tensor, mask: Tensor, softmax_out: Tensor, alpha: float, prob: float, dim: int
) -> tuple[Tensor, Tensor]:
    """The gradients of self and x1."""
    operator = "npu_dropout_with_add_softmax_backward"
    check_float(operator, grad=grad, softmax_out=softmax_out)
    check_shape(operator, "grad", grad, softmax_out.shape, "softmax_out")
    kept, softmax = _from_bytes(operator, mask, softmax_out), wide(softmax_out)
    dy = _dropped(operator, wide(grad).to(softmax.dtype), kept, prob)
    dx1 = torch.ops.aten._softmax_backward_data(dy, softmax, dim, softmax.dtype)
    return (dx1 * alpha).to(grad.dtype), dx1.to(grad.dtype)


def new_bits(operator: str, p: float, count: int) -> Tensor:
    """A mask of bits for ``count`` numbers, with a seed of the default generator."""
    return bits(_drawn(operator, p), count)


def by_bits(operator: str, x: Tensor, mask: Tensor, p: float) -> Tensor:
    """Dropout by a mask of bits."""
    check_bits(operator, "mask", mask, x.numel())
    return _dropped(operator, x, from_bits(mask.flatten(), x.numel()).view(x.shape), p)


def _keep(operator: str, p: float) -> float:
    if not 0 <= p <= 1:
        refuse(operator, "p", p, "must be a probability, from 0 to 1")
    return 1 - p


def _drawn(operator: str, p: float) -> Dropout:
    return Dropout(_keep(operator, p), *draw())


def check_bits(operator: str, name: str, mask: Tensor, count: int) -> None:
    """Refuses a mask that has not a bit for each of ``count`` numbers."""
    _check_mask(operator, name, mask, -(-count // 8))


def _check_mask(operator: str, name: str, mask: Tensor, least: int) -> None:
    if mask.dtype != torch.uint8 or mask.numel() < least:
        refuse(operator, name, f"{mask.dtype} of {mask.numel()} elements", f"must be torch.uint8 of at least {least}")


def _from_bytes(operator: str, mask: Tensor, like: Tensor) -> Tensor:
    _check_mask(operator, "mask", mask, like.numel())
    return mask.flatten()[: like.numel()].view(like.shape).bool()


def _dropped(operator: str, x: Tensor, kept: Tensor, p: float) -> Tensor:
    check_float(operator, x=x)
    keep = _keep(operator, p)
    scaled = wide(x) / keep if keep else torch.zeros_like(wide(x))
    return torch.where(kept, scaled, 0).to(x.dtype)
