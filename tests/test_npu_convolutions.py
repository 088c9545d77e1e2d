"""Convolutions by torch_npu's names: against PyTorch's in float64, with gradients; refusals."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed.layers import convolutions  # noqa: E402
from test_npu_composed import FLOATS, near, refused  # noqa: E402

Tensor = Any
PLAIN = [
    ("npu_conv2d", "npu_conv2d_backward", 2),
    ("npu_conv3d", "npu_conv3d_backward", 3),
    *(("npu_convolution", "npu_convolution_backward", count) for count in (1, 2, 3)),
]
TURNED = [
    ("npu_conv_transpose2d", "npu_conv_transpose2d_backward", 2),
    ("npu_convolution_transpose", "npu_conv_transpose3d_backward", 3),
    *(("npu_convolution_transpose", "npu_convolution_transpose_backward", count) for count in (1, 2, 3)),
]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("name", "backward", "count", "turned"), [*((*p, False) for p in PLAIN), *((*t, True) for t in TURNED)]
)
@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions(dtype: Any, name: str, backward: str, count: int, turned: bool, groups: int) -> None:
    stride, padding, dilation, more = ([2, 1, 2][:count], [1, 0, 1][:count], [1, 2, 1][:count], [1, 0, 1][:count])
    x = torch.randn(2, 4, *[5, 6, 4][:count]).to(dtype)
    filters = (4, 6 // groups) if turned else (6, 4 // groups)
    weight, bias = torch.randn(*filters, *[2, 3, 2][:count]).to(dtype), torch.randn(6).to(dtype)
    leaves = [t.double().requires_grad_() for t in (x, weight, bias)]
    functional = torch.nn.functional
    plain = [functional.conv1d, functional.conv2d, functional.conv3d][count - 1]
    transposed = [functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d][count - 1]
    if turned:
        wanted = transposed(*leaves, stride, padding, more, groups, dilation)
        rest = (padding, more, stride, dilation, groups)
    else:
        wanted = plain(*leaves, stride, padding, dilation, groups)
        rest = (stride, padding, dilation, groups)
    near(getattr(convolutions, name)(x, weight, bias, *rest), wanted.detach(), size=10.0)
    without = wanted.detach() - bias.double().view(-1, *[1] * count)
    near(getattr(convolutions, name)(x, weight, None, *rest), without, size=10.0)
    dy = torch.randn(wanted.shape).to(dtype)
    gradients = torch.autograd.grad(wanted, leaves, dy.double())
    found = getattr(convolutions, backward)(x, dy, weight, *rest, [True, True, True])
    for one, other in zip(found, gradients, strict=True):
        near(one, other, size=20.0)
    assert [t is None for t in getattr(convolutions, backward)(x, dy, weight, *rest, [False, True, False])] == [
        True,
        False,
        True,
    ]


def test_results_that_are_given_and_refusals() -> None:
    x, weight = torch.randn(1, 4, 5, 5), torch.randn(2, 4, 3, 3)
    one = ([1, 1], [0, 0, 0, 0], [1, 1], 1)
    out = torch.empty(0)
    wanted = convolutions.npu_conv2d(x, weight, None, *one)
    assert convolutions.npu_conv2d_out(x, weight, None, *one, out=out) is out
    assert torch.equal(out, wanted)
    deep, filters = x.unsqueeze(2), weight.unsqueeze(2)
    assert convolutions.npu_conv3d_out(deep, filters, None, [1], [0], [1], 1, out=out).shape == (1, 2, 1, 3, 3)
    refused("weight is of shape [2, 4, 3, 3]", convolutions.npu_conv3d, deep, weight, None, *one)
    refused("input is of shape [4, 5, 5]", convolutions.npu_conv2d, x[0], weight, None, *one)
    refused("groups is 3", convolutions.npu_conv2d, x, weight, None, *one[:3], 3)
    refused("must fit 4 channels in 2 groups", convolutions.npu_conv2d, x, weight, None, *one[:3], 2)
    refused("bias is of shape [4]", convolutions.npu_conv2d, x, weight, torch.ones(4), *one)
    refused("padding is [0, 1, 0, 0]", convolutions.npu_conv2d, x, weight, None, [1, 1], [0, 1, 0, 0], [1, 1], 1)
    refused("stride is [0, 1]", convolutions.npu_conv2d, x, weight, None, [0, 1], [0, 0], [1, 1], 1)
    refused("weight is torch.int64", convolutions.npu_conv2d, x, weight.long(), None, *one)


def test_on_the_device() -> None:
    npu = pytest.importorskip("torch_npu")
    x, weight, bias = (torch.randn(shape, dtype=torch.float64) for shape in ((1, 4, 5, 5), (2, 4, 3, 3), (2,)))
    leaves = [t.npu().requires_grad_() for t in (x, weight, bias)]
    rest = ([1, 1], [1, 1], [1, 1], 1)
    assert torch.autograd.gradcheck(lambda *given: npu.npu_convolution(*given, *rest), leaves, fast_mode=True)
    turned = [leaves[0], weight.transpose(0, 1).contiguous().npu().requires_grad_(), leaves[2]]
    back = ([1, 1], [0, 0], [1, 1], [1, 1], 1)
    assert torch.autograd.gradcheck(lambda *given: npu.npu_convolution_transpose(*given, *back), turned, fast_mode=True)
    plain = [t.detach() for t in leaves]
    near(npu.npu_conv2d(*plain, *rest).cpu(), torch.nn.functional.conv2d(x, weight, bias, padding=1))
    assert npu.npu_conv2d_backward(plain[0], torch.ones(1, 2, 5, 5).double().npu(), plain[1], *rest, [True] * 3)[
        2
    ].tolist() == [25, 25]
