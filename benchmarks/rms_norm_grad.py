"""RmsNormGrad: what is measured, and how each peer does the same job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import near, sweep
from benchmarks.near import Room
from benchmarks.operator import (
    Call,
    Golden,
    Operator,
    Problem,
    Route,
    Shape,
    aligned,
    backward_of,
    normal,
    root_mean_square,
    sample,
)

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-6
QUICK: list[Shape] = [
    (1, 8),
    (8, 64),
    (128, 768),
    (1024, 1024),
    (4096, 1024),
    (4096, 4096),
    (16384, 1024),
    (1024, 16384),
]
MORE: list[Shape] = [
    (1, 4096),
    (32, 256),
    (1024, 64),
    (1, 65536),
    (64, 4096),
    (16384, 64),
    (256, 4096),
    (16, 65536),
    (2048, 2048),
]
MORE += [(16384, 256), (65536, 64), (256, 16384), (64, 65536), (256, 65536), (8192, 4096), (16384, 4096), (16384, 8192)]

FEW_ROWS = 32
"""With up to so many rows, column sums go to double after every other row, so a row takes longer."""


class RmsNormGrad(Operator):
    """Rows and columns; gamma in the dtype of x, rstd and dgamma in float32."""

    name = "rms_norm_grad"
    sums_columns = True
    picture = "RMS norm", (4096, 1024)
    quick = tuple(QUICK)
    full = tuple(sorted(QUICK + MORE, key=lambda shape: (shape[0] * shape[1], shape[1])))
    small = ((8, 64), "float32")
    nothing = (0, 8)

    def sweep(self, size: int, itemsize: int) -> Iterator[Shape]:
        """dy, x and dx."""
        return sweep.matrices(size // (3 * itemsize))

    def bytes(self, shape: Shape, itemsize: int) -> int:
        """dy, x and dx; rstd; gamma and dgamma."""
        rows, columns = shape
        return rows * (3 * columns * itemsize + 4) + columns * (itemsize + 4)

    def near(self, shape: Shape, room: Room) -> tuple[Shape, Shape]:
        """Some rows."""
        return near.matrices(shape, room, fewest_rows(shape))

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Normal data; rstd is that of x, as the forward operator hands it over."""
        import descend

        rows, columns = shape
        x, gamma, rstd = (
            normal(shape, dtype, rng),
            normal((columns,), dtype, rng, 0.1, 1),
            aligned((rows, 1), "float32"),
        )
        outputs = {"dx_out": aligned(shape, dtype), "dgamma_out": aligned((columns,), "float32")}
        descend.rms_norm(x, gamma, EPSILON, out=(outputs["dx_out"], rstd))
        inputs = {"dy": normal(shape, dtype, rng), "x": x, "rstd": rstd, "gamma": gamma}
        return Problem(shape, dtype, inputs, outputs)

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole rows for dx, whole columns for dgamma."""
        from descend import reference

        dy, x, rstd, gamma = problem.inputs.values()
        rows, columns = sample(x.shape[0], x.shape[1], rng), sample(x.shape[1], x.shape[0], rng)
        dx, _ = reference.rms_norm_grad(dy[rows], x[rows], rstd[rows], gamma)
        _, dgamma = reference.rms_norm_grad(dy[:, columns], x[:, columns], rstd, gamma[columns])
        terms = root_mean_square(dy[rows].astype(np.float64) * gamma.astype(np.float64) * rstd[rows])
        return Golden(rows, np.asarray(dx), terms), Golden(columns, np.asarray(dgamma))

    def torch_eager(self) -> Mapping[str, Route]:
        """Autograd, and the formula by hand."""
        return {"autograd of F.rms_norm": autograd(rms_norm), "the formula in eager operations": formula_call}

    def torch_compile(self) -> Mapping[str, Route]:
        """The compiled formula, and autograd through the compiled forward."""
        from benchmarks.frameworks import compiled

        return {
            "the compiled formula": lambda *tensors: formula_call(*tensors, function=compiled(formula)),
            "autograd of compiled F.rms_norm": lambda *tensors: autograd(compiled(rms_norm))(*tensors),
        }

    def jax(self) -> Mapping[str, Route]:
        """The formula and the vector-Jacobian product, each under jit."""
        return {"jit of the formula": jax_formula, "jit of vjp": jax_vjp}

    def onednn(self) -> Mapping[str, Route]:
        """Its primitive, and three that together give the same."""
        from benchmarks import onednn

        return {
            "layer_normalization_backward for RMS": partial(onednn.rms_norm_backward_flag, epsilon=EPSILON),
            "layer_normalization_backward, matmul and binary": partial(onednn.rms_norm_backward, epsilon=EPSILON),
        }

    def yardstick(self) -> tuple[str, Route]:
        """PyTorch has no RMS norm backward for CPUs; its layer norm backward is the nearest."""
        return "torch.ops.aten.native_layer_norm_backward", layer_norm_backward


def fewest_rows(shape: Shape) -> int:
    """The least rows of a small problem for this one's core. If this one has more than FEW_ROWS, so has half of it."""
    return 8 if shape[0] <= FEW_ROWS else 80


