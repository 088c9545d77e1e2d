"""GroupNormSwishGrad: what is measured, and how each peer does the same job."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import kinds, near, sweep
from benchmarks.near import Room
from benchmarks.operator import (
    Array,
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

EPSILON = 1e-5
QUICK: list[Shape] = [
    (1, 32, 4, 1),
    (2, 32, 2, 4 * 4),
    (32, 32, 8, 7 * 7),
    (4, 32, 4, 32 * 32),
    (8, 32, 10, 64 * 64),
    (2, 32, 4, 256 * 256),
]
MORE: list[Shape] = [
    (4096, 32, 16, 1),
    (64, 32, 16, 2 * 2),
    (64, 32, 8, 14 * 14),
    (16, 32, 4, 28 * 28),
    (1, 32, 2, 64 * 64),
    (1, 32, 1, 1000 * 1000),
]


class GroupNormSwishGrad(Operator):
    """Samples, groups, channels of a group, pixels; every tensor in one dtype but for the statistics: float32."""

    name = "group_norm_swish_grad"
    kind = kinds.IMAGES
    picture: tuple[str, Shape] | None = "Group norm + swish", (8, 32, 10, 64 * 64)
    quick = tuple(QUICK)
    full = tuple(sorted(QUICK + MORE, key=math.prod))
    small = ((2, 32, 2, 4 * 4), "float32")
    nothing = (0, 32, 1, 1)

    def sweep(self, size: int, itemsize: int) -> Iterator[Shape]:
        """dy, x and dx."""
        return sweep.images(size // (3 * itemsize))

    def bytes(self, shape: Shape, itemsize: int) -> int:
        """dy, x and dx; mean and rstd; gamma, beta and their gradients."""
        samples, groups, width, pixels = shape
        return samples * groups * (3 * width * pixels * itemsize + 8) + 4 * groups * width * itemsize

    def near(self, shape: Shape, room: Room) -> tuple[Shape, Shape]:
        """Some groups, or channels of one."""
        return near.images(shape, room)

    def row(self, shape: Shape) -> int:
        """A group."""
        return shape[2] * shape[3]

    def settings(self, shape: Shape) -> Mapping[str, Any]:
        """The statistics tell the groups, but not to a compiler."""
        return {"groups": shape[1]}

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Normal data; mean and rstd are those of x, as the forward operator hands them over."""
        import descend

        samples, groups, width, pixels = shape
        channels, images = (groups * width,), (samples, groups * width, pixels)
        x, dx = normal(images, dtype, rng), aligned(images, dtype)
        mean, rstd = aligned((samples, groups), "float32"), aligned((samples, groups), "float32")
        gamma, beta = normal(channels, dtype, rng, 0.1, 1), normal(channels, dtype, rng, 0.1)
        descend.group_norm_swish(x, gamma, beta, groups, eps=EPSILON, out=(dx, mean, rstd))
        dy = normal(images, dtype, rng)
        inputs = {"dy": dy, "mean": mean, "rstd": rstd, "x": x, "gamma": gamma, "beta": beta}
        outputs = {"dx_out": dx, "dgamma_out": aligned(channels, dtype), "dbeta_out": aligned(channels, dtype)}
        return Problem(shape, dtype, inputs, outputs, {"num_groups": groups})

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole groups for dx, whole channels for the sums: as if each were a group, which they do not depend on."""
        samples, groups, width, pixels = problem.shape
        rows = sample(samples, width * pixels, rng)
        chosen = sample(groups, len(rows) * width * pixels, rng)
        across = (chosen[:, None] * width + np.arange(width)).ravel()
        channels = sample(groups * width, samples * pixels, rng)
        dx, _, _ = backward(problem.inputs, rows, chosen, across)
        _, dgamma, dbeta = backward(problem.inputs, np.arange(samples), channels // width, channels)
        images = np.ix_(rows, across)
        dy, rstd, gamma = (problem.inputs[name] for name in ("dy", "rstd", "gamma"))
        slopes = gamma[across].astype(np.float64) * rstd[np.ix_(rows, across // width)]  # times the swish's, about 1
        terms = root_mean_square(dy[images].astype(np.float64) * slopes[:, :, None])
        return Golden(images, dx, terms), Golden(channels, dgamma), Golden(channels, dbeta)

    def torch_eager(self) -> Mapping[str, Route]:
        """Autograd, and the formula by hand."""
        return {"autograd of F.silu(F.group_norm)": autograd(forward), "the formula in eager operations": formula_call}

    def torch_compile(self) -> Mapping[str, Route]:
        """The compiled formula, and autograd through the compiled forward."""
        from benchmarks.frameworks import compiled

        return {
            "the compiled formula": lambda *tensors, groups: formula_call(
                *tensors, groups=groups, function=compiled(formula)
            ),
            "autograd of the compiled forward": autograd(compiled(forward)),
        }

    def jax(self) -> Mapping[str, Route]:
        """The formula under jit."""
        return {"jit of the formula": jax_formula}

    def onednn(self) -> Mapping[str, Route]:
        """A primitive each for swish and for the norm."""
        from benchmarks import onednn

        return {
            "eltwise_backward and group_normalization_backward": partial(
                onednn.group_norm_swish_backward, epsilon=EPSILON
            )
        }

    def arithmetic(self, problem: Problem, threads: int) -> Callable[[], float] | None:
        """Of 16-bit elements, as the kernel computes them, on data in first-level caches."""
        from descend import _native

        if problem.dtype == "float32":
            return None
        elements, brain = math.prod(problem.shape), problem.dtype == "bfloat16"
        return partial(_native.group_norm_swish_grad_arithmetic, brain, elements, threads, 0.02)

    def yardstick(self) -> tuple[str, Route]:
        """PyTorch's group norm backward, without the swish."""
        return "torch.ops.aten.native_group_norm_backward", group_norm_backward


