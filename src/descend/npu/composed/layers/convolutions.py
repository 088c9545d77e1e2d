"""Convolutions by torch_npu's own names, and their gradients: npu_conv2d, npu_conv3d, npu_convolution and others.

They are PyTorch's convolution and convolution_backward. The numbers of a call are stride, padding, dilation and groups;
of a transposed one padding, output_padding, stride, dilation and groups. A gradient has output_mask behind them.

A padding has a number for each direction; more numbers must repeat these, since torch_npu does not read them.

Documents: torch_npu.npu_conv2d, npu_conv3d, npu_conv_transpose2d.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_alike, check_float, check_shape, wide
from descend.npu.composed.refusal import refuse

Three = tuple[Tensor | None, Tensor | None, Tensor | None]
Numbers = Sequence[int]


def npu_conv2d(input: Tensor, weight: Tensor, bias: Tensor | None, *numbers: Any) -> Tensor:
    """Of an input [N, C, H, W] with filters [O, C / groups, KH, KW]."""
    return _convolve("npu_conv2d", 2, input, weight, bias, *numbers)


def npu_conv2d_out(*given: Any, out: Tensor) -> Tensor:
    """`npu_conv2d`, written to ``out``."""
    result = npu_conv2d(*given)
    return out.resize_(result.shape).copy_(result)


def npu_conv3d(input: Tensor, weight: Tensor, bias: Tensor | None, *numbers: Any) -> Tensor:
    """Of an input [N, C, D, H, W] with filters [O, C / groups, KD, KH, KW]."""
    return _convolve("npu_conv3d", 3, input, weight, bias, *numbers)


def npu_conv3d_out(*given: Any, out: Tensor) -> Tensor:
    """`npu_conv3d`, written to ``out``."""
    result = npu_conv3d(*given)
    return out.resize_(result.shape).copy_(result)


def npu_convolution(input: Tensor, weight: Tensor, bias: Tensor | None, *numbers: Any) -> Tensor:
    """Along one, two or three directions."""
    return _convolve("npu_convolution", 0, input, weight, bias, *numbers)


def npu_conv_transpose2d(input: Tensor, weight: Tensor, bias: Tensor | None, *numbers: Any) -> Tensor:
    """Transposed, of an input [N, C, H, W] with filters [C, O / groups, KH, KW]."""
    return _convolve("npu_conv_transpose2d", 2, input, weight, bias, *_transposed(*numbers))


def npu_convolution_transpose(input: Tensor, weight: Tensor, bias: Tensor | None, *numbers: Any) -> Tensor:
    """Transposed, along one, two or three directions."""
    return _convolve("npu_convolution_transpose", 0, input, weight, bias, *_transposed(*numbers))


def npu_conv2d_backward(input: Tensor, grad: Tensor, weight: Tensor, *numbers: Any) -> Three:
    """The gradients of input, weight and bias, of which output_mask asks for some."""
    return _gradients("npu_conv2d_backward", 2, input, grad, weight, *numbers)


def npu_conv3d_backward(input: Tensor, grad: Tensor, weight: Tensor, *numbers: Any) -> Three:
    """As `npu_conv2d_backward`."""
    return _gradients("npu_conv3d_backward", 3, input, grad, weight, *numbers)


def npu_convolution_backward(input: Tensor, grad: Tensor, weight: Tensor, *numbers: Any) -> Three:
    """As `npu_conv2d_backward`."""
    return _gradients("npu_convolution_backward", 0, input, grad, weight, *numbers)


def npu_conv_transpose2d_backward(input: Tensor, grad: Tensor, weight: Tensor, *numbers: Any) -> Three:
    """As `npu_conv2d_backward`."""
    return _gradients("npu_conv_transpose2d_backward", 2, input, grad, weight, *_transposed(*numbers))


def npu_conv_transpose3d_backward(input: Tensor, grad: Tensor, weight: Tensor, *numbers: Any) -> Three:
    """As `npu_conv2d_backward`."""
    return _gradients("npu_conv_transpose3d_backward", 3, input, grad, weight, *_transposed(*numbers))


def npu_convolution_transpose_backward(input: Tensor, grad: Tensor, weight: Tensor, *numbers: Any) -> Three:
    """As `npu_conv2d_backward`."""
    return _gradients("npu_convolution_transpose_backward", 0, input, grad, weight, *_transposed(*numbers))


def _transposed(
    padding: Numbers, output_padding: Numbers, stride: Numbers, dilation: Numbers, groups: int, *mask: Sequence[bool]
) -> tuple[Any, ...]:
    """The numbers of a transposed convolution, in the order of the others."""
    return stride, padding, dilation, groups, *mask, output_padding


def _convolve(
    operator: str,
    directions: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    groups: int,
    output_padding: Numbers | None = None,
) -> Tensor:
    numbers = _checked(operator, directions, input, weight, stride, padding, dilation, groups, output_padding)
    outputs = weight.shape[0] if output_padding is None else weight.shape[1] * groups
    check_alike(operator, "input", input, weight=weight, bias=bias)
    if bias is not None:
        check_shape(operator, "bias", bias, [outputs], "the results of weight")
    x = wide(input)
    added = None if bias is None else bias.to(x.dtype)
    result: Tensor = torch.ops.aten.convolution(x, weight.to(x.dtype), added, *numbers, groups)
    return result.to(input.dtype)


def _gradients(
    operator: str,
    directions: int,
    input: Tensor,
    grad: Tensor,
    weight: Tensor,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    groups: int,
    mask: Sequence[bool],
    output_padding: Numbers | None = None,
) -> Three:
    numbers = _checked(operator, directions, input, weight, stride, padding, dilation, groups, output_padding)
    check_alike(operator, "input", input, weight=weight, grad=grad)
    outputs = weight.shape[0] if output_padding is None else weight.shape[1] * groups
    x = wide(input)
    gradients = torch.ops.aten.convolution_backward(
        grad.to(x.dtype), x, weight.to(x.dtype), [outputs], *numbers, groups, list(mask)
    )
    dtypes = (input.dtype, weight.dtype, grad.dtype)
    one, two, three = (None if t is None else t.to(dtype) for t, dtype in zip(gradients, dtypes, strict=True))
    return one, two, three


def _checked(
    operator: str,
    directions: int,
    input: Tensor,
    weight: Tensor,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    groups: int,
    output_padding: Numbers | None,
) -> tuple[list[int], list[int], list[int], bool, list[int]]:
    """Stride, padding, dilation, whether it is transposed, and output_padding, for PyTorch."""
    check_float(operator, input=input, weight=weight)
    count = directions or weight.dim() - 2
    if count not in (1, 2, 3) or weight.dim() != count + 2:
        refuse(
            operator,
            "weight",
            f"of shape {list(weight.shape)}",
            f"must have {count + 2 if count > 0 else 3} dimensions",
        )
    if input.dim() != weight.dim():
        refuse(operator, "input", f"of shape {list(input.shape)}", f"must have {weight.dim()} dimensions, as weight")
    channels = input.shape[1]
    if groups < 1 or weight.shape[0] % groups or channels % groups:
        refuse(operator, "groups", groups, f"must divide {channels} channels and {weight.shape[0]} filters")
    wanted = channels // groups if output_padding is None else channels
    if weight.shape[1 if output_padding is None else 0] != wanted:
        refuse(operator, "weight", f"of shape {list(weight.shape)}", f"must fit {channels} channels in {groups} groups")
    found = []
    for name, numbers, least in (
        ("stride", stride, 1),
        ("padding", padding, 0),
        ("dilation", dilation, 1),
        ("output_padding", output_padding or [0] * count, 0),
    ):
        own = list(numbers) * count if len(numbers) == 1 else list(numbers)
        if len(own) < count or min(own) < least or own[count:] not in ([], own[:count]):
            refuse(operator, name, list(numbers), f"must be {count} numbers from {least} on")
        found.append(own[:count])
    return found[0], found[1], found[2], output_padding is not None, found[3]
