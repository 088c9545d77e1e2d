"""SwiGLU and GELU."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from descend.torch.definitions.tensors import density_of, ndtr_of, sigmoid_of, widened


def swi_glu(x: Tensor, dim: int = -1) -> Tensor:
    """SwiGLU of the halves of ``x``."""
    a, b = widened(x).chunk(2, dim)
    return (a * sigmoid_of(a) * b).to(x.dtype)


def swi_glu_grad(y_grad: Tensor, x: Tensor, dim: int = -1) -> Tensor:
    """The gradient of SwiGLU."""
    a, b = widened(x).chunk(2, dim)
    sig, dy = sigmoid_of(a), widened(y_grad)
    return torch.cat((dy * sig * (1 + a * (1 - sig)) * b, dy * sig * a), dim).to(x.dtype)


_SQRT_8_PER_PI, _CUBE = math.sqrt(8 / math.pi), 0.044715


def gelu_v2(x: Tensor, approximate: int = 0) -> Tensor:
    """GELU of ``x``."""
    wide = widened(x)
    share = sigmoid_of(_SQRT_8_PER_PI * (wide + _CUBE * wide**3)) if approximate else ndtr_of(wide)
    return (wide * share).to(x.dtype)


def gelu_backward_v2(grad_output: Tensor, x: Tensor, approximate: str = "none") -> Tensor:
    """The gradient of GELU."""
    wide = widened(x)
    if approximate == "tanh":
        near = wide.clamp(-100, 100)  # beyond, the slope is 0 or 1, and x^2 may overflow
        sig = sigmoid_of(_SQRT_8_PER_PI * (near + _CUBE * near**3))
        slope = sig * (1 + near * (1 - sig) * _SQRT_8_PER_PI * (1 + 3 * _CUBE * near**2))
    else:
        slope = ndtr_of(wide) + wide * density_of(wide)
    return (widened(grad_output) * slope).to(torch.promote_types(grad_output.dtype, x.dtype))
