"""CrossEntropyLoss: what is measured, and how each peer does the same job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import kinds, near, sweep
from benchmarks.near import Room
from benchmarks.operator import Array, Call, Golden, Operator, Problem, Route, Shape, aligned, normal, sample
from benchmarks.rms_norm import call

if TYPE_CHECKING:
    from torch import Tensor


class CrossEntropyLoss(Operator):
    """Tokens and classes. The classes are those of image models and of language models' vocabularies."""

    name = "cross_entropy_loss"
    kind = kinds.CLASSES
    quick = ((64, 1000), (256, 32000), (2048, 32000), (512, 151936))
    full = (*quick, (65536, 10), (8192, 1000), (128, 262144))
    small = ((8, 64), "float32")
    nothing = (0, 8)

    def sweep(self, size: int, itemsize: int) -> Iterator[Shape]:
        """What is read and written."""
        return sweep.matrices(size // (2 * itemsize))

    def bytes(self, shape: Shape, itemsize: int) -> int:
        """What is read and written, targets included."""
        rows, columns = shape
        return (2 * rows * columns + rows) * itemsize + 8 * rows

    def near(self, shape: Shape, room: Room) -> tuple[Shape, Shape]:
        """Some rows."""
        return near.matrices(shape, room)

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Normal scores; the losses of all rows."""
        inputs = {"input": normal(shape, dtype, rng, 2.0), "target": targets(shape, rng)}
        outputs = {"loss_out": aligned(shape[:1], dtype), "log_prob_out": aligned(shape, dtype)}
        return Problem(shape, dtype, inputs, outputs, {"reduction": "none"})

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole rows."""
        from descend import reference

        x, target = problem.inputs.values()
        rows = sample(x.shape[0], x.shape[1], rng)
        loss, log_prob, _, _ = reference.cross_entropy_loss(x[rows], target[rows], reduction="none")
        return Golden(rows, loss, 1.0), Golden(rows, log_prob)

    def torch_eager(self) -> Mapping[str, Route]:
        """What F.cross_entropy consists of, as log_prob is a result."""
        return {"F.log_softmax and F.nll_loss": call(both)}

    def torch_compile(self) -> Mapping[str, Route]:
        """The same, compiled."""
        from benchmarks.frameworks import compiled

        return {"compiled F.log_softmax and F.nll_loss": call(compiled(both))}

    def jax(self) -> Mapping[str, Route]:
        """The same in JAX."""
        return {"jit of jax.nn.log_softmax": jax_both}

    def yardstick(self) -> tuple[str, Route]:
        """PyTorch's operators."""
        return "F.log_softmax and F.nll_loss", call(both)


def targets(shape: Shape, rng: np.random.Generator) -> Array:
    """A class for each row."""
    array = aligned(shape[:1], np.dtype(np.int64))
    array[:] = rng.integers(0, shape[1], shape[0])
    return array


def both(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The losses and the logarithms of the probabilities."""
    from torch.nn import functional

    log_prob = functional.log_softmax(x, -1)
    return functional.nll_loss(log_prob, target, reduction="none"), log_prob


def jax_both(x: Any, target: Any) -> Call:
    """The same in JAX, computed in float32."""
    import jax
    import jax.numpy as jnp

    from benchmarks.frameworks import jitted

    def forward(x: Any, target: Any) -> Any:
        log_prob = jax.nn.log_softmax(x.astype(jnp.float32), -1)
        loss = -jnp.take_along_axis(log_prob, target[:, None], 1)[:, 0]
        return loss.astype(x.dtype), log_prob.astype(x.dtype)

    return jitted(forward, x, target)


OPERATOR = CrossEntropyLoss()
