"""npu_fast_gelu, npu_mish, npu_silu and their gradients.

    fast_gelu(x) = x / (1 + exp(-1.702 * x))
    mish(x)      = x * tanh(log(1 + exp(x)))
    silu(x)      = x / (1 + exp(-x))

Documents: torch_npu.npu_fast_gelu, fast_gelu, npu_mish, npu_silu; aclnnFastGelu(Backward).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from descend.npu.composed.arithmetic import check_float, check_shape, wide

FAST = 1.702


def npu_fast_gelu(self: Tensor) -> Tensor:
    """The result, of the shape of ``self``."""
    check_float("npu_fast_gelu", self=self)
    x = wide(self)
    return (x * FAST).sigmoid_().mul_(x).to(self.dtype)


fast_gelu = npu_fast_gelu
"""Its older name."""


def npu_fast_gelu_backward(grad: Tensor, self: Tensor) -> Tensor:
    """The gradient of self."""
    check_float("npu_fast_gelu_backward", grad=grad, self=self)
    check_shape("npu_fast_gelu_backward", "grad", grad, self.shape, "self")
    x = wide(self)
    gate = (x * FAST).sigmoid_()
    slope = (1 - gate).mul_(x).mul_(FAST).add_(1).mul_(gate)
    return slope.mul_(grad).to(self.dtype)


def npu_mish(self: Tensor) -> Tensor:
    """The result, of the shape of ``self``."""
    check_float("npu_mish", self=self)
    return functional.mish(wide(self)).to(self.dtype)


def npu_mish_backward(grad: Tensor, input: Tensor) -> Tensor:
    """The gradient of self."""
    check_float("npu_mish_backward", grad=grad, input=input)
    check_shape("npu_mish_backward", "grad", grad, input.shape, "input")
    x = wide(input)
    dx: Tensor = torch.ops.aten.mish_backward(grad.to(x.dtype), x)
    return dx.to(input.dtype)


def npu_silu(self: Tensor) -> Tensor:
    """The result, of the shape of ``self``."""
    check_float("npu_silu", self=self)
    return functional.silu(wide(self)).to(self.dtype)


def npu_silu_(self: Tensor) -> Tensor:
    """`npu_silu` in place."""
    return self.copy_(npu_silu(self))


def npu_silu_backward(grad_output: Tensor, x0: Tensor, x1: Tensor) -> Tensor:
    """The gradient of self, which is ``x0``; ``x1`` is the result."""
    check_float("npu_silu_backward", grad_output=grad_output, x0=x0)
    check_shape("npu_silu_backward", "grad_output", grad_output, x0.shape, "x0")
    x = wide(x0)
    dx: Tensor = torch.ops.aten.silu_backward(grad_output.to(x.dtype), x)
    return dx.to(x0.dtype)
