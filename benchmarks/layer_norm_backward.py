"""LayerNormBackward: what is measured, and how each peer does the same job."""

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
from benchmarks.rms_norm_grad import MORE, QUICK, fewest_rows

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-5


class LayerNormBackward(Operator):
    """Rows and columns; the parameters and their gradients in the dtype of the input, the statistics in float32."""

    name = "layer_norm_backward"
    sums_columns = True
    picture: tuple[str, Shape] | None = "Layer norm", (4096, 1024)
    quick = tuple(QUICK)
    full = tuple(sorted(QUICK + MORE, key=lambda shape: (shape[0] * shape[1], shape[1])))
    small = ((8, 64), "float32")
    nothing = (0, 8)

    def sweep(self, size: int, itemsize: int) -> Iterator[Shape]:
        """grad_out, input and the input's gradient."""
        return sweep.matrices(size // (3 * itemsize))

    def bytes(self, shape: Shape, itemsize: int) -> int:
        """grad_out, input and the input's gradient; mean and rstd; weight, bias and their gradients."""
        rows, columns = shape
        return rows * (3 * columns * itemsize + 8) + 4 * columns * itemsize

    def near(self, shape: Shape, room: Room) -> tuple[Shape, Shape]:
        """Some rows."""
        return near.matrices(shape, room, fewest_rows(shape))

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Normal data; mean and rstd are those of the input, as the forward operator hands them over."""
        import descend

        rows, columns = shape
        x, gradient = normal(shape, dtype, rng), aligned(shape, dtype)
        mean, rstd = aligned((rows, 1), "float32"), aligned((rows, 1), "float32")
        descend.layer_norm(x, (columns,), eps=EPSILON, out=(gradient, mean, rstd))
        inputs = {
            "grad_out": normal(shape, dtype, rng),
            "input": x,
            "mean": mean,
            "rstd": rstd,
            "weight": normal((columns,), dtype, rng, 0.1, 1),
            "bias": normal((columns,), dtype, rng, 0.1),
        }
        outputs = {"grad_input_out": gradient}
        outputs |= {name: aligned((columns,), dtype) for name in ("grad_weight_out", "grad_bias_out")}
        return Problem(shape, dtype, inputs, outputs, {"normalized_shape": (columns,)})

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole rows for the input's gradient, whole columns for the sums."""
        from descend import reference

        dy, x, mean, rstd, weight, _ = problem.inputs.values()
        rows, columns = sample(x.shape[0], x.shape[1], rng), sample(x.shape[1], x.shape[0], rng)
        dx = reference.layer_norm_backward(dy[rows], x[rows], x.shape[1], mean[rows], rstd[rows], weight)[0]
        sums = reference.layer_norm_backward(
            dy[:, columns], x[:, columns], len(columns), mean, rstd, weight[columns], output_mask=(False, True, True)
        )[1:]
        terms = root_mean_square(dy[rows].astype(np.float64) * weight.astype(np.float64) * rstd[rows])
        return Golden(rows, np.asarray(dx), terms), *(Golden(columns, np.asarray(total)) for total in sums)

    def torch_eager(self) -> Mapping[str, Route]:
        """PyTorch's operator, autograd, and the formula by hand."""
        return {
            "native_layer_norm_backward": native,
            "autograd of F.layer_norm": autograd(layer_norm),
            "the formula in eager operations": formula_call,
        }

    def torch_compile(self) -> Mapping[str, Route]:
        """The compiled formula, and autograd through the compiled forward."""
        from benchmarks.frameworks import compiled

        return {
            "the compiled formula": lambda *tensors: formula_call(*tensors, function=compiled(formula)),
            "autograd of compiled F.layer_norm": lambda *tensors: autograd(compiled(layer_norm))(*tensors),
        }

    def jax(self) -> Mapping[str, Route]:
        """The formula and the vector-Jacobian product, each under jit."""
        return {"jit of the formula": jax_formula, "jit of vjp": jax_vjp}

    def onednn(self) -> Mapping[str, Route]:
        """Its primitive."""
        from benchmarks import onednn

        return {"layer_normalization_backward": partial(onednn.layer_norm_backward, epsilon=EPSILON)}

    def yardstick(self) -> tuple[str, Route]:
        """The same operator in PyTorch."""
        return "torch.ops.aten.native_layer_norm_backward", native


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """PyTorch's forward."""
    from torch.nn import functional

    return functional.layer_norm(x, weight.shape, weight, bias, EPSILON)


def autograd(forward: Any) -> Route:
    """The backward pass alone."""
    return lambda dy, x, mean, rstd, weight, bias: backward_of(forward, (x, weight, bias), dy)


def native(dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor) -> Call:
    """PyTorch's operator; beside 16-bit parameters it takes the statistics in 16 bits."""
    import torch

    backward, shape, mask = torch.ops.aten.native_layer_norm_backward, list(weight.shape), [True, True, True]
    mean, rstd = mean.to(x.dtype), rstd.to(x.dtype)
    return lambda: backward(dy, x, shape, mean, rstd, weight, bias, mask)


def formula(
    dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The operator as one would write it in PyTorch, computed in float32."""
    wide = dy.float()
    xhat = (x.float() - mean) * rstd
    g = wide * weight.float()
    dx = rstd * (g - g.mean(-1, keepdim=True) - xhat * (g * xhat).mean(-1, keepdim=True))
    return dx.to(x.dtype), (wide * xhat).sum(0).to(x.dtype), wide.sum(0).to(x.dtype)


def formula_call(*tensors: Tensor, function: Any = formula) -> Call:
    """The formula on these tensors."""
    return lambda: function(*tensors)


def jax_formula(dy: Any, x: Any, mean: Any, rstd: Any, weight: Any, bias: Any) -> Call:
    """The same formula in JAX."""

    from benchmarks.frameworks import jitted

    return jitted(jax_backward, dy, x, mean, rstd, weight)


def jax_backward(dy: Any, x: Any, mean: Any, rstd: Any, weight: Any) -> Any:
    """The formula of `formula`."""
    import jax.numpy as jnp

    wide, xhat = dy.astype(jnp.float32), (x.astype(jnp.float32) - mean) * rstd
    g = wide * weight.astype(jnp.float32)
    dx = rstd * (g - g.mean(-1, keepdims=True) - xhat * (g * xhat).mean(-1, keepdims=True))
    return dx.astype(x.dtype), (wide * xhat).sum(0).astype(x.dtype), wide.sum(0).astype(x.dtype)


def jax_vjp(dy: Any, x: Any, mean: Any, rstd: Any, weight: Any, bias: Any) -> Call:
    """What JAX derives itself; it computes the statistics again."""
    import jax
    import jax.numpy as jnp

    from benchmarks.frameworks import jitted

    def forward(x: Any, weight: Any, bias: Any) -> Any:
        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + EPSILON)
        return (centred * scale * weight.astype(jnp.float32) + bias.astype(jnp.float32)).astype(x.dtype)

    return jitted(lambda dy, x, weight, bias: jax.vjp(forward, x, weight, bias)[1](dy), dy, x, weight, bias)


OPERATOR = LayerNormBackward()
