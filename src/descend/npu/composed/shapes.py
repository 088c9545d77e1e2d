"""npu_confusion_transpose, npu_dtype_cast and their gradients.

    transpose_first: x.permute(perm).reshape(shape); else: x.reshape(shape).permute(perm)

Documents: torch_npu.npu_confusion_transpose, npu_dtype_cast.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_dtype, check_float
from descend.npu.composed.formats import E1M2, E2M1, E4M3, E5M2, HIF8, as_float, cast, unpacked
from descend.npu.composed.refusal import refuse

DTYPES = (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64,
    torch.complex32, torch.complex64, torch.complex128, torch.bool,
)  # fmt: skip
"""PyTorch's dtypes by their numbers, up to the first gap in the numbers."""
BFLOAT16 = 15
FORMATS = {23: E5M2, 24: E4M3, 45: E2M1, 290: HIF8, 291: E5M2, 292: E4M3, 296: E2M1, 297: E1M2}
"""The formats of 8 and 4 bits by the numbers of PyTorch and torch_npu."""


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
        "must be the number of a dtype of PyTorch without quantization: 0 to 11 or 15, or a format of 8 or 4 bits",
    )
