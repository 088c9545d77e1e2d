"""LayerNorm: what is measured, and how each peer does the same job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import layer_norm_backward, near, sweep
from benchmarks.layer_norm_backward import EPSILON
from benchmarks.near import Room
from benchmarks.operator import Call, Golden, Operator, Problem, Route, Shape, aligned, normal, sample
from benchmarks.rms_norm import call

if TYPE_CHECKING:
    from torch import Tensor


class LayerNorm(Operator):
    """Rows and columns; the parameters in the dtype of the input, the statistics in float32."""

    name = "layer_norm"
    quick, full = layer_norm_backward.OPERATOR.quick, layer_norm_backward.OPERATOR.full
    small = ((8, 64), "float32")
    nothing = (0, 8)

    def sweep(self, size: int, itemsize: int) -> Iterator[Shape]:
        """input and out."""
        return sweep.matrices(size // (2 * itemsize))

    def bytes(self, shape: Shape, itemsize: int) -> int:
        """input and out; mean and rstd; weight and bias."""
        rows, columns = shape
        return rows * (2 * columns * itemsize + 8) + 2 * columns * itemsize

    def near(self, shape: Shape, room: Room) -> tuple[Shape, Shape]:
        """Some rows."""
        return near.matrices(shape, room)

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Normal data."""
        rows, columns = shape
        inputs = {
            "input": normal(shape, dtype, rng),
            "weight": normal((columns,), dtype, rng, 0.1, 1),
            "bias": normal((columns,), dtype, rng, 0.1),
        }
        outputs = {"out": aligned(shape, dtype)}
        outputs |= {name: aligned((rows, 1), "float32") for name in ("mean_out", "rstd_out")}
        return Problem(shape, dtype, inputs, outputs, {"normalized_shape": (columns,), "eps": EPSILON})

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole rows."""
        from descend import reference

        x, weight, bias = problem.inputs.values()
        rows = sample(x.shape[0], x.shape[1], rng)
        return tuple(Golden(rows, part) for part in reference.layer_norm(x[rows], x.shape[1], weight, bias, EPSILON))

    def torch_eager(self) -> Mapping[str, Route]:
        """PyTorch's operator, and the formula by hand."""
        return {"native_layer_norm": call(native), "the formula in eager operations": call(formula)}

    def torch_compile(self) -> Mapping[str, Route]:
        """Both, compiled."""
        from benchmarks.frameworks import compiled

        return {"the compiled formula": call(compiled(formula)), "compiled native_layer_norm": call(compiled(native))}

    def jax(self) -> Mapping[str, Route]:
        """The formula under jit."""
        return {"jit of the formula": jax_formula}

    def onednn(self) -> Mapping[str, Route]:
        """Its primitive."""
        from benchmarks import onednn

        return {"layer_normalization": partial(onednn.layer_norm, epsilon=EPSILON)}

    def yardstick(self) -> tuple[str, Route]:
        """The same operator in PyTorch."""
        return "torch.ops.aten.native_layer_norm", call(native)


def native(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    """PyTorch's operator."""
    import torch

    return torch.ops.aten.native_layer_norm(x, weight.shape, weight, bias, EPSILON)


def formula(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The operator as one would write it in PyTorch, computed in float32."""
    wide = x.float()
    mean = wide.mean(-1, keepdim=True)
    centred = wide - mean
    rstd = (centred.square().mean(-1, keepdim=True) + EPSILON).rsqrt()
    return (centred * rstd * weight.float() + bias.float()).to(x.dtype), mean, rstd


def jax_forward(x: Any, weight: Any, bias: Any) -> tuple[Any, Any, Any]:
    """The same formula in JAX."""
    import jax
    import jax.numpy as jnp

    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    centred = wide - mean
    rstd = jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + EPSILON)
    out = centred * rstd * weight.astype(jnp.float32) + bias.astype(jnp.float32)
    return out.astype(x.dtype), mean, rstd


def jax_formula(x: Any, weight: Any, bias: Any) -> Call:
    """The same under jit."""

    from benchmarks.frameworks import jitted

    return jitted(jax_forward, x, weight, bias)


OPERATOR = LayerNorm()
