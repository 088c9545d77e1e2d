"""ScaledMaskedSoftmax: what is measured, and how each peer does the same job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import kinds, near, scaled_masked_softmax_backward, sweep
from benchmarks.near import Room
from benchmarks.operator import Call, Golden, Operator, Problem, Route, Shape, aligned, normal, sample
from benchmarks.rms_norm import call
from benchmarks.scaled_masked_softmax_backward import SCALE, hidden

if TYPE_CHECKING:
    from torch import Tensor

MASKED = -10000.0


class ScaledMaskedSoftmax(Operator):
    """Scores of attention, [B, N, S1, S2]; a mask of [B, 1, S1, S2] that hides three in ten."""

    name = "scaled_masked_softmax"
    kind = kinds.SCORES
    quick, full = scaled_masked_softmax_backward.OPERATOR.quick, scaled_masked_softmax_backward.OPERATOR.full
    small = ((1, 2, 16, 64), "float32")
    nothing = (0, 1, 1, 8)

    def sweep(self, size: int, itemsize: int) -> Iterator[Shape]:
        """x and y; an eighth of a byte or more of the mask."""
        return sweep.scores(size * 8 // (16 * itemsize + 1))

    def bytes(self, shape: Shape, itemsize: int) -> int:
        """x and y of every head; the mask of all."""
        batches, heads, queries, keys = shape
        return batches * queries * keys * (2 * heads * itemsize + 1)

    def near(self, shape: Shape, room: Room) -> tuple[Shape, Shape]:
        """Some queries."""
        return near.scores(shape, room)

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Normal scores."""
        inputs = {"x": normal(shape, dtype, rng), "mask": hidden(shape, rng)}
        return Problem(shape, dtype, inputs, {"y": aligned(shape, dtype)}, {"scale": SCALE})

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole rows."""
        from descend import reference

        x, mask = problem.inputs.values()
        rows = np.unravel_index(sample(int(np.prod(x.shape[:3])), x.shape[3], rng), x.shape[:3])
        return (Golden(rows, reference.scaled_masked_softmax(x[rows], mask[rows[0], 0, rows[2]], SCALE)),)

    def torch_eager(self) -> Mapping[str, Route]:
        """Three operators of PyTorch, and they in float32."""
        return {"a factor, masked_fill and softmax": call(own), "the formula in eager operations": call(formula)}

    def torch_compile(self) -> Mapping[str, Route]:
        """Both, compiled."""
        from benchmarks.frameworks import compiled

        return {"the compiled formula": call(compiled(formula)), "compiled softmax": call(compiled(own))}

    def jax(self) -> Mapping[str, Route]:
        """The formula under jit."""
        return {"jit of the formula": jax_formula}

    def onednn(self) -> Mapping[str, Route]:
        """Its primitive behind a factor and a mask."""
        from benchmarks import onednn

        return {"softmax behind a factor and a mask": partial(onednn.scaled_masked_softmax, scale=SCALE)}

    def yardstick(self) -> tuple[str, Route]:
        """PyTorch's softmax, without mask and scale."""
        return "torch.ops.aten._softmax", softmax


def own(x: Tensor, mask: Tensor) -> Tensor:
    """What one would write first."""
    return (x * SCALE).masked_fill(mask, MASKED).softmax(-1)


def formula(x: Tensor, mask: Tensor) -> Tensor:
    """The operator computed in float32."""
    return (x.float() * SCALE).masked_fill(mask, MASKED).softmax(-1).to(x.dtype)


def softmax(x: Tensor, mask: Tensor) -> Call:
    """PyTorch's operator on the same tensor."""
    import torch

    function = torch.ops.aten._softmax
    return lambda: function(x, -1, False)


def jax_formula(x: Any, mask: Any) -> Call:
    """The same formula in JAX."""
    import jax
    import jax.numpy as jnp

    from benchmarks.frameworks import jitted

    def forward(x: Any, mask: Any) -> Any:
        return jax.nn.softmax(jnp.where(mask, MASKED, x.astype(jnp.float32) * SCALE), axis=-1).astype(x.dtype)

    return jitted(forward, x, mask)


OPERATOR = ScaledMaskedSoftmax()
