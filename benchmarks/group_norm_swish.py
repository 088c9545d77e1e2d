"""GroupNormSwish: what is measured, and how each peer does the same job."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import group_norm_swish_grad, kinds, near, near_time, sweep
from benchmarks.group_norm_swish_grad import EPSILON
from benchmarks.near import Room
from benchmarks.operator import Call, Golden, Operator, Problem, Route, Shape, aligned, normal, sample

if TYPE_CHECKING:
    from torch import Tensor

CACHED: Shape = (1, 1, 8, 512)
"""Elements in 16 bits that lie in a first-level cache, in and out."""


class GroupNormSwish(Operator):
    """Samples, groups, channels of a group, pixels; the parameters in the dtype of x, the statistics in float32."""

    name = "group_norm_swish"
    kind = kinds.IMAGES
    quick, full = group_norm_swish_grad.OPERATOR.quick, group_norm_swish_grad.OPERATOR.full
    small = ((2, 32, 2, 4 * 4), "float32")
    nothing = (0, 32, 1, 1)

    def sweep(self, size: int, itemsize: int) -> Iterator[Shape]:
        """x and y."""
        return sweep.images(size // (2 * itemsize))

    def bytes(self, shape: Shape, itemsize: int) -> int:
        """x and y; mean and rstd; gamma and beta."""
        samples, groups, width, pixels = shape
        return samples * groups * (2 * width * pixels * itemsize + 8) + 2 * groups * width * itemsize

    def near(self, shape: Shape, room: Room) -> tuple[Shape, Shape]:
        """Some groups, or channels of one."""
        return near.images(shape, room)

    def row(self, shape: Shape) -> int:
        """A group."""
        return shape[2] * shape[3]

    def settings(self, shape: Shape) -> Mapping[str, Any]:
        """The groups."""
        return {"groups": shape[1]}

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Normal data."""
        samples, groups, width, pixels = shape
        channels, images = (groups * width,), (samples, groups * width, pixels)
        inputs = {
            "x": normal(images, dtype, rng),
            "gamma": normal(channels, dtype, rng, 0.1, 1),
            "beta": normal(channels, dtype, rng, 0.1),
        }
        outputs = {"y_out": aligned(images, dtype)}
        outputs |= {name: aligned((samples, groups), "float32") for name in ("mean_out", "rstd_out")}
        return Problem(shape, dtype, inputs, outputs, {"num_groups": groups, "eps": EPSILON})

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole groups."""
        return self.golden_groups(problem, rng, activate=True)

    def golden_groups(self, problem: Problem, rng: np.random.Generator, activate: bool) -> tuple[Golden, ...]:
        """The same, with swish or without."""
        from descend import reference

        samples, groups, width, pixels = problem.shape
        x, gamma, beta = problem.inputs.values()
        rows = sample(samples, width * pixels, rng)
        chosen = sample(groups, len(rows) * width * pixels, rng)
        channels = (chosen[:, None] * width + np.arange(width)).ravel()
        elements, statistics = np.ix_(rows, channels), np.ix_(rows, chosen)
        y, mean, rstd = reference.group_norm_swish(
            x[elements], gamma[channels], beta[channels], len(chosen), eps=EPSILON, activate_swish=activate
        )
        return Golden(elements, y), Golden(statistics, mean), Golden(statistics, rstd)

    def torch_eager(self) -> Mapping[str, Route]:
        """PyTorch's operators, and the formula by hand."""
        return {
            "F.silu(F.group_norm)": call(group_norm_swish_grad.forward),
            "the formula in eager operations": call(formula),
        }

    def torch_compile(self) -> Mapping[str, Route]:
        """Both, compiled."""
        from benchmarks.frameworks import compiled

        return {
            "the compiled formula": call(compiled(formula)),
            "compiled F.silu(F.group_norm)": call(compiled(group_norm_swish_grad.forward)),
        }

    def jax(self) -> Mapping[str, Route]:
        """The formula under jit."""
        return {"jit of the formula": jax_formula}

    def onednn(self) -> Mapping[str, Route]:
        """Its primitive, with swish on what it stores."""
        from benchmarks import onednn

        return {"group_normalization with swish": partial(onednn.group_norm_swish, epsilon=EPSILON)}

    def arithmetic(self, problem: Problem, threads: int) -> Callable[[], float] | None:
        """Of 16-bit elements: the operator itself on data in first-level caches, less an empty call."""
        if problem.dtype == "float32":
            return None
        seconds = near_time.stopwatch(self, (CACHED, self.nothing), problem.dtype)
        times = math.prod(problem.shape) / math.prod(CACHED) / threads
        return lambda: seconds() * times

    def yardstick(self) -> tuple[str, Route]:
        """PyTorch's group norm, without the swish."""
        return "torch.ops.aten.native_group_norm", native


def call(function: Any) -> Route:
    """A function of the inputs and the groups as a job."""
    return lambda *tensors, groups: lambda: function(*tensors, groups)


def native(x: Tensor, gamma: Tensor, beta: Tensor, groups: int) -> Call:
    """PyTorch's operator on the same tensors."""
    import torch

    function, inner = torch.ops.aten.native_group_norm, math.prod(x.shape[2:])
    return lambda: function(x, gamma, beta, x.shape[0], x.shape[1], inner, groups, EPSILON)


def formula(x: Tensor, gamma: Tensor, beta: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """The operator as one would write it in PyTorch, computed in float32."""
    wide = x.float().view(x.shape[0], groups, x.shape[1] // groups, -1)
    weight, bias = (tensor.float().view(1, *wide.shape[1:3], 1) for tensor in (gamma, beta))
    mean = wide.mean((2, 3), keepdim=True)
    centred = wide - mean
    rstd = (centred.square().mean((2, 3), keepdim=True) + EPSILON).rsqrt()
    z = centred * rstd * weight + bias
    y = (z * z.sigmoid()).view(x.shape).to(x.dtype)
    return y, mean[:, :, 0, 0], rstd[:, :, 0, 0]


def jax_formula(x: Any, gamma: Any, beta: Any, groups: int) -> Call:
    """The same formula in JAX."""
    import jax
    import jax.numpy as jnp

    from benchmarks.frameworks import jitted

    def forward(x: Any, gamma: Any, beta: Any) -> Any:
        wide = x.astype(jnp.float32).reshape(x.shape[0], groups, x.shape[1] // groups, -1)
        weight, bias = (a.astype(jnp.float32).reshape(1, *wide.shape[1:3], 1) for a in (gamma, beta))
        mean = wide.mean((2, 3), keepdims=True)
        centred = wide - mean
        rstd = jax.lax.rsqrt((centred * centred).mean((2, 3), keepdims=True) + EPSILON)
        z = centred * rstd * weight + bias
        return (z * jax.nn.sigmoid(z)).reshape(x.shape).astype(x.dtype), mean[:, :, 0, 0], rstd[:, :, 0, 0]

    return jitted(forward, x, gamma, beta)


OPERATOR = GroupNormSwish()
