"""The dtype of the arithmetic: float32 for 16-bit tensors. Results are rounded once."""

from __future__ import annotations

import torch
from torch import Tensor

from descend.npu.composed.refusal import refuse

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def wide(tensor: Tensor) -> Tensor:
    """The tensor in the dtype of the arithmetic: float32 for 16 bits, else its own."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def check_float(operator: str, **tensors: Tensor | None) -> None:
    """Refuses tensors that are not floating-point."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype not in FLOATS:
            refuse(operator, name, tensor.dtype, "must be float16, bfloat16, float32 or float64")


def check_alike(operator: str, first: str, like: Tensor, **tensors: Tensor | None) -> None:
    """Refuses tensors that are not floating-point, and those that are computed in another dtype than ``first``."""
    check_float(operator, **{first: like}, **tensors)
    for name, tensor in tensors.items():
        if tensor is not None and (tensor.dtype == torch.float64) != (like.dtype == torch.float64):
            refuse(
                operator,
                name,
                tensor.dtype,
                f"must be float64 where {first} is, and only there: {first} is {like.dtype}",
            )


def check_shape(operator: str, name: str, tensor: Tensor, shape: tuple[int, ...] | list[int], whose: str) -> None:
    """Refuses a tensor that has not this shape. ``whose`` says in the message where the shape comes from."""
    if list(tensor.shape) != list(shape):
        refuse(operator, name, f"of shape {list(tensor.shape)}", f"must have that of {whose}, {list(shape)}")
