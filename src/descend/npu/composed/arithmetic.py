"""The dtype of the arithmetic: float32 for 16 bits, and results are rounded once. Checks of dtypes and shapes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from descend.npu.composed.refusal import refuse

HALVES = (torch.float16, torch.bfloat16)
FLOATS_TO_32 = (*HALVES, torch.float32)
FLOATS = (*FLOATS_TO_32, torch.float64)
INTEGERS = (torch.int32, torch.int64)


def wide(tensor: Tensor) -> Tensor:
    """The tensor in the dtype of the arithmetic: float32 for 16 bits, else its own."""
    return tensor.float() if tensor.dtype in HALVES else tensor


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """PyTorch's gelu, but x itself above 16: of infinity PyTorch gives NaN where it computes vectors of float32."""
    return torch.where(x > 16, x, functional.gelu(x, approximate=approximate))


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


def check_dtype(operator: str, name: str, tensor: Tensor, *dtypes: torch.dtype) -> None:
    """Refuses a tensor of another dtype than these."""
    if tensor.dtype not in dtypes:
        *most, last = (str(dtype).removeprefix("torch.") for dtype in dtypes)
        refuse(operator, name, tensor.dtype, f"must be {', '.join(most)} or {last}" if most else f"must be {last}")


def check_choice(operator: str, name: str, value: object, *served: object) -> None:
    """Refuses a value other than these."""
    if value not in served:
        refuse(operator, name, repr(value), f"must be {' or '.join(map(repr, served))}")


def check_integer(operator: str, name: str, tensor: Tensor) -> None:
    """Refuses a tensor of another dtype than an index may have."""
    check_dtype(operator, name, tensor, *INTEGERS)


def check_within(operator: str, name: str, indices: Tensor, end: int, rule: str, begin: int = 0) -> None:
    """Refuses indices of which one is below ``begin``, or not below ``end``."""
    if not indices.numel():
        return
    least, most = int(indices.min()), int(indices.max())
    if not begin <= least <= most < end:
        refuse(operator, name, f"from {least} to {most}", rule)


def check_one(operator: str, name: str, tensor: Tensor) -> None:
    """Refuses a tensor of more or fewer numbers than one."""
    if tensor.numel() != 1:
        refuse(operator, name, f"of shape {list(tensor.shape)}", "must have one number")


def check_together(operator: str, **tensors: Tensor | None) -> None:
    """Refuses two tensors of which only one is given."""
    if len({tensor is None for tensor in tensors.values()}) > 1:
        refuse(operator, " or ".join(tensors), "None", "both or neither must be given")


def broadcast(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two shapes broadcast."""
    return all(a == b or 1 in (a, b) for a, b in zip(reversed(one), reversed(other), strict=False))


def check_batches(operator: str, name: str, tensor: Tensor, other: Tensor, whose: str) -> None:
    """Refuses a factor whose batches, its dimensions before the last two, do not broadcast with those of another."""
    if not broadcast(tensor.shape[:-2], other.shape[:-2]):
        rule = f"must have batches that broadcast with those of {whose}, {list(other.shape[:-2])}"
        refuse(operator, name, f"of shape {list(tensor.shape)}", rule)


def check_shape(operator: str, name: str, tensor: Tensor, shape: tuple[int, ...] | list[int], whose: str) -> None:
    """Refuses a tensor that has not this shape. ``whose`` says in the message where the shape comes from."""
    if list(tensor.shape) != list(shape):
        refuse(operator, name, f"of shape {list(tensor.shape)}", f"must have that of {whose}, {list(shape)}")
