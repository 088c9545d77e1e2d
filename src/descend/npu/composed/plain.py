"""Operators of torch_npu that PyTorch has under other names: copies of parts, extremes, a loss.

    loss = -sum(labels * log_softmax(x))

Documents: torch_npu.npu_slice, npu_transpose, npu_broadcast, npu_pad, npu_one_hot, npu_max, npu_min, npu_sort_v2,
npu_softmax_cross_entropy_with_logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from descend.npu.composed.arithmetic import check_float, check_shape, wide
from descend.npu.composed.refusal import refuse


def npu_slice(self: Tensor, offsets: Sequence[int], size: Sequence[int]) -> Tensor:
    """A copy of the part of ``size`` that begins at ``offsets``."""
    if not len(offsets) == len(size) == self.dim():
        refuse(
            "npu_slice", "offsets or size", f"{list(offsets)} and {list(size)}", f"must have {self.dim()} numbers each"
        )
    for offset, length, whole in zip(offsets, size, self.shape, strict=True):
        if not 0 <= offset <= offset + length <= whole:
            refuse("npu_slice", "the part", f"{list(size)} from {list(offsets)}", f"lies in self, {list(self.shape)}")
    part = tuple(slice(offset, offset + length) for offset, length in zip(offsets, size, strict=True))
    return self[part].clone(memory_format=torch.contiguous_format)


def npu_transpose(self: Tensor, perm: Sequence[int], require_contiguous: bool = True) -> Tensor:
    """A contiguous copy with the dimensions in the order of ``perm``."""
    return self.permute(list(perm)).clone(memory_format=torch.contiguous_format)


def npu_broadcast(self: Tensor, size: Sequence[int]) -> Tensor:
    """A contiguous copy of ``self``, repeated where it has 1 along a dimension of ``size``."""
    return self.expand(list(size)).clone(memory_format=torch.contiguous_format)


def npu_pad(input: Tensor, paddings: Sequence[int]) -> Tensor:
    """``input`` with zeros around it: ``paddings`` tells how many come before and after, dimension by dimension."""
    if len(paddings) % 2 or len(paddings) > 2 * input.dim() or any(padding < 0 for padding in paddings):
        refuse(
            "npu_pad",
            "paddings",
            list(paddings),
            f"must have two numbers from 0 on for each of {input.dim()} dimensions",
        )
    pairs = [*paddings, *[0] * (2 * input.dim() - len(paddings))]
    last_first = [number for at in range(input.dim() - 1, -1, -1) for number in pairs[2 * at : 2 * at + 2]]
    return functional.pad(input, last_first)


def npu_one_hot(
    self: Tensor, num_classes: int = -1, depth: int = 1, on_value: float = 1, off_value: float = 0
) -> Tensor:
    """float32 [..., depth]: ``on_value`` at each class, ``off_value`` elsewhere, also for classes that are not there.

    In torch_npu's document ``num_classes`` is the dimension of the classes. Its results have it last.
    """
    if depth < 1:
        refuse("npu_one_hot", "depth", depth, "must be at least 1")
    if num_classes not in (-1, self.dim()):
        refuse(
            "npu_one_hot",
            "num_classes",
            num_classes,
            f"must be -1 or {self.dim()}: depth says how many classes there are",
        )
    on, off = (torch.tensor(value, dtype=torch.float32) for value in (on_value, off_value))
    return torch.where(self.unsqueeze(-1) == torch.arange(depth), on, off)


def npu_max(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The largest numbers along a dimension, and their places in int32."""
    values, indices = torch.max(self, dim, keepdim)
    return values, indices.int()


def npu_min(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest numbers along a dimension, and their places in int32."""
    values, indices = torch.min(self, dim, keepdim)
    return values, indices.int()


def npu_max_backward(grad: Tensor, dim: int, indices: Tensor, sizes: Sequence[int], keepdim: bool) -> Tensor:
    """The gradient: ``grad`` at the places that were taken, else 0."""
    places = indices.long()
    if not keepdim and sizes:
        grad, places = grad.unsqueeze(dim), places.unsqueeze(dim)
    return grad.new_zeros(list(sizes)).scatter(dim, places, grad)


def npu_min_backward(grad: Tensor, dim: int, indices: Tensor, sizes: Sequence[int], keepdim: bool) -> Tensor:
    """As `npu_max_backward`."""
    return npu_max_backward(grad, dim, indices, sizes, keepdim)


def npu_sort_v2(self: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    """The numbers in order."""
    return self.sort(dim, descending).values


def npu_slice_out(self: Tensor, offsets: Sequence[int], size: Sequence[int], *, out: Tensor) -> Tensor:
    """`npu_slice` into ``out``, which gets the shape of the result, as in the other functions with out."""
    return _into(out, npu_slice(self, offsets, size))


def npu_transpose_out(self: Tensor, perm: Sequence[int], require_contiguous: bool = True, *, out: Tensor) -> Tensor:
    """`npu_transpose` into ``out``."""
    return _into(out, npu_transpose(self, perm))


def npu_broadcast_out(self: Tensor, size: Sequence[int], *, out: Tensor) -> Tensor:
    """`npu_broadcast` into ``out``."""
    return _into(out, npu_broadcast(self, size))


def npu_sort_v2_out(self: Tensor, dim: int = -1, descending: bool = False, *, out: Tensor) -> Tensor:
    """`npu_sort_v2` into ``out``."""
    return _into(out, npu_sort_v2(self, dim, descending))


def _into(out: Tensor, result: Tensor) -> Tensor:
    if out.shape != result.shape:
        out.resize_(result.shape)
    return out.copy_(result)


def npu_view_copy(self: Tensor, other: Tensor, non_blocking: bool) -> Tensor:
    """``other`` written into ``self``."""
    return self.copy_(other)


def one_(self: Tensor) -> Tensor:
    """Ones in ``self``."""
    return self.fill_(1)


def npu_softmax_cross_entropy_with_logits(self: Tensor, labels: Tensor) -> Tensor:
    """The loss of each row, [N], of logits and probabilities [N, C]."""
    check_float("npu_softmax_cross_entropy_with_logits", self=self, labels=labels)
    check_shape("npu_softmax_cross_entropy_with_logits", "labels", labels, self.shape, "self")
    return -(torch.log_softmax(wide(self), -1) * wide(labels)).sum(-1).to(self.dtype)


def npu_softmax_cross_entropy_with_logits_backward(grad: Tensor, self: Tensor, labels: Tensor) -> Tensor:
    """The gradient of self."""
    operator = "npu_softmax_cross_entropy_with_logits_backward"
    check_float(operator, grad=grad, self=self, labels=labels)
    check_shape(operator, "labels", labels, self.shape, "self")
    check_shape(operator, "grad", grad, self.shape[:-1], "a number for each row of self")
    probabilities = wide(labels)
    slope = torch.softmax(wide(self), -1) * probabilities.sum(-1, keepdim=True) - probabilities
    return (slope * wide(grad).unsqueeze(-1)).to(self.dtype)
