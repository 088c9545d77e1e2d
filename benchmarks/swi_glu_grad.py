"""SwiGluGrad: what is measured, and how each peer does the same job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import sweep, swi_glu
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
from benchmarks.rms_norm import call

if TYPE_CHECKING:
    from torch import Tensor


class SwiGluGrad(swi_glu.SwiGlu):
    """Rows and columns of a half; x and the result have twice as many columns."""

    name = "swi_glu_grad"
    picture = "SwiGLU", (4096, 2752)

    def sweep(self, size: int, itemsize: int) -> Iterator[Shape]:
        """The gradient, and both halves of x and of the result."""
        return sweep.matrices(size // (5 * itemsize))

    def bytes(self, shape: Shape, itemsize: int) -> int:
        """The gradient, and both halves of x and of the result."""
        rows, columns = shape
        return 5 * rows * columns * itemsize

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Normal data."""
        both = (shape[0], 2 * shape[1])
        inputs = {"y_grad": normal(shape, dtype, rng), "x": normal(both, dtype, rng)}
        return Problem(shape, dtype, inputs, {"out": aligned(both, dtype)})

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole rows; where the slope of swish is near 0, the terms are larger."""
        from descend import reference

        dy, x = problem.inputs.values()
        rows = sample(x.shape[0], x.shape[1], rng)
        return (Golden(rows, reference.swi_glu_grad(dy[rows], x[rows]), root_mean_square(dy[rows].astype(np.float64))),)

    def torch_eager(self) -> Mapping[str, Route]:
        """PyTorch's operators, autograd, and the formula by hand."""
        return {
            "silu_backward and products": call(operators),
            "autograd of F.silu and a product": autograd(swi_glu.silu_and_product),
            "the formula in eager operations": call(formula),
        }

    def torch_compile(self) -> Mapping[str, Route]:
        """The compiled formula, and autograd through the compiled forward."""
        from benchmarks.frameworks import compiled

        return {
            "the compiled formula": call(compiled(formula)),
            "autograd of compiled F.silu and a product": lambda dy, x: autograd(compiled(swi_glu.silu_and_product))(
                dy, x
            ),
        }

    def jax(self) -> Mapping[str, Route]:
        """The formula under jit."""
        return {"jit of the formula": jax_formula}

    def yardstick(self) -> tuple[str, Route]:
        """PyTorch's operators."""
        return "torch.ops.aten.silu_backward and products", call(operators)


def operators(dy: Tensor, x: Tensor) -> Tensor:
    """The gradient by PyTorch's operators, in x's dtype."""
    import torch

    a, b = x.chunk(2, -1)
    return torch.cat((torch.ops.aten.silu_backward(dy * b, a), torch.nn.functional.silu(a) * dy), -1)


def autograd(forward: Any) -> Route:
    """The backward pass alone."""
    return lambda dy, x: backward_of(forward, (x,), dy)


def formula(dy: Tensor, x: Tensor) -> Tensor:
    """The operator as one would write it in PyTorch, computed in float32."""
    import torch

    a, b = x.float().chunk(2, -1)
    sig, dy = a.sigmoid(), dy.float()
    return torch.cat((dy * sig * (1 + a * (1 - sig)) * b, dy * sig * a), -1).to(x.dtype)


def jax_formula(dy: Any, x: Any) -> Call:
    """The same formula in JAX."""
    import jax
    import jax.numpy as jnp

    from benchmarks.frameworks import jitted

    def backward(dy: Any, x: Any) -> Any:
        a, b = jnp.split(x.astype(jnp.float32), 2, -1)
        sig, wide = jax.nn.sigmoid(a), dy.astype(jnp.float32)
        return jnp.concatenate((wide * sig * (1 + a * (1 - sig)) * b, wide * sig * a), -1).astype(x.dtype)

    return jitted(backward, dy, x)


OPERATOR = SwiGluGrad()
