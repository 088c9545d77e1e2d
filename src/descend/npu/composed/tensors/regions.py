"""Parts of tensors: npu_indexing, npu_stride_copy, npu_masked_fill_range; and bits of signs.

Documents: torch_npu.npu_indexing, npu_sign_bits_pack, npu_sign_bits_unpack; op-plugin's tests.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_float, check_integer, check_shape
from descend.npu.composed.refusal import refuse


def npu_indexing(
    self: Tensor,
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int],
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
) -> Tensor:
    """A copy of self[begin:end:strides], as TensorFlow's strided_slice. Bits of the masks stand for places in these."""
    operator = "npu_indexing"
    if not len(begin) == len(end) == len(strides):
        got = f"{list(begin)}, {list(end)} and {list(strides)}"
        refuse(operator, "begin, end and strides", got, "must have as many numbers each")
    if any(not stride for stride in strides):
        refuse(operator, "strides", list(strides), "must not be 0")
    if ellipsis_mask.bit_count() > 1:
        refuse(operator, "ellipsis_mask", ellipsis_mask, "must have one bit at most")
    used = sum(1 for i in range(len(begin)) if not (ellipsis_mask | new_axis_mask) >> i & 1)
    if used > self.dim():
        refuse(operator, "begin", list(begin), f"must name at most {self.dim()} dimensions, those of self")
    result, axis = self, 0
    for i, (first, last, stride) in enumerate(zip(begin, end, strides, strict=True)):
        if ellipsis_mask >> i & 1:
            axis += self.dim() - used
        elif new_axis_mask >> i & 1:
            result = result.unsqueeze(axis)
            axis += 1
        elif shrink_axis_mask >> i & 1:
            size = result.shape[axis]
            if not -size <= first < size:
                refuse(operator, "begin", list(begin), f"must be within dimension {i}, of {size}")
            result = result.select(axis, first)
        else:
            span = range(*slice(
                None if begin_mask >> i & 1 else first, None if end_mask >> i & 1 else last, stride
            ).indices(result.shape[axis]))  # fmt: skip
            result = result.index_select(axis, torch.tensor(span, dtype=torch.int64))
            axis += 1
    return result.clone(memory_format=torch.contiguous_format)


def npu_indexing_out(
    self: Tensor,
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int],
    *masks: int,
    out: Tensor,
    **named: int,
) -> Tensor:
    """`npu_indexing`, written to ``out``."""
    result = npu_indexing(self, begin, end, strides, *masks, **named)
    return out.resize_(result.shape).copy_(result)


def npu_stride_copy(self: Tensor, shape: Sequence[int], stride: Sequence[int], storage_offset: int) -> Tensor:
    """A copy of torch.as_strided."""
    operator = "npu_stride_copy"
    offset = int(storage_offset)
    if len(shape) != len(stride) or min([*shape, *stride, offset], default=0) < 0:
        got = f"{list(shape)}, {list(stride)} and {offset}"
        refuse(operator, "shape, stride and storage_offset", got, "must fit each other, none negative")
    end = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) + 1
    held = self.untyped_storage().nbytes() // self.element_size()
    if 0 not in shape and end > held:
        refuse(
            operator, "shape, stride and storage_offset", f"up to {end}", f"must lie in the {held} numbers there are"
        )
    return self.as_strided(list(shape), list(stride), offset).clone(memory_format=torch.contiguous_format)


def npu_stride_copy_out(
    self: Tensor, shape: Sequence[int], stride: Sequence[int], storage_offset: int, *, out: Tensor
) -> Tensor:
    """`npu_stride_copy`, written to ``out``."""
    result = npu_stride_copy(self, shape, stride, storage_offset)
    return out.resize_(result.shape).copy_(result)


def npu_masked_fill_range(self: Tensor, start: Tensor, end: Tensor, value: Tensor, axis: int = -1) -> Tensor:
    """A copy with ``value[i]`` along ``axis`` from start[i, j] to end[i, j], which are [loops, N].

    Along the last of several dimensions a range j is for row j of the first dimension alone.
    """
    operator = "npu_masked_fill_range"
    for name, tensor in (("start", start), ("end", end)):
        check_integer(operator, name, tensor)
    if start.dim() != 2:
        refuse(operator, "start", f"of shape {list(start.shape)}", "must have 2 dimensions")
    check_shape(operator, "end", end, start.shape, "start")
    check_shape(operator, "value", value, [len(start)], "the rows of start")
    if not 1 <= self.dim() <= 3 or not -self.dim() <= axis < self.dim():
        refuse(operator, "axis", axis, f"must be a dimension of self, of 1 to 3; it has {self.dim()}")
    axis %= self.dim()
    own = self.dim() > 1 and axis == self.dim() - 1
    if own and start.shape[1] > len(self):
        refuse(
            operator, "start", f"of shape {list(start.shape)}", f"must have at most {len(self)} columns, rows of self"
        )
    result = self.clone(memory_format=torch.contiguous_format)
    for i, (first, last) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        for j, (low, high) in enumerate(zip(first, last, strict=True)):
            if not 0 <= low <= max(low, high) <= self.shape[axis]:
                refuse(operator, "start and end", f"{low} and {high}", f"must be from 0 to {self.shape[axis]}")
            part = (
                result[j].narrow(-1, low, max(0, high - low)) if own else result.narrow(axis, low, max(0, high - low))
            )
            part.fill_(value[i].item())
    return result


def npu_sign_bits_pack(self: Tensor, size: int) -> Tensor:
    """uint8 [``size``, ...]: a bit for each number, 1 where it is not negative, the first in the lowest bit."""
    operator = "npu_sign_bits_pack"
    check_float(operator, self=self)
    if self.dim() != 1:
        refuse(operator, "self", f"of shape {list(self.shape)}", "must have 1 dimension")
    count = -(-len(self) // 8)
    _check_size(operator, size, count)
    bits = torch.zeros(count * 8, dtype=torch.uint8)
    bits[: len(self)] = self >= 0
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)
    return (bits.view(-1, 8) * weights).sum(1, dtype=torch.uint8).view(size, -1)


def npu_sign_bits_unpack(input: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """[``size``, ...]: for each bit 1 or -1, in float16 or float32."""
    operator = "npu_sign_bits_unpack"
    if input.dtype != torch.uint8 or input.dim() != 1:
        got = f"{input.dtype} of shape {list(input.shape)}"
        refuse(operator, "input", got, "must be uint8, of 1 dimension")
    if dtype not in (torch.float16, torch.float32):
        refuse(operator, "dtype", dtype, "must be float16 or float32")
    _check_size(operator, size, len(input) * 8)
    bits = (input.unsqueeze(1) >> torch.arange(8, dtype=torch.uint8)) & 1
    return (bits.to(dtype) * 2 - 1).view(size, -1)


def _check_size(operator: str, size: int, count: int) -> None:
    if size < 1 or count % size:
        refuse(operator, "size", size, f"must divide the {count} numbers of the result")
