"""SoftmaxBackward along the last dimension: what is measured, and how each peer does the same job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.operator import Call, Golden, Problem, Route, Shape, aligned, normal, root_mean_square, sample
from benchmarks.rms_norm import call
from benchmarks.softmax import Softmax

if TYPE_CHECKING:
    from torch import Tensor


class SoftmaxBackward(Softmax):
    """Rows and columns of all tensors."""

    name = "softmax_backward"
    forward = "softmax"
    picture = None  # the README has the masked one
    tensors = 3

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Normal gradients; what the forward gives for normal scores."""
        import descend

        out, output = normal(shape, dtype, rng), aligned(shape, dtype)
        getattr(descend, self.forward)(out, out=output)
        return Problem(shape, dtype, {"grad_output": normal(shape, dtype, rng), "output": output}, {"out": out})

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole rows; the difference may cancel."""
        from descend import reference

        dy, y = problem.inputs.values()
        rows = sample(y.shape[0], y.shape[1], rng)
        exact = getattr(reference, self.name)(dy[rows], y[rows])
        return (Golden(rows, exact, self.terms(*(a[rows].astype(np.float64) for a in (dy, y)))),)

    def terms(self, dy: Any, y: Any) -> float:
        """The size of what the difference is of."""
        return root_mean_square(dy * y)

    def torch_eager(self) -> Mapping[str, Route]:
        """PyTorch's operator, and the formula by hand."""
        return {"PyTorch's own backward": call(self.own), "the formula in eager operations": call(self.formula)}

    def torch_compile(self) -> Mapping[str, Route]:
        """Both, compiled."""
        from benchmarks.frameworks import compiled

        return {
            "the compiled formula": call(compiled(self.formula)),
            "PyTorch's own backward, compiled": call(compiled(self.own)),
        }

    def jax(self) -> Mapping[str, Route]:
        """The formula under jit."""
        return {"jit of the formula": self.jax_formula}

    def yardstick(self) -> tuple[str, Route]:
        """PyTorch's operator."""
        return f"torch.ops.aten._{self.forward}_backward_data", call(self.own)

    def own(self, dy: Tensor, y: Tensor) -> Tensor:
        """PyTorch's own."""
        import torch

        result: Tensor = getattr(torch.ops.aten, f"_{self.forward}_backward_data")(dy, y, -1, dy.dtype)
        return result

    def formula(self, dy: Tensor, y: Tensor) -> Tensor:
        """The operator as one would write it in PyTorch, computed in float32."""
        wide, dy = y.float(), dy.float()
        return ((dy - (dy * wide).sum(-1, keepdim=True)) * wide).to(y.dtype)

    def jax_formula(self, dy: Any, y: Any) -> Call:
        """The same formula in JAX."""
        import jax.numpy as jnp

        from benchmarks.frameworks import jitted

        def backward(dy: Any, y: Any) -> Any:
            wide, dy = y.astype(jnp.float32), dy.astype(jnp.float32)
            return ((dy - (dy * wide).sum(-1, keepdims=True)) * wide).astype(y.dtype)

        return jitted(backward, dy, y)


OPERATOR = SoftmaxBackward()
