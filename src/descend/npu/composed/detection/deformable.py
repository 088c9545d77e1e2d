"""npu_deformable_conv2d and its gradient: a convolution whose points are moved by offsets, and may be weighted.

    y, x   = oh * stride - padding + kh * dilation + offset_y, the same of the columns
    sample = mask * self(y, x), interpolated between the four nearest pixels; what is outside counts as 0
    result = the convolution of the samples [N, C, OH * KH, OW * KW] with stride (KH, KW)

offset has x, y, and if modulated mask: [N, 3 or 2 * deformable_groups * KH * KW, OH, OW] each.

Document: torch_npu.npu_deformable_conv2d; op-plugin's test has the order of the offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_float, check_shape, wide
from descend.npu.composed.derivatives import derivatives
from descend.npu.composed.refusal import refuse


class Places(NamedTuple):
    """Which points of the input a result is made of."""

    kernel_size: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int
    deformable_groups: int
    modulated: bool


def npu_deformable_conv2d(
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    bias: Tensor | None,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] = (1, 1, 1, 1),
    groups: int = 1,
    deformable_groups: int = 1,
    modulated: bool = True,
) -> tuple[Tensor, Tensor]:
    """The result [N, O, OH, OW] and the samples, both in float32, or float64 of such an input.

    ``stride`` and ``dilation`` are for N, C, H, W; ``padding`` is at the top, the bottom, the left, the right.
    """
    operator = "npu_deformable_conv2d"
    check_float(operator, input=input, weight=weight, offset=offset, bias=bias)
    places = Places(kernel_size, stride, padding, dilation, groups, deformable_groups, modulated)
    _check(operator, input, weight, offset, places)
    x, filters = wide(input), wide(weight)
    samples = _samples(x, wide(offset).to(x.dtype), places)
    added = None if bias is None else wide(bias).to(x.dtype)
    result = torch.nn.functional.conv2d(samples, filters.to(x.dtype), added, list(kernel_size), groups=groups)
    return result, samples


def npu_deformable_conv2dbk(
    input: Tensor,
    grad_output: Tensor,
    offset_out: Tensor,
    weight: Tensor,
    offset: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] = (1, 1, 1, 1),
    groups: int = 1,
    deformable_groups: int = 1,
    modulated: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of input, weight, offset and bias. ``offset_out`` are the samples, the second result."""
    operator = "npu_deformable_conv2dbk"
    check_float(operator, input=input, grad_output=grad_output, offset_out=offset_out, weight=weight, offset=offset)
    places = Places(kernel_size, stride, padding, dilation, groups, deformable_groups, modulated)
    height, width = _check(operator, input, weight, offset, places)
    x = wide(input)
    check_shape(operator, "grad_output", grad_output, [len(x), len(weight), height, width], "the result")
    sizes = [len(x), x.shape[1], height * kernel_size[0], width * kernel_size[1]]
    check_shape(operator, "offset_out", offset_out, sizes, "the samples")
    dy, samples, filters, moves = (wide(t).to(x.dtype) for t in (grad_output, offset_out, weight, offset))
    steps = list(kernel_size)
    of_samples, of_weight, of_bias = torch.ops.aten.convolution_backward(
        dy, samples, filters, [len(weight)], steps, [0, 0], [1, 1], False, [0, 0], groups, [True, True, True]
    )
    of_input, of_offset = derivatives(lambda x, moves: _samples(x, moves, places), [x, moves], [of_samples])
    assert of_input is not None
    assert of_offset is not None
    return of_input, of_weight, of_offset, of_bias


def _check(operator: str, input: Tensor, weight: Tensor, offset: Tensor, places: Places) -> tuple[int, int]:
    """The height and width of the result."""
    kernel_size, stride, padding, dilation, groups, deformable_groups, modulated = places
    for name, tensor in (("input", input), ("weight", weight)):
        if tensor.dim() != 4:
            refuse(operator, name, f"of shape {list(tensor.shape)}", "must have 4 dimensions")
    for name, numbers, count, least in (
        ("kernel_size", kernel_size, 2, 1),
        ("stride", stride, 4, 1),
        ("padding", padding, 4, 0),
        ("dilation", dilation, 4, 1),
    ):
        if len(numbers) != count or min(numbers) < least:
            refuse(operator, name, list(numbers), f"must be {count} numbers from {least} on")
    channels = input.shape[1]
    if groups < 1 or channels % groups or len(weight) % groups:
        refuse(operator, "groups", groups, f"must divide {channels} channels and {len(weight)} results")
    if deformable_groups < 1 or channels % deformable_groups:
        refuse(operator, "deformable_groups", deformable_groups, f"must divide {channels} channels")
    check_shape(operator, "weight", weight, [len(weight), channels // groups, *kernel_size], "groups and kernel_size")
    height, width = (
        (input.shape[2 + i] + sum(padding[2 * i : 2 * i + 2]) - (kernel_size[i] - 1) * dilation[2 + i] - 1)
        // stride[2 + i]
        + 1
        for i in (0, 1)
    )
    each = deformable_groups * kernel_size[0] * kernel_size[1] * (3 if modulated else 2)
    check_shape(operator, "offset", offset, [len(input), each, height, width], "the places of the result")
    return height, width


def _samples(x: Tensor, offset: Tensor, places: Places) -> Tensor:
    """[N, C, OH * KH, OW * KW]."""
    kernel_size, stride, padding, dilation, _, deformable_groups, modulated = places
    images, channels, height, width = x.shape
    out_height, out_width = offset.shape[2:]
    kinds = 3 if modulated else 2
    moves = offset.contiguous().view(images, kinds, deformable_groups, *kernel_size, out_height, out_width)
    top, left = (
        torch.arange(kernel_size[i]).view(-1, *[1] * (3 - i)) * dilation[2 + i]
        + torch.arange(out).view(-1, *[1] * (1 - i)) * stride[2 + i]
        - padding[2 * i]
        for i, out in ((0, out_height), (1, out_width))
    )
    across, down = moves[:, 0] + left, moves[:, 1] + top
    maps = x.reshape(images * deformable_groups, channels // deformable_groups, height * width)
    shape = (images * deformable_groups, 1, kernel_size[0] * kernel_size[1] * out_height * out_width)
    result: Tensor | None = None
    low_down, low_across = down.detach().floor(), across.detach().floor()
    for row, of_row in ((low_down, 1 - (down - low_down)), (low_down + 1, down - low_down)):
        for column, of_column in ((low_across, 1 - (across - low_across)), (low_across + 1, across - low_across)):
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            at = [each.masked_fill(~inside, 0).long() for each in (row, column)]
            place = (at[0] * width + at[1]).view(shape)
            value = maps.gather(2, place.expand(-1, maps.shape[1], -1))
            term = value * (of_row * of_column * inside).view(shape)
            result = term if result is None else result + term
    assert result is not None
    if modulated:
        result = result * moves[:, 2].reshape(shape)
    # The order is kernel rows, kernel columns, rows, columns; the convolution reads rows with their kernel rows.
    apart = result.view(images, channels, *kernel_size, out_height, out_width)
    return apart.permute(0, 1, 4, 2, 5, 3).reshape(
        images, channels, out_height * kernel_size[0], out_width * kernel_size[1]
    )