def backward(inputs: Mapping[str, Array], rows: Array, groups: Array, channels: Array) -> tuple[Array, Array, Array]:
    """The reference on some samples and some groups with their channels."""
    from descend import reference

    statistics, elements = np.ix_(rows, groups), np.ix_(rows, channels)
    dx, dgamma, dbeta = reference.group_norm_swish_grad(
        inputs["dy"][elements],
        inputs["mean"][statistics],
        inputs["rstd"][statistics],
        inputs["x"][elements],
        inputs["gamma"][channels],
        inputs["beta"][channels],
        len(groups),
    )
    assert dgamma is not None
    assert dbeta is not None
    return dx, dgamma, dbeta


def forward(x: Tensor, gamma: Tensor, beta: Tensor, groups: int) -> Tensor:
    """PyTorch's forward."""
    from torch.nn import functional

    return functional.silu(functional.group_norm(x, groups, gamma, beta, EPSILON))


def autograd(function: Any) -> Route:
    """The backward pass alone."""

    def route(dy: Tensor, mean: Tensor, rstd: Tensor, x: Tensor, gamma: Tensor, beta: Tensor, groups: int) -> Call:
        return backward_of(lambda *inputs: function(*inputs, groups), (x, gamma, beta), dy)

    return route


def formula(
    dy: Tensor, mean: Tensor, rstd: Tensor, x: Tensor, gamma: Tensor, beta: Tensor, groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The operator as one would write it in PyTorch, computed in float32."""
    shape = (x.shape[0], groups, x.shape[1] // groups, -1)
    weight, bias = (tensor.float().view(1, *shape[1:3], 1) for tensor in (gamma, beta))
    scale = rstd.view(*shape[:2], 1, 1)
    xhat = (x.float().view(shape) - mean.view(*shape[:2], 1, 1)) * scale
    z = xhat * weight + bias
    sig = z.sigmoid()
    dz = dy.float().view(shape) * sig * (1 + z * (1 - sig))
    g = dz * weight
    dx = scale * (g - g.mean((2, 3), keepdim=True) - xhat * (g * xhat).mean((2, 3), keepdim=True))
    dgamma, dbeta = (dz * xhat).sum((0, 3)).view(-1), dz.sum((0, 3)).view(-1)
    return dx.view(x.shape).to(x.dtype), dgamma.to(x.dtype), dbeta.to(x.dtype)


def formula_call(*tensors: Tensor, groups: int, function: Any = formula) -> Call:
    """The formula on these tensors."""
    return lambda: function(*tensors, groups)


def group_norm_backward(
    dy: Tensor, mean: Tensor, rstd: Tensor, x: Tensor, gamma: Tensor, beta: Tensor, groups: int
) -> Call:
    """PyTorch's operator on the same tensors."""
    import torch

    function, mask = torch.ops.aten.native_group_norm_backward, [True, True, True]
    samples, channels = x.shape[:2]
    inner = math.prod(x.shape[2:])
    return lambda: function(dy, x, mean, rstd, gamma, samples, channels, inner, groups, mask)


def jax_formula(dy: Any, mean: Any, rstd: Any, x: Any, gamma: Any, beta: Any, groups: int) -> Call:
    """The same formula in JAX."""
    import jax
    import jax.numpy as jnp

    from benchmarks.frameworks import jitted

    def run(dy: Any, mean: Any, rstd: Any, x: Any, gamma: Any, beta: Any) -> Any:
        shape = (x.shape[0], groups, x.shape[1] // groups, -1)
        weight, bias = (a.astype(jnp.float32).reshape(1, *shape[1:3], 1) for a in (gamma, beta))
        scale = rstd[:, :, None, None]
        xhat = (x.astype(jnp.float32).reshape(shape) - mean[:, :, None, None]) * scale
        z = xhat * weight + bias
        sig = jax.nn.sigmoid(z)
        dz = dy.astype(jnp.float32).reshape(shape) * sig * (1 + z * (1 - sig))
        g = dz * weight
        dx = scale * (g - g.mean((2, 3), keepdims=True) - xhat * (g * xhat).mean((2, 3), keepdims=True))
        sums = [(a.sum((0, 3)).reshape(-1)).astype(x.dtype) for a in (dz * xhat, dz)]
        return dx.reshape(x.shape).astype(x.dtype), *sums

    return jitted(run, dy, mean, rstd, x, gamma, beta)


OPERATOR = GroupNormSwishGrad()