def rms_norm(x: Tensor, gamma: Tensor) -> Tensor:
    """PyTorch's forward."""
    from torch.nn import functional

    return functional.rms_norm(x, gamma.shape, gamma, EPSILON)


def autograd(forward: Any) -> Route:
    """The backward pass alone."""
    return lambda dy, x, rstd, gamma: backward_of(forward, (x, gamma), dy)


def formula(dy: Tensor, x: Tensor, rstd: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """The operator as one would write it in PyTorch, computed in float32."""
    wide = dy.float()
    xhat = x.float() * rstd
    g = wide * gamma.float()
    dx = rstd * (g - xhat * (g * xhat).mean(-1, keepdim=True))
    return dx.to(x.dtype), (wide * xhat).sum(0)


def formula_call(*tensors: Tensor, function: Any = formula) -> Call:
    """The formula on these tensors."""
    return lambda: function(*tensors)


def layer_norm_backward(dy: Tensor, x: Tensor, rstd: Tensor, gamma: Tensor) -> Call:
    """Layer norm's backward on the same tensors."""
    import torch

    mean, bias, mask = torch.zeros_like(rstd), torch.zeros_like(gamma), [True, True, True]
    backward, shape = torch.ops.aten.native_layer_norm_backward, list(gamma.shape)
    return lambda: backward(dy, x, shape, mean, rstd, gamma, bias, mask)


def jax_formula(dy: Any, x: Any, rstd: Any, gamma: Any) -> Call:
    """The same formula in JAX."""
    import jax.numpy as jnp

    from benchmarks.frameworks import jitted

    def backward(dy: Any, x: Any, rstd: Any, gamma: Any) -> Any:
        wide, xhat = dy.astype(jnp.float32), x.astype(jnp.float32) * rstd
        g = wide * gamma.astype(jnp.float32)
        dx = rstd * (g - xhat * (g * xhat).mean(-1, keepdims=True))
        return dx.astype(x.dtype), (wide * xhat).sum(0)

    return jitted(backward, dy, x, rstd, gamma)


def jax_vjp(dy: Any, x: Any, rstd: Any, gamma: Any) -> Call:
    """What JAX derives itself; it computes rstd again."""
    import jax
    import jax.numpy as jnp

    from benchmarks.frameworks import jitted

    def forward(x: Any, gamma: Any) -> Any:
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + EPSILON)
        return (wide * scale * gamma.astype(jnp.float32)).astype(x.dtype)

    return jitted(lambda dy, x, gamma: jax.vjp(forward, x, gamma)[1](dy), dy, x, gamma)


OPERATOR = RmsNormGrad()
