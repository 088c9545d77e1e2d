"""RotaryPositionEmbedding: what is measured, and how each peer does the same job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import kinds, sweep
from benchmarks.near import FEWEST, Room
from benchmarks.operator import Array, Call, Golden, Operator, Problem, Route, Shape, aligned, normal, sample
from benchmarks.rms_norm import call

if TYPE_CHECKING:
    from torch import Tensor

Index = tuple[Array, ...]


class RotaryPositionEmbedding(Operator):
    """Heads of attention, [B, S, N, D], in halves; cos and sin of [1, S, 1, D]."""

    name = "rotary_position_embedding"
    kind = kinds.HEADS
    quick = ((1, 512, 8, 64), (2, 1024, 16, 128), (4, 2048, 32, 64), (1, 4096, 32, 128))
    full = (*quick, (1, 64, 4, 64), (8, 128, 32, 128), (2, 8192, 8, 128), (1, 32768, 4, 64))
    small = ((1, 4, 2, 64), "float32")
    nothing = (0, 4, 2, 64)

    def sweep(self, size: int, itemsize: int) -> Iterator[Shape]:
        """x and the result."""
        return sweep.heads(size // (2 * itemsize))

    def bytes(self, shape: Shape, itemsize: int) -> int:
        """x and the result; cos and sin."""
        batches, positions, heads, columns = shape
        return 2 * positions * columns * (batches * heads + 1) * itemsize

    def near(self, shape: Shape, room: Room) -> tuple[Shape, Shape]:
        """Some positions of one head."""
        columns = room.shorten(shape[3], lambda columns: (1, FEWEST, 1, columns))
        return room.fill(lambda positions: (1, positions, 1, columns), FEWEST)

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Normal data, cosines and sines of any angles."""
        inputs = {"x": normal(shape, dtype, rng), **angles(shape, dtype, rng)}
        return Problem(shape, dtype, inputs, {"out": aligned(shape, dtype)}, {"mode": 0})

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole rows."""
        from descend import reference

        x, cos, sin = problem.inputs.values()
        rows = some_rows(x, rng)
        of = cos[0, rows[1], 0], sin[0, rows[1], 0]
        return (Golden(rows, reference.rotary_position_embedding(x[rows], *of), 1.0),)

    def torch_eager(self) -> Mapping[str, Route]:
        """As models write it, and in float32."""
        return {"products with the rotated half": call(own), "the formula in eager operations": call(formula)}

    def torch_compile(self) -> Mapping[str, Route]:
        """Both, compiled."""
        from benchmarks.frameworks import compiled

        return {
            "compiled products with the rotated half": call(compiled(own)),
            "the compiled formula": call(compiled(formula)),
        }

    def jax(self) -> Mapping[str, Route]:
        """The formula under jit."""
        return {"jit of the formula": jax_formula}

    def onednn(self) -> Mapping[str, Route]:
        """It has no such primitive."""
        return {}

    def yardstick(self) -> tuple[str, Route]:
        """As models write it."""
        return "products with the rotated half in PyTorch", call(own)


def angles(shape: Shape, dtype: str, rng: np.random.Generator) -> dict[str, Array]:
    """Cosines and sines for each position."""
    radians = rng.uniform(0, 2 * np.pi, (1, shape[1], 1, shape[3]))
    made = {"cos": aligned(radians.shape, dtype), "sin": aligned(radians.shape, dtype)}
    made["cos"][...], made["sin"][...] = np.cos(radians), np.sin(radians)
    return made


def some_rows(x: Array, rng: np.random.Generator) -> Index:
    """The places of some rows."""
    return np.unravel_index(sample(int(np.prod(x.shape[:3])), x.shape[3], rng), x.shape[:3])


def rotated(x: Tensor) -> Tensor:
    """The second half of each row with the other sign, then the first."""
    import torch

    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def own(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As models write it, in x's dtype."""
    return x * cos + rotated(x) * sin


def formula(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The operator as one would write it in PyTorch, computed in float32."""
    wide = x.float()
    return (wide * cos.float() + rotated(wide) * sin.float()).to(x.dtype)


def jax_formula(x: Any, cos: Any, sin: Any) -> Call:
    """The same formula in JAX."""
    import jax.numpy as jnp

    from benchmarks.frameworks import jitted

    def forward(x: Any, cos: Any, sin: Any) -> Any:
        wide, c, s = (a.astype(jnp.float32) for a in (x, cos, sin))
        first, second = jnp.split(wide, 2, -1)
        return (wide * c + jnp.concatenate((-second, first), -1) * s).astype(x.dtype)

    return jitted(forward, x, cos, sin)


OPERATOR = RotaryPositionEmbedding()
