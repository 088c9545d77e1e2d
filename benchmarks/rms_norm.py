"""RmsNorm: what is measured, and how each peer does the same job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import near, rms_norm_grad, sweep
from benchmarks.near import Room
from benchmarks.operator import Call, Golden, Operator, Problem, Route, Shape, aligned, normal, sample
from benchmarks.rms_norm_grad import EPSILON

if TYPE_CHECKING:
    from torch import Tensor


class RmsNorm(Operator):
    """Rows and columns; gamma in the dtype of x, rstd in float32."""

    name = "rms_norm"
    quick, full = rms_norm_grad.OPERATOR.quick, rms_norm_grad.OPERATOR.full
    small = ((8, 64), "float32")
    nothing = (0, 8)

    def sweep(self, size: int, itemsize: int) -> Iterator[Shape]:
        """x and y."""
        return sweep.matrices(size // (2 * itemsize))

    def bytes(self, shape: Shape, itemsize: int) -> int:
        """x and y; rstd; gamma."""
        rows, columns = shape
        return rows * (2 * columns * itemsize + 4) + columns * itemsize

    def near(self, shape: Shape, room: Room) -> tuple[Shape, Shape]:
        """Some rows."""
        return near.matrices(shape, room)

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Normal data."""
        rows, columns = shape
        inputs = {"x": normal(shape, dtype, rng), "gamma": normal((columns,), dtype, rng, 0.1, 1)}
        outputs = {"y_out": aligned(shape, dtype), "rstd_out": aligned((rows, 1), "float32")}
        return Problem(shape, dtype, inputs, outputs, {"epsilon": EPSILON})

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole rows."""
        from descend import reference

        x, gamma = problem.inputs.values()
        rows = sample(x.shape[0], x.shape[1], rng)
        return tuple(Golden(rows, part) for part in reference.rms_norm(x[rows], gamma, EPSILON))

    def torch_eager(self) -> Mapping[str, Route]:
        """PyTorch's operator, and the formula by hand."""
        return {"F.rms_norm": call(rms_norm_grad.rms_norm), "the formula in eager operations": call(formula)}

    def torch_compile(self) -> Mapping[str, Route]:
        """Both, compiled."""
        from benchmarks.frameworks import compiled

        return {
            "the compiled formula": call(compiled(formula)),
            "compiled F.rms_norm": call(compiled(rms_norm_grad.rms_norm)),
        }

    def jax(self) -> Mapping[str, Route]:
        """The formula under jit."""
        return {"jit of the formula": jax_formula}

    def onednn(self) -> Mapping[str, Route]:
        """Layer normalization for RMS, which newer releases have, and composed of others."""
        from benchmarks import onednn

        return {
            "layer_normalization for RMS": partial(onednn.rms_norm_flag, epsilon=EPSILON),
            "reduction and layer_normalization": partial(onednn.rms_norm, epsilon=EPSILON),
        }

    def yardstick(self) -> tuple[str, Route]:
        """PyTorch's operator, which composes it of others."""
        return "torch.nn.functional.rms_norm", call(rms_norm_grad.rms_norm)


def call(function: Any) -> Route:
    """A function of the inputs as a job."""
    return lambda *tensors: lambda: function(*tensors)


def formula(x: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """The operator as one would write it in PyTorch, computed in float32."""
    wide = x.float()
    rstd = (wide.square().mean(-1, keepdim=True) + EPSILON).rsqrt()
    return (wide * rstd * gamma.float()).to(x.dtype), rstd


def jax_formula(x: Any, gamma: Any, added: float = 0.0) -> Call:
    """The same formula in JAX, by a weight of gamma + ``added``."""
    import jax
    import jax.numpy as jnp

    from benchmarks.frameworks import jitted

    def forward(x: Any, gamma: Any) -> Any:
        wide = x.astype(jnp.float32)
        rstd = jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + EPSILON)
        return (wide * rstd * (gamma.astype(jnp.float32) + added)).astype(x.dtype), rstd

    return jitted(forward, x, gamma)


OPERATOR = RmsNorm()
