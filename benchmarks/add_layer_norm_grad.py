"""AddLayerNormGrad: what is measured, and how each peer does the same job. Much is as for layer norm's gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import layer_norm_backward, sweep
from benchmarks.layer_norm_backward import EPSILON
from benchmarks.operator import Call, Golden, Problem, Route, Shape, aligned, normal, root_mean_square, sample

if TYPE_CHECKING:
    from torch import Tensor


class AddLayerNormGrad(layer_norm_backward.LayerNormBackward):
    """Rows and columns; gamma in the dtype of x1, the rest of the parameters in float32; a gradient of the sum."""

    name = "add_layer_norm_grad"
    picture: tuple[str, Shape] | None = None

    def sweep(self, size: int, itemsize: int) -> Iterator[Shape]:
        """dy, x1, x2, dsum and dx."""
        return sweep.matrices(size // (5 * itemsize))

    def bytes(self, shape: Shape, itemsize: int) -> int:
        """dy, x1, x2, dsum and dx; mean and rstd; gamma, dgamma and dbeta."""
        rows, columns = shape
        return rows * (5 * columns * itemsize + 8) + columns * (itemsize + 8)

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Normal data; mean and rstd are those of the sum, as the forward hands them over."""
        import descend

        rows, columns = shape
        dy, x1, x2, dsum = (normal(shape, dtype, rng) for _ in range(4))
        mean, rstd = aligned((rows, 1), "float32"), aligned((rows, 1), "float32")
        total = x1.astype(np.float32) + x2.astype(np.float32)
        descend.layer_norm(total, (columns,), eps=EPSILON, out=(total, mean, rstd))
        gamma = normal((columns,), dtype, rng, 0.1, 1)
        inputs = {"dy": dy, "x1": x1, "x2": x2, "rstd": rstd, "mean": mean, "gamma": gamma, "dsum": dsum}
        outputs = {"dx_out": aligned(shape, dtype)}
        outputs |= {name: aligned((columns,), "float32") for name in ("dgamma_out", "dbeta_out")}
        return Problem(shape, dtype, inputs, outputs)

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole rows for dx, whole columns for the sums."""
        from descend import reference

        dy, x1, x2, rstd, mean, gamma, dsum = problem.inputs.values()
        rows, columns = sample(dy.shape[0], dy.shape[1], rng), sample(dy.shape[1], dy.shape[0], rng)
        given = (dy[rows], x1[rows], x2[rows], rstd[rows], mean[rows], gamma, dsum[rows])
        dx = reference.add_layer_norm_grad(*given)[0]
        part = np.s_[:, columns]
        sums = reference.add_layer_norm_grad(dy[part], x1[part], x2[part], rstd, mean, gamma[columns])[1:]
        wide = dy[rows].astype(np.float64) * rstd[rows]
        terms, parts = root_mean_square(wide * gamma), root_mean_square(wide * x2[rows])
        return Golden(rows, dx, terms), *(Golden(columns, values, parts) for values in sums)

    def torch_eager(self) -> Mapping[str, Route]:
        """PyTorch's operator for layer norm of the sum, and the formula by hand."""
        return {"native_layer_norm_backward of the sum": native, "the formula in eager operations": formula_call}

    def torch_compile(self) -> Mapping[str, Route]:
        """The compiled formula."""
        from benchmarks.frameworks import compiled

        return {"the compiled formula": lambda *tensors: formula_call(*tensors, function=compiled(formula))}

    def jax(self) -> Mapping[str, Route]:
        """The formula under jit."""
        return {"jit of the formula": jax_formula}

    def onednn(self) -> Mapping[str, Route]:
        """It has no such primitive."""
        return {}

    def yardstick(self) -> tuple[str, Route]:
        """Layer norm's gradient in PyTorch, between two sums."""
        return "torch.ops.aten.native_layer_norm_backward between sums", native


def native(dy: Tensor, x1: Tensor, x2: Tensor, rstd: Tensor, mean: Tensor, gamma: Tensor, dsum: Tensor) -> Call:
    """Layer norm's operator on the sum, in its dtype."""
    import torch

    backward, shape, mask = torch.ops.aten.native_layer_norm_backward, list(gamma.shape), [True, True, True]
    mean, rstd, beta = mean.to(dy.dtype), rstd.to(dy.dtype), torch.zeros_like(gamma)

    def run() -> tuple[Tensor, ...]:
        dx, dgamma, dbeta = backward(dy, x1 + x2, shape, mean, rstd, gamma, beta, mask)
        return dx + dsum, dgamma, dbeta

    return run


def formula(
    dy: Tensor, x1: Tensor, x2: Tensor, rstd: Tensor, mean: Tensor, gamma: Tensor, dsum: Tensor
) -> tuple[Tensor, ...]:
    """The operator as one would write it in PyTorch, computed in float32."""
    dx, dgamma, dbeta = layer_norm_backward.formula(dy, x1.float() + x2.float(), mean, rstd, gamma, gamma)
    return (dx + dsum.float()).to(dy.dtype), dgamma, dbeta


formula_call = partial(layer_norm_backward.formula_call, function=formula)


def jax_formula(*arrays: Any) -> Call:
    """The same formula in JAX."""
    import jax.numpy as jnp

    from benchmarks.frameworks import jitted

    def backward(dy: Any, x1: Any, x2: Any, rstd: Any, mean: Any, gamma: Any, dsum: Any) -> Any:
        total = x1.astype(jnp.float32) + x2.astype(jnp.float32)
        dx, dgamma, dbeta = layer_norm_backward.jax_backward(dy, total, mean, rstd, gamma)
        return (dx + dsum.astype(jnp.float32)).astype(dy.dtype), dgamma, dbeta

    return jitted(backward, *arrays)


OPERATOR = AddLayerNormGrad()
