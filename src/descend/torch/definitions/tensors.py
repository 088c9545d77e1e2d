"""What the definitions share: sums, means, and functions that can be differentiated twice."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from descend.torch.library import recording


def widened(tensor: Tensor) -> Tensor:
    """The tensor in the dtype of the arithmetic."""
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def mean_of(tensor: Tensor, dims: list[int]) -> Tensor:
    """The mean over dimensions, which stay with size 1."""
    return tensor.mean(dims, keepdim=True)


def sum_over(tensor: Tensor, dims: list[int]) -> Tensor:
    """The sum over dimensions; the tensor if there are none."""
    return tensor.sum(dims) if dims else tensor  # PyTorch takes no dimensions for all of them


def dimensions(x: Tensor, normalized: int) -> tuple[list[int], list[int], list[int]]:
    """The dimensions of the rows, those within a row, and the shape of the statistics."""
    split = x.dim() - normalized
    return list(range(split)), list(range(split, x.dim())), [*x.shape[:split], *[1] * normalized]


class _OfInput(torch.autograd.Function):
    """It keeps its input for the way back: of its result a graph that is being made would not have the history."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)


class _Sigmoid(_OfInput):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        sig = sigmoid_of(*ctx.saved_tensors)
        return gradient * sig * (1 - sig)

    jvp = backward


class _Exp(_OfInput):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.exp(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * exp_of(*ctx.saved_tensors)

    jvp = backward


class _Ndtr(_OfInput):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        result: Tensor = torch.special.ndtr(x)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * density_of(*ctx.saved_tensors)

    jvp = backward


def _by(recorded: type[_OfInput], plain: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    result: Tensor = (recorded.apply if recording() else plain)(x)
    return result


def sigmoid_of(x: Tensor) -> Tensor:
    """``torch.sigmoid``, whose derivative can be differentiated, too."""
    return _by(_Sigmoid, torch.sigmoid, x)


def exp_of(x: Tensor) -> Tensor:
    """``torch.exp``, likewise."""
    return _by(_Exp, torch.exp, x)


def ndtr_of(x: Tensor) -> Tensor:
    """The normal distribution's function, whose derivative is its density."""
    return _by(_Ndtr, torch.special.ndtr, x)


def power_of(base: float, exponent: Tensor) -> Tensor:
    """Of a base that is not negative."""
    return exp_of(exponent * math.log(base)) if base > 0 else torch.zeros_like(exponent)


def density_of(x: Tensor) -> Tensor:
    """The density of the normal distribution."""
    return exp_of(-x * x / 2) / math.sqrt(2 * math.pi)
