"""AddLayerNorm: what is measured, and how each peer does the same job. Much is as for layer norm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import layer_norm, sweep
from benchmarks.layer_norm_backward import EPSILON
from benchmarks.operator import Call, Golden, Problem, Route, Shape, aligned, normal, sample
from benchmarks.rms_norm import call

if TYPE_CHECKING:
    from torch import Tensor


class NormOfSum(layer_norm.LayerNorm):
    """Layer norm of a sum, with what PyTorch has for it and the formula in PyTorch and JAX."""

    def __init__(
        self, native: Callable[..., tuple[Tensor, ...]], formula: Callable[..., tuple[Tensor, ...]], jax_formula: Route
    ) -> None:
        self.native, self.formula, self.jax_formula = native, formula, jax_formula

    def torch_eager(self) -> Mapping[str, Route]:
        """A sum and PyTorch's operator, and the formula by hand."""
        return {"a sum and native_layer_norm": call(self.native), "the formula in eager operations": call(self.formula)}

    def torch_compile(self) -> Mapping[str, Route]:
        """Both, compiled."""
        from benchmarks.frameworks import compiled

        return {
            "the compiled formula": call(compiled(self.formula)),
            "a compiled sum and native_layer_norm": call(compiled(self.native)),
        }

    def jax(self) -> Mapping[str, Route]:
        """The formula under jit."""
        return {"jit of the formula": self.jax_formula}

    def onednn(self) -> Mapping[str, Route]:
        """It has no such primitive."""
        return {}

    def yardstick(self) -> tuple[str, Route]:
        """PyTorch's sum and operator."""
        return "a sum and torch.ops.aten.native_layer_norm", call(self.native)


class AddLayerNorm(NormOfSum):
    """Rows and columns; gamma and beta in the dtype of x1, the statistics in float32; the sum is a result, too."""

    name = "add_layer_norm"

    def sweep(self, size: int, itemsize: int) -> Iterator[Shape]:
        """x1, x2, y and x."""
        return sweep.matrices(size // (4 * itemsize))

    def bytes(self, shape: Shape, itemsize: int) -> int:
        """x1, x2, y and x; mean and rstd; gamma and beta."""
        rows, columns = shape
        return rows * (4 * columns * itemsize + 8) + 2 * columns * itemsize

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Normal data."""
        rows, columns = shape
        inputs = {name: normal(shape, dtype, rng) for name in ("x1", "x2")}
        inputs |= {"gamma": normal((columns,), dtype, rng, 0.1, 1), "beta": normal((columns,), dtype, rng, 0.1)}
        outputs = {"y_out": aligned(shape, dtype)}
        outputs |= {name: aligned((rows, 1), "float32") for name in ("mean_out", "rstd_out")}
        outputs["x_out"] = aligned(shape, dtype)
        return Problem(shape, dtype, inputs, outputs, {"epsilon": EPSILON, "additional_output": True})

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole rows."""
        from descend import reference

        x1, x2, gamma, beta = problem.inputs.values()
        rows = sample(x1.shape[0], x1.shape[1], rng)
        found = reference.add_layer_norm(x1[rows], x2[rows], gamma, beta, None, EPSILON, True)
        return tuple(Golden(rows, np.asarray(part)) for part in found)


def native(x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """A sum, which is rounded, and its norm."""
    x = x1 + x2
    return (*layer_norm.native(x, gamma, beta), x)


def formula(x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """The operator as one would write it in PyTorch, computed in float32."""
    x = x1.float() + x2.float()
    y, mean, rstd = layer_norm.formula(x, gamma, beta)
    return y.to(x1.dtype), mean, rstd, x.to(x1.dtype)


def jax_formula(*arrays: Any) -> Call:
    """The same formula in JAX."""
    import jax.numpy as jnp

    from benchmarks.frameworks import jitted

    def forward(x1: Any, x2: Any, gamma: Any, beta: Any) -> Any:
        x = x1.astype(jnp.float32) + x2.astype(jnp.float32)
        y, mean, rstd = layer_norm.jax_forward(x, gamma, beta)
        return y.astype(x1.dtype), mean, rstd, x.astype(x1.dtype)

    return jitted(forward, *arrays)


OPERATOR = AddLayerNorm(native, formula, jax_formula)
