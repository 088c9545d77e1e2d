"""What an operator is here: random inputs, both libraries' ways to compute it, golden values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Float64: TypeAlias = NDArray[np.float64]
Shape: TypeAlias = tuple[int, ...]
Inputs: TypeAlias = dict[str, Tensor]

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
DISTRIBUTIONS = ("normal", "uniform", "heavy", "offset")
OFFSET = {"float32": 1000.0, "float16": 10.0, "bfloat16": 100.0}
"""The mean of the distribution "offset", in standard deviations."""

EPSILON = 1e-6
"""Of every norm."""
MANY = 1 << 17
"""With so many rows only sums over the rows are compared."""


class Draw:
    """Random tensors of one dtype and distribution; a seed gives the same numbers in every dtype."""

    def __init__(self, seed: int, dtype: str, distribution: str) -> None:
        self.dtype, self.distribution, self.offset = DTYPES[dtype], distribution, OFFSET[dtype]
        self.random = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers, whatever the distribution: for parameters."""
        return torch.randn(shape, generator=self.random).to(self.dtype)

    def gradient(self, *shape: int) -> Tensor:
        """Numbers of the distribution; "offset" is scaled so that a million of them have a sum in float16."""
        values = self.values(*shape)
        return (values / (16 * self.offset) if self.distribution == "offset" else values).to(self.dtype)

    def data(self, *shape: int) -> Tensor:
        """Numbers of the distribution."""
        return self.values(*shape).to(self.dtype)

    def values(self, *shape: int) -> Tensor:
        """In float32: normal, uniform from -1 to 1, Student's t with 3 degrees of freedom, or far from 0."""
        if self.distribution == "uniform":
            return 2 * torch.rand(shape, generator=self.random) - 1
        values = torch.randn(shape, generator=self.random)
        if self.distribution == "heavy":
            values /= torch.randn((3, *shape), generator=self.random).square_().mean(0).sqrt_()
        if self.distribution == "offset":
            values += self.offset
        return values

    def mask(self, *shape: int) -> Tensor:
        """True for one element of five."""
        return torch.rand(shape, generator=self.random) < 0.2


@dataclass(frozen=True)
class Golden:
    """One output in float64, and for each element the size of the largest term in its sum."""

    values: Float64
    terms: Float64 | None = None
    """None: no terms can cancel."""


@dataclass(frozen=True)
class Operator:
    """One operator as it is compared."""

    name: str
    outputs: tuple[str, ...]
    """Those that are compared, in order."""
    elementwise: tuple[str, ...]
    """The outputs that should be rounded correctly: all but sums over rows."""
    shapes: tuple[Shape, ...]
    inputs: Callable[[Shape, Draw], Inputs]
    ours: Callable[..., Sequence[Tensor]]
    theirs: Callable[..., Sequence[Tensor]]
    golden: Callable[..., dict[str, Golden]]
    """By output; those that are not compared at this shape are missing."""
    row: Callable[[Shape], int]
    """How many elements a row has."""


def has_many(rows: int) -> bool:
    """Whether only sums over the rows are compared."""
    return rows >= MANY


def exact(tensor: Tensor) -> Float64:
    """The same numbers in float64."""
    return tensor.detach().double().numpy()


def backward(forward: Callable[..., Tensor], gradient: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    """PyTorch's gradients of a function at these tensors."""
    leaves = tuple(leaf.detach().requires_grad_() for leaf in leaves)
    return torch.autograd.grad(forward(*leaves), leaves, gradient)


ROWS: tuple[Shape, ...] = ((2048, 64), (256, 768), (8, 8192))
MILLION: Shape = (1_000_000, 2)


def row_of(shape: Shape) -> int:
    """The last dimension."""
    return shape[-1]


def column_sums(products: Float64) -> Golden:
    """Their sums over the rows."""
    return Golden(products.sum(axis=0), largest(products))


def largest(products: Float64) -> Float64:
    """The largest term of each column's sum."""
    size: Float64 = np.abs(products).max(axis=0)
    return size


def alone(function: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """The one result as a tuple."""
    return lambda *arguments: (function(*arguments),)


def gradients(forward: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """PyTorch's gradients: the first argument is that of the result."""
    return lambda dy, *leaves: backward(forward, dy, *leaves)
