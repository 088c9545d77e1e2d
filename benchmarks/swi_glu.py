"""SwiGlu: what is measured, and how each peer does the same job."""

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


class SwiGlu(Operator):
    """Rows and columns of a half; x has twice as many columns. The widths are those of feed-forward layers."""

    name = "swi_glu"
    kind = kinds.ELEMENTS_ALONE
    quick = ((64, 688), (512, 1376), (4096, 2752), (2048, 11008))
    full = (*quick, (8, 11008), (16384, 688), (4096, 5504), (1024, 14336))
    small = ((8, 64), "float32")
    nothing = (0, 8)

    def sweep(self, size: int, itemsize: int) -> Iterator[Shape]:
        """Both halves and the result."""
        return sweep.matrices(size // (3 * itemsize))

    def bytes(self, shape: Shape, itemsize: int) -> int:
        """Both halves and the result."""
        rows, columns = shape
        return 3 * rows * columns * itemsize

    def near(self, shape: Shape, room: Room) -> tuple[Shape, Shape]:
        """Some rows."""
        return near.matrices(shape, room)

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Normal data."""
        rows, columns = shape
        return Problem(shape, dtype, {"x": normal((rows, 2 * columns), dtype, rng)}, {"out": aligned(shape, dtype)})

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole rows."""
        from descend import reference

        (x,) = problem.inputs.values()
        rows = sample(x.shape[0], x.shape[1], rng)
        return (Golden(rows, reference.swi_glu(x[rows])),)

    def torch_eager(self) -> Mapping[str, Route]:
        """PyTorch's silu and a product."""
        return {"F.silu and a product": call(silu_and_product), "the formula in eager operations": call(formula)}

    def torch_compile(self) -> Mapping[str, Route]:
        """Both, compiled."""
        from benchmarks.frameworks import compiled

        return {
            "compiled F.silu and a product": call(compiled(silu_and_product)),
            "the compiled formula": call(compiled(formula)),
        }

    def jax(self) -> Mapping[str, Route]:
        """The formula under jit."""
        return {"jit of the formula": jax_formula}

    def onednn(self) -> Mapping[str, Route]:
        """It has swish, but no such primitive."""
        return {}

    def yardstick(self) -> tuple[str, Route]:
        """PyTorch's silu and a product."""
        return "torch.nn.functional.silu and a product", call(silu_and_product)


def silu_and_product(x: Tensor) -> Tensor:
    """As models write it, in x's dtype."""
    from torch.nn import functional

    a, b = x.chunk(2, -1)
    return functional.silu(a) * b


def formula(x: Tensor) -> Tensor:
    """The operator as one would write it in PyTorch, computed in float32."""
    a, b = x.float().chunk(2, -1)
    return (a * a.sigmoid() * b).to(x.dtype)


def jax_formula(x: Any) -> Call:
    """The same formula in JAX."""
    import jax
    import jax.numpy as jnp

    from benchmarks.frameworks import jitted

    def forward(x: Any) -> Any:
        a, b = jnp.split(x.astype(jnp.float32), 2, -1)
        return (a * jax.nn.sigmoid(a) * b).astype(x.dtype)

    return jitted(forward, x)


OPERATOR = SwiGlu()
