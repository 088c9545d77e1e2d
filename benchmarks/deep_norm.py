"""DeepNorm: what is measured, and how each peer does the same job. Much is as for layer norm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import layer_norm, sweep
from benchmarks.add_layer_norm import NormOfSum
from benchmarks.deep_norm_grad import ALPHA
from benchmarks.layer_norm_backward import EPSILON
from benchmarks.operator import Call, Golden, Problem, Shape, aligned, normal, sample

if TYPE_CHECKING:
    from torch import Tensor


class DeepNorm(NormOfSum):
    """Rows and columns; gamma and beta in the dtype of x, the statistics in float32."""

    name = "deep_norm"

    def sweep(self, size: int, itemsize: int) -> Iterator[Shape]:
        """x, gx and y."""
        return sweep.matrices(size // (3 * itemsize))

    def bytes(self, shape: Shape, itemsize: int) -> int:
        """x, gx and y; mean and rstd; beta and gamma."""
        rows, columns = shape
        return rows * (3 * columns * itemsize + 8) + 2 * columns * itemsize

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Normal data."""
        rows, columns = shape
        inputs = {name: normal(shape, dtype, rng) for name in ("x", "gx")}
        inputs |= {"beta": normal((columns,), dtype, rng, 0.1), "gamma": normal((columns,), dtype, rng, 0.1, 1)}
        outputs = {name: aligned((rows, 1), "float32") for name in ("mean_out", "rstd_out")}
        outputs["y_out"] = aligned(shape, dtype)
        return Problem(shape, dtype, inputs, outputs, {"alpha": ALPHA, "epsilon": EPSILON})

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole rows."""
        from descend import reference

        x, gx, beta, gamma = problem.inputs.values()
        rows = sample(x.shape[0], x.shape[1], rng)
        return tuple(Golden(rows, part) for part in reference.deep_norm(x[rows], gx[rows], beta, gamma, ALPHA, EPSILON))


def native(x: Tensor, gx: Tensor, beta: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A sum, which is rounded, and its norm."""
    import torch

    y, mean, rstd = layer_norm.native(torch.add(gx, x, alpha=ALPHA), gamma, beta)
    return mean, rstd, y


def formula(x: Tensor, gx: Tensor, beta: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The operator as one would write it in PyTorch, computed in float32."""
    y, mean, rstd = layer_norm.formula(ALPHA * x.float() + gx.float(), gamma, beta)
    return mean, rstd, y.to(x.dtype)


def jax_formula(*arrays: Any) -> Call:
    """The same formula in JAX."""
    import jax.numpy as jnp

    from benchmarks.frameworks import jitted

    def forward(x: Any, gx: Any, beta: Any, gamma: Any) -> Any:
        y, mean, rstd = layer_norm.jax_forward(ALPHA * x.astype(jnp.float32) + gx.astype(jnp.float32), gamma, beta)
        return mean, rstd, y.astype(x.dtype)

    return jitted(forward, *arrays)


OPERATOR = DeepNorm(native, formula, jax_formula)
