"""Softmax along the last dimension: what is measured, and how each peer does the same job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import kinds, near, sweep
from benchmarks.near import Room
from benchmarks.operator import Call, Golden, Operator, Problem, Route, Shape, aligned, normal, sample
from benchmarks.rms_norm import call

if TYPE_CHECKING:
    from torch import Tensor


class Softmax(Operator):
    """Rows and columns: scores of attention, classes, the words of a vocabulary."""

    name = "softmax"
    kind = kinds.MATRICES
    quick = ((64, 1000), (4096, 512), (4096, 4096), (512, 32000))
    full = (*quick, (65536, 10), (8, 151936), (16384, 128))
    small = ((8, 64), "float32")
    nothing = (0, 8)
    tensors = 2

    def sweep(self, size: int, itemsize: int) -> Iterator[Shape]:
        """What is read and written."""
        return sweep.matrices(size // (self.tensors * itemsize))

    def bytes(self, shape: Shape, itemsize: int) -> int:
        """What is read and written."""
        rows, columns = shape
        return self.tensors * rows * columns * itemsize

    def near(self, shape: Shape, room: Room) -> tuple[Shape, Shape]:
        """Some rows."""
        return near.matrices(shape, room)

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Normal scores."""
        return Problem(shape, dtype, {"x": normal(shape, dtype, rng)}, {"out": aligned(shape, dtype)})

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole rows."""
        from descend import reference

        (x,) = problem.inputs.values()
        rows = sample(x.shape[0], x.shape[1], rng)
        return (Golden(rows, getattr(reference, self.name)(x[rows])),)

    def torch_eager(self) -> Mapping[str, Route]:
        """PyTorch's function."""
        return {f"F.{self.name}": call(self.function)}

    def torch_compile(self) -> Mapping[str, Route]:
        """The same, compiled."""
        from benchmarks.frameworks import compiled

        return {f"compiled F.{self.name}": call(compiled(self.function))}

    def jax(self) -> Mapping[str, Route]:
        """JAX's function under jit."""
        return {f"jit of jax.nn.{self.name}": self.jax_function}

    def onednn(self) -> Mapping[str, Route]:
        """It is not bound here."""
        return {}

    def yardstick(self) -> tuple[str, Route]:
        """PyTorch's operator."""
        return f"torch.nn.functional.{self.name}", call(self.function)

    def function(self, x: Tensor) -> Tensor:
        """PyTorch's own."""
        from torch.nn import functional

        result: Tensor = getattr(functional, self.name)(x, -1)
        return result

    def jax_function(self, x: Any) -> Call:
        """JAX's own, in float32."""
        import jax
        import jax.numpy as jnp

        from benchmarks.frameworks import jitted

        function = getattr(jax.nn, self.name)
        return jitted(lambda x: function(x.astype(jnp.float32), -1).astype(x.dtype), x)


OPERATOR = Softmax()
