"""What an operator's file defines: shapes, inputs, and how each library computes the same."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from benchmarks.kinds import MATRICES, Kind
from benchmarks.near import Room
from benchmarks.near import Shape as Shape

Array: TypeAlias = NDArray[Any]
Call: TypeAlias = Callable[[], Any]
"""A job that is ready to be timed."""
Route: TypeAlias = Callable[..., Call]
"""Takes a framework's own arrays, in the order of the operator's inputs, and by name what `Operator.settings` says, and
makes the job ready. A forward's job may leave out the statistics that follow the result."""

DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


@dataclass(frozen=True)
class Problem:
    """One shape and dtype with fresh data and outputs to write to."""

    shape: Shape
    dtype: str
    inputs: dict[str, Array]
    """By parameter name, in the order of the functional API."""
    outputs: dict[str, Array]
    """By parameter name of the two-phase API, in its order."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Descend's arguments that are not tensors."""

    @property
    def bytes(self) -> int:
        """The bytes that must move: each input read once, each output written once."""
        return sum(array.nbytes for array in (*self.inputs.values(), *self.outputs.values()))

    @property
    def room(self) -> int:
        """The bytes of memory that it takes: an output in an input's place takes none."""
        return sum({id(array): array.nbytes for array in (*self.inputs.values(), *self.outputs.values())}.values())


@dataclass(frozen=True)
class Golden:
    """A part of one output in float64: ``actual[index]`` should equal ``values``."""

    index: Any
    values: NDArray[np.float64]
    terms: float = 0.0
    """The size of the terms whose differences the values are. In rows of one element they cancel."""


class Operator(ABC):
    """One operator to measure. Descend is called by the operator's name; subclasses say how the peers compute it."""

    name: str
    kind: Kind = MATRICES
    sums_columns: bool = False
    """Whether results are sums over rows, which Triton's kernels make of several parts."""
    picture: tuple[str, Shape] | None = None
    """What the README's picture shows of it, in float32: a title, and a shape that training has."""
    quick: Sequence[Shape]
    """A few typical shapes."""
    full: Sequence[Shape]
    """More of them, by size."""
    dtypes: Sequence[str] = tuple(DTYPES)
    small: tuple[Shape, str]
    """The problem whose time is all overhead."""
    nothing: Shape
    """A shape with nothing to do: the time of an empty call."""

    @abstractmethod
    def sweep(self, size: int, itemsize: int) -> Iterator[Shape]:
        """The sweep's shapes of about `size` bytes, sorted by what matters most; `itemsize` is the dtype's."""

    def row(self, shape: Shape) -> int:
        """The number of elements in one reduction: a row, a group, a head."""
        return shape[-1]

    @abstractmethod
    def bytes(self, shape: Shape, itemsize: int) -> int:
        """Those of a problem, without making it; `itemsize` is the dtype's."""

    @abstractmethod
    def near(self, shape: Shape, room: Room) -> tuple[Shape, Shape]:
        """Two problems with few of these rows, that fit the room if they can, the second with half as many."""

    def settings(self, shape: Shape) -> Mapping[str, Any]:
        """What the peers need beside the arrays, such as the number of groups."""
        return {}

    @abstractmethod
    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Fresh random data, as it would enter the operator in a network."""

    def timed(self, problem: Problem) -> Problem:
        """What is timed of Descend: the problem, or one in place, on copies of its inputs."""
        return problem

    @abstractmethod
    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """For each output the float64 reference, on a sample of rows where the whole would take too long."""

    def torch_eager(self) -> Mapping[str, Route]:
        """PyTorch's ways to do the job; the fastest one counts."""
        return {}

    def torch_compile(self) -> Mapping[str, Route]:
        """The same, compiled."""
        return {}

    def jax(self) -> Mapping[str, Route]:
        """JAX's ways."""
        return {}

    def onednn(self) -> Mapping[str, Route]:
        """oneDNN's primitives, on NumPy arrays."""
        return {}

    def arithmetic(self, problem: Problem, threads: int) -> Callable[[], float] | None:
        """A function that measures the seconds of the arithmetic alone, if arithmetic is the limit."""
        return None

    def yardstick(self) -> tuple[str, Route] | None:
        """PyTorch's own operator that a small call is held against: its name, and the call on torch tensors."""
        return None


def load(name: str) -> Operator:
    """The operator of this name."""
    operator: Operator = importlib.import_module(f"benchmarks.{name}").OPERATOR
    return operator


def backward_of(forward: Callable[..., Any], inputs: Sequence[Any], dy: Any) -> Call:
    """The backward pass of a forward of PyTorch's, alone: its graph is made once and kept."""
    import torch

    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    y = forward(*leaves)
    return lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True)


def aligned(shape: Shape, dtype: str | np.dtype[Any]) -> Array:
    """Zeros that start on a cache line, as the frameworks' own arrays do; the pages are touched."""
    kind = DTYPES[dtype] if isinstance(dtype, str) else dtype
    size = int(np.prod(shape)) * kind.itemsize
    raw = np.empty(size + 64, np.uint8)
    raw.fill(0)
    return np.ndarray(shape, kind, buffer=raw, offset=-raw.ctypes.data % 64)


PERIOD = 4_194_301
"""The period of the random numbers: a prime, so that no two rows of a matrix are alike."""


def normal(shape: Shape, dtype: str, rng: np.random.Generator, scale: float = 1.0, mean: float = 0.0) -> Array:
    """Random normal numbers."""
    array = aligned(shape, dtype)
    values = rng.standard_normal(min(array.size, PERIOD), np.float32)
    values *= scale
    values += mean
    return spread(values, array)


def spread(values: Array, array: Array) -> Array:
    """Fills the array with the values, again and again."""
    values, flat = values.astype(array.dtype, copy=False), array.reshape(-1)
    for start in range(0, flat.size, PERIOD):
        flat[start : start + PERIOD] = values[: flat.size - start]
    return array


def root_mean_square(values: Array) -> float:
    """The size of the values; 0 where there are none."""
    return float(np.sqrt(np.square(values, dtype=np.float64).mean())) if values.size else 0.0


def sample(length: int, width: int, rng: np.random.Generator, elements: int = 1 << 18) -> Array:
    """Some of `length` indices, each of which stands for `width` elements: first, last, and a random choice between."""
    count = min(length, elements // max(width, 1))
    chosen = rng.choice(length, count, replace=False)
    return np.unique(np.concatenate([chosen, [0, length - 1]])) if length else chosen
