"""GeluV2 by erf: what is measured, and how each peer does the same job."""

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


class GeluV2(Operator):
    """Rows and columns. The widths are those of feed-forward layers."""

    name = "gelu_v2"
    kind = kinds.ELEMENTS_ALONE
    quick = ((64, 3072), (512, 5120), (4096, 4096), (2048, 16384))
    full = (*quick, (8, 16384), (16384, 768), (4096, 10240))
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
        """Normal data."""
        return Problem(shape, dtype, {"x": normal(shape, dtype, rng)}, {"y": aligned(shape, dtype)})

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole rows."""
        from descend import reference

        (x,) = problem.inputs.values()
        rows = sample(x.shape[0], x.shape[1], rng)
        return (Golden(rows, reference.gelu_v2(x[rows])),)

    def torch_eager(self) -> Mapping[str, Route]:
        """PyTorch's gelu, and the formula."""
        return {"F.gelu": call(gelu), "the formula in eager operations": call(formula)}

    def torch_compile(self) -> Mapping[str, Route]:
        """Both, compiled."""
        from benchmarks.frameworks import compiled

        return {"compiled F.gelu": call(compiled(gelu)), "the compiled formula": call(compiled(formula))}

    def jax(self) -> Mapping[str, Route]:
        """JAX's gelu under jit."""
        return {"jit of jax.nn.gelu": jax_gelu}

    def onednn(self) -> Mapping[str, Route]:
        """It has gelu in eltwise, which is not bound here."""
        return {}

    def yardstick(self) -> tuple[str, Route]:
        """PyTorch's gelu."""
        return "torch.nn.functional.gelu", call(gelu)


def gelu(x: Tensor) -> Tensor:
    """PyTorch's own."""
    from torch.nn import functional

    return functional.gelu(x)


def formula(x: Tensor) -> Tensor:
    """The operator as one would write it in PyTorch, computed in float32."""
    import torch

    wide = x.float()
    share: Tensor = torch.special.erfc(wide * -(0.5**0.5)) / 2
    return (wide * share).to(x.dtype)


def jax_gelu(x: Any) -> Call:
    """JAX's own, in float32."""
    import jax
    import jax.numpy as jnp

    from benchmarks.frameworks import jitted

    return jitted(lambda x: jax.nn.gelu(x.astype(jnp.float32), approximate=False).astype(x.dtype), x)


OPERATOR = GeluV2()
