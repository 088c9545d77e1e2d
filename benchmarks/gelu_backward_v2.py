"""GeluBackwardV2 by erf: what is measured, and how each peer does the same job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import gelu_v2
from benchmarks.operator import Call, Golden, Problem, Route, Shape, aligned, normal, root_mean_square, sample
from benchmarks.rms_norm import call
from benchmarks.swi_glu_grad import autograd

if TYPE_CHECKING:
    from torch import Tensor


class GeluBackwardV2(gelu_v2.GeluV2):
    """Rows and columns of all tensors."""

    name = "gelu_backward_v2"
    picture = "GELU", (4096, 4096)
    tensors = 3

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Normal data."""
        inputs = {"grad_output": normal(shape, dtype, rng), "x": normal(shape, dtype, rng)}
        return Problem(shape, dtype, inputs, {"grad_input": aligned(shape, dtype)})

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole rows; where the slope is near 0, the terms are larger."""
        from descend import reference

        dy, x = problem.inputs.values()
        rows = sample(x.shape[0], x.shape[1], rng)
        terms = root_mean_square(dy[rows].astype(np.float64))
        return (Golden(rows, reference.gelu_backward_v2(dy[rows], x[rows]), terms),)

    def torch_eager(self) -> Mapping[str, Route]:
        """PyTorch's operator, autograd, and the formula by hand."""
        return {
            "gelu_backward": call(operator),
            "autograd of F.gelu": autograd(gelu_v2.gelu),
            "the formula in eager operations": call(formula),
        }

    def torch_compile(self) -> Mapping[str, Route]:
        """The compiled formula, and autograd through the compiled forward."""
        from benchmarks.frameworks import compiled

        return {
            "the compiled formula": call(compiled(formula)),
            "autograd of compiled F.gelu": lambda dy, x: autograd(compiled(gelu_v2.gelu))(dy, x),
        }

    def jax(self) -> Mapping[str, Route]:
        """The gradient of JAX's gelu under jit."""
        return {"jit of the gradient of jax.nn.gelu": jax_gradient}

    def yardstick(self) -> tuple[str, Route]:
        """PyTorch's operator."""
        return "torch.ops.aten.gelu_backward", call(operator)


def operator(dy: Tensor, x: Tensor) -> Tensor:
    """PyTorch's own."""
    import torch

    result: Tensor = torch.ops.aten.gelu_backward(dy, x)
    return result


def formula(dy: Tensor, x: Tensor) -> Tensor:
    """The operator as one would write it in PyTorch, computed in float32."""
    import torch

    wide = x.float()
    share: Tensor = torch.special.erfc(wide * -(0.5**0.5)) / 2
    return (dy.float() * (share + wide * (wide * wide * -0.5).exp() * 0.3989422804014327)).to(x.dtype)


def jax_gradient(dy: Any, x: Any) -> Call:
    """The gradient of JAX's own, in float32."""
    import jax
    import jax.numpy as jnp

    from benchmarks.frameworks import jitted

    def forward(x: Any) -> Any:
        return jax.nn.gelu(x.astype(jnp.float32), approximate=False).astype(x.dtype)

    return jitted(lambda dy, x: jax.vjp(forward, x)[1](dy)[0], dy, x)


OPERATOR = GeluBackwardV2()
