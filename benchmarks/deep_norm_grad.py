"""DeepNormGrad: what is measured, and how each peer does the same job. Much is as for layer norm's gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import layer_norm_backward, sweep
from benchmarks.layer_norm_backward import EPSILON
from benchmarks.operator import (
    Call,
    Golden,
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

ALPHA = float(np.float32(0.3))
"""The default, as the operator rounds it."""


class DeepNormGrad(layer_norm_backward.LayerNormBackward):
    """Rows and columns; gamma in the dtype of x, the statistics, dbeta and dgamma in float32."""

    name = "deep_norm_grad"
    picture = "Deep norm", (4096, 1024)

    def sweep(self, size: int, itemsize: int) -> Iterator[Shape]:
        """dy, x, gx, dx and dgx."""
        return sweep.matrices(size // (5 * itemsize))

    def bytes(self, shape: Shape, itemsize: int) -> int:
        """dy, x, gx, dx and dgx; mean and rstd; gamma, dbeta and dgamma."""
        rows, columns = shape
        return rows * (5 * columns * itemsize + 8) + columns * (itemsize + 8)

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Normal data; mean and rstd are those of the sum, as the forward hands them over."""
        import descend

        rows, columns = shape
        dy, x, gx = (normal(shape, dtype, rng) for _ in range(3))
        mean, rstd = aligned((rows, 1), "float32"), aligned((rows, 1), "float32")
        total = ALPHA * x.astype(np.float32) + gx.astype(np.float32)
        descend.layer_norm(total, (columns,), eps=EPSILON, out=(total, mean, rstd))
        gamma = normal((columns,), dtype, rng, 0.1, 1)
        inputs = {"dy": dy, "x": x, "gx": gx, "gamma": gamma, "mean": mean, "rstd": rstd}
        outputs = {"dx_out": aligned(shape, dtype), "dgx_out": aligned(shape, dtype)}
        outputs |= {name: aligned((columns,), "float32") for name in ("dbeta_out", "dgamma_out")}
        return Problem(shape, dtype, inputs, outputs, {"alpha": ALPHA})

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole rows for the gradients of x and gx, whole columns for the sums."""
        from descend import reference

        dy, x, gx, gamma, mean, rstd = problem.inputs.values()
        rows, columns = sample(x.shape[0], x.shape[1], rng), sample(x.shape[1], x.shape[0], rng)
        of_rows = reference.deep_norm_grad(dy[rows], x[rows], gx[rows], gamma, mean[rows], rstd[rows], ALPHA)[:2]
        part = np.s_[:, columns]
        sums = reference.deep_norm_grad(dy[part], x[part], gx[part], gamma[columns], mean, rstd, ALPHA)[2:]
        terms = root_mean_square(dy[rows].astype(np.float64) * gamma.astype(np.float64) * rstd[rows])
        # Where the sum is near its mean, as in a row of one element, what it is made of is larger.
        parts = root_mean_square(dy[rows].astype(np.float64) * gx[rows].astype(np.float64) * rstd[rows])
        return (
            *(Golden(rows, values, terms * size) for values, size in zip(of_rows, (ALPHA, 1.0), strict=True)),
            *(Golden(columns, values, parts) for values in sums),
        )

    def torch_eager(self) -> Mapping[str, Route]:
        """PyTorch's operator for layer norm of the sum, autograd, and the formula by hand."""
        return {
            "native_layer_norm_backward of the sum": native,
            "autograd of F.layer_norm of the sum": autograd(deep_norm),
            "the formula in eager operations": formula_call,
        }

    def torch_compile(self) -> Mapping[str, Route]:
        """The compiled formula, and autograd through the compiled forward."""
        from benchmarks.frameworks import compiled

        return {
            "the compiled formula": lambda *tensors: formula_call(*tensors, function=compiled(formula)),
            "autograd of compiled F.layer_norm": lambda *tensors: autograd(compiled(deep_norm))(*tensors),
        }

    def jax(self) -> Mapping[str, Route]:
        """The formula and the vector-Jacobian product, each under jit."""
        return {"jit of the formula": jax_formula, "jit of vjp": jax_vjp}

    def onednn(self) -> Mapping[str, Route]:
        """It has no such primitive."""
        return {}

    def yardstick(self) -> tuple[str, Route]:
        """Layer norm's gradient in PyTorch, after the sum."""
        return "torch.ops.aten.native_layer_norm_backward", native


def deep_norm(x: Tensor, gx: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """The forward as one would write it in PyTorch."""
    from torch.nn import functional

    return functional.layer_norm(ALPHA * x + gx, gamma.shape, gamma, beta, EPSILON)


def autograd(forward: Any) -> Route:
    """The backward pass alone."""

    def route(dy: Tensor, x: Tensor, gx: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor) -> Call:
        inputs = (x, gx, gamma.new_zeros(gamma.shape), gamma)
        return backward_of(lambda x, gx, beta, gamma: forward(x, gx, gamma, beta), inputs, dy)

    return route


def native(dy: Tensor, x: Tensor, gx: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor) -> Call:
    """Layer norm's operator on the sum, in x's dtype."""
    import torch

    backward, shape, mask = torch.ops.aten.native_layer_norm_backward, list(gamma.shape), [True, True, True]
    mean, rstd, beta = mean.to(x.dtype), rstd.to(x.dtype), torch.zeros_like(gamma)

    def run() -> tuple[Tensor, ...]:
        dgx, dgamma, dbeta = backward(dy, torch.add(gx, x, alpha=ALPHA), shape, mean, rstd, gamma, beta, mask)
        return ALPHA * dgx, dgx, dbeta, dgamma

    return run


def formula(dy: Tensor, x: Tensor, gx: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor) -> tuple[Tensor, ...]:
    """The operator as one would write it in PyTorch, computed in float32."""
    total = ALPHA * x.float() + gx.float()
    dgx, dgamma, dbeta = layer_norm_backward.formula(dy, total, mean, rstd, gamma, gamma)
    return (ALPHA * dgx).to(x.dtype), dgx.to(x.dtype), dbeta, dgamma


formula_call = partial(layer_norm_backward.formula_call, function=formula)


def jax_formula(*arrays: Any) -> Call:
    """The same formula in JAX."""
    import jax.numpy as jnp

    from benchmarks.frameworks import jitted

    def backward(dy: Any, x: Any, gx: Any, gamma: Any, mean: Any, rstd: Any) -> Any:
        total = ALPHA * x.astype(jnp.float32) + gx.astype(jnp.float32)
        dgx, dgamma, dbeta = layer_norm_backward.jax_backward(dy, total, mean, rstd, gamma)
        return (ALPHA * dgx).astype(x.dtype), dgx.astype(x.dtype), dbeta, dgamma

    return jitted(backward, *arrays)


def jax_vjp(dy: Any, x: Any, gx: Any, gamma: Any, mean: Any, rstd: Any) -> Call:
    """What JAX derives itself; it computes the statistics again."""
    import jax
    import jax.numpy as jnp

    from benchmarks.frameworks import jitted

    def forward(x: Any, gx: Any, beta: Any, gamma: Any) -> Any:
        total = ALPHA * x.astype(jnp.float32) + gx.astype(jnp.float32)
        centred = total - total.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + EPSILON)
        return (centred * scale * gamma.astype(jnp.float32) + beta).astype(x.dtype)

    beta = jnp.zeros(gamma.shape, jnp.float32)
    return jitted(lambda dy, *leaves: jax.vjp(forward, *leaves)[1](dy), dy, x, gx, beta, gamma)


OPERATOR = DeepNormGrad()
