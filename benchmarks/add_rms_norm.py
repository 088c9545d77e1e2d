"""AddRmsNorm: what is measured, and how each peer does the same job. Much is as for RMS norm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import rms_norm, sweep
from benchmarks.operator import Call, Golden, Problem, Route, Shape, aligned, normal, sample
from benchmarks.rms_norm import call
from benchmarks.rms_norm_grad import EPSILON

if TYPE_CHECKING:
    from torch import Tensor


class AddRmsNorm(rms_norm.RmsNorm):
    """Rows and columns; gamma in the dtype of x, rstd in float32."""

    name = "add_rms_norm"

    def sweep(self, size: int, itemsize: int) -> Iterator[Shape]:
        """x1, x2, y and x."""
        return sweep.matrices(size // (4 * itemsize))

    def bytes(self, shape: Shape, itemsize: int) -> int:
        """x1, x2, y and x; rstd; gamma."""
        rows, columns = shape
        return rows * (4 * columns * itemsize + 4) + columns * itemsize

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Normal data."""
        rows, columns = shape
        inputs = {name: normal(shape, dtype, rng) for name in ("x1", "x2")}
        inputs["gamma"] = normal((columns,), dtype, rng, 0.1, 1)
        outputs = {"y_out": aligned(shape, dtype), "rstd_out": aligned((rows, 1), "float32")}
        outputs["x_out"] = aligned(shape, dtype)
        return Problem(shape, dtype, inputs, outputs, {"epsilon": EPSILON})

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole rows."""
        from descend import reference

        x1, x2, gamma = problem.inputs.values()
        rows = sample(x1.shape[0], x1.shape[1], rng)
        return tuple(Golden(rows, part) for part in reference.add_rms_norm(x1[rows], x2[rows], gamma, EPSILON))

    def torch_eager(self) -> Mapping[str, Route]:
        """A sum and PyTorch's operator, and the formula by hand."""
        return {"a sum and F.rms_norm": call(add_and_norm), "the formula in eager operations": call(formula)}

    def torch_compile(self) -> Mapping[str, Route]:
        """Both, compiled."""
        from benchmarks.frameworks import compiled

        return {
            "the compiled formula": call(compiled(formula)),
            "a compiled sum and F.rms_norm": call(compiled(add_and_norm)),
        }

    def jax(self) -> Mapping[str, Route]:
        """The formula under jit."""
        return {"jit of the formula": jax_formula}

    def onednn(self) -> Mapping[str, Route]:
        """It has no such primitive."""
        return {}

    def yardstick(self) -> tuple[str, Route]:
        """PyTorch's sum and operator."""
        return "a sum and torch.nn.functional.rms_norm", call(add_and_norm)


def add_and_norm(x1: Tensor, x2: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A sum, which is rounded, and its norm: what F.rms_norm calls, and its rstd."""
    import torch

    x = x1 + x2
    y, rstd = torch.ops.aten._fused_rms_norm.default(x, gamma.shape, gamma, EPSILON)
    return y, rstd, x


def formula(x1: Tensor, x2: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The operator as one would write it in PyTorch, computed in float32."""
    x = x1.float() + x2.float()
    rstd = (x.square().mean(-1, keepdim=True) + EPSILON).rsqrt()
    return (x * rstd * gamma.float()).to(x1.dtype), rstd, x.to(x1.dtype)


def jax_formula(x1: Any, x2: Any, gamma: Any) -> Call:
    """The same formula in JAX."""
    import jax
    import jax.numpy as jnp

    from benchmarks.frameworks import jitted

    def forward(x1: Any, x2: Any, gamma: Any) -> Any:
        x = x1.astype(jnp.float32) + x2.astype(jnp.float32)
        rstd = jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + EPSILON)
        return (x * rstd * gamma.astype(jnp.float32)).astype(x1.dtype), rstd, x.astype(x1.dtype)

    return jitted(forward, x1, x2, gamma)


OPERATOR = AddRmsNorm()
