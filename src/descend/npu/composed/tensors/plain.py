"""Operators of torch_npu that PyTorch has under other names: shapes, dtypes, copies of parts, extremes.

    npu_confusion_transpose: x.permute(perm).reshape(shape) if transpose_first, else x.reshape(shape).permute(perm)

Documents: torch_npu.npu_confusion_transpose, npu_dtype_cast, npu_slice, npu_transpose, npu_broadcast, npu_pad,
npu_one_hot, npu_max, npu_min, npu_sort_v2.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from descend.npu.composed.arithmetic import check_dtype, check_float
from descend.npu.composed.quantised.formats import E1M2, E2M1, E4M3, E5M2, HIF8, NUMBERS, as_float, cast, unpacked
from descend.npu.composed.refusal import refuse

DTYPES = (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64,
    torch.complex32, torch.complex64, torch.complex128, torch.bool,
)  # fmt: skip
"""PyTorch's dtypes by their numbers, up to the first gap in the numbers."""
BFLOAT16 = 15
FORMATS = {number: each for number, each in NUMBERS.items() if each in (E5M2, E4M3, HIF8, E2M1, E1M2)}
"""The floating formats of 8 and 4 bits, by the numbers of PyTorch and torch_npu."""


def npu_slice(self: Tensor, offsets: Sequence[int], size: Sequence[int]) -> Tensor:
    """A copy of the part of ``size`` that begins at ``offsets``."""
    if not len(offsets) == len(size) == self.dim():
        refuse(
            "npu_slice", "offsets or size", f"{list(offsets)} and {list(size)}", f"must have {self.dim()} numbers each"
        )
    for offset, length, whole in zip(offsets, size, self.shape, strict=True):
        if not 0 <= offset <= offset + length <= whole:
            rule = f"must lie in self, of shape {list(self.shape)}"
            refuse("npu_slice", "the part", f"{list(size)} from {list(offsets)}", rule)
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


def npu_confusion_transpose(self: Tensor, perm: Sequence[int], shape: Sequence[int], transpose_first: bool) -> Tensor:
    """A transposition and a reshape in one. The result is contiguous."""
    operator = "npu_confusion_transpose"
    rank = self.dim() if transpose_first else len(shape)
    _check_perm(operator, perm, rank)
    if prod(shape) != self.numel() or any(size < 0 for size in shape):
        refuse(operator, "shape", list(shape), f"must hold {self.numel()} numbers, as self of shape {list(self.shape)}")
    moved = self.permute(*perm).reshape(*shape) if transpose_first else self.reshape(*shape).permute(*perm)
    return moved.clone(memory_format=torch.contiguous_format)


def npu_confusion_transpose_backward(
    grad: Tensor, perm: Sequence[int], shape: Sequence[int], transpose_first: bool
) -> Tensor:
    """The gradient: ``shape`` is that of the forward's self, ``transpose_first`` the opposite of the forward's."""
    operator = "npu_confusion_transpose_backward"
    rank = grad.dim() if transpose_first else len(shape)
    _check_perm(operator, perm, rank)
    if prod(shape) != grad.numel():
        refuse(operator, "shape", list(shape), f"must hold {grad.numel()} numbers, as grad of shape {list(grad.shape)}")
    back = sorted(range(rank), key=lambda axis: perm[axis])
    if transpose_first:
        moved = grad.permute(*back).reshape(*shape)
    else:
        moved = grad.reshape([shape[axis] for axis in perm]).permute(*back)
    return moved.clone(memory_format=torch.contiguous_format)


def _check_perm(operator: str, perm: Sequence[int], rank: int) -> None:
    if sorted(perm) != list(range(rank)):
        refuse(operator, "perm", list(perm), f"must hold each of the {rank} dimensions once")


def npu_dtype_cast(self: Tensor, dtype: int, input_dtype: int | None = None) -> Tensor:
    """``self`` in another dtype, given by its number: one of PyTorch, or a format of 8 or 4 bits of torch_npu.

    ``input_dtype`` says that self holds numbers of such a format. Those of 4 bits are packed, two in a byte.
    """
    operator = "npu_dtype_cast"
    to = FORMATS.get(dtype)
    if input_dtype in FORMATS:
        held = FORMATS[input_dtype]
        check_dtype(operator, "input", self, held.dtype)
        self = as_float(unpacked(self, held), held)
    elif input_dtype is not None and _dtype(operator, "input_dtype", input_dtype) != self.dtype:
        refuse(operator, "input_dtype", input_dtype, f"must be that of input, {self.dtype}, or a format of 8 or 4 bits")
    if to is None:
        return self.to(_dtype(operator, "dtype", dtype), copy=True)
    check_float(operator, input=self)
    if to.packed > 1 and (not self.dim() or self.shape[-1] % to.packed):
        rule = f"must have a last dimension of {to.packed} * n for {to.name}"
        refuse(operator, "input", f"of shape {list(self.shape)}", rule)
    return cast(self, to)


def npu_dtype_cast_backward(
    grad: Tensor, dtype: torch.dtype, grad_dtype: int | None = None, input_dtype: int | None = None
) -> Tensor:
    """The gradient in the dtype that self had."""
    if input_dtype is not None:
        refuse("npu_dtype_cast_backward", "input_dtype", input_dtype, "must be None: it is not served")
    return grad.to(dtype, copy=True)


def _npu_dtype_cast(self: Tensor, dtype: torch.dtype) -> Tensor:
    return self.to(dtype, copy=True)


def _npu_dtype_cast_backward(grad: Tensor, dtype: torch.dtype) -> Tensor:
    return grad.to(dtype, copy=True)


def npu_dtype_cast_(self: Tensor, src: Tensor) -> Tensor:
    """Writes ``src`` into ``self``, in self's dtype."""
    return self.copy_(src)


def _dtype(operator: str, name: str, number: int) -> torch.dtype:
    if 0 <= number < len(DTYPES):
        return DTYPES[number]
    if number == BFLOAT16:
        return torch.bfloat16
    refuse(
        operator,
        name,
        number,
        "must be the number of a dtype of PyTorch without quantisation: 0 to 11 or 15, or a format of 8 or 4 bits",
    )
