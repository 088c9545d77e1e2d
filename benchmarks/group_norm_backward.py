"""GroupNormBackward: what is measured, and how each peer does the same job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import group_norm, group_norm_swish_grad
from benchmarks.group_norm_swish_grad import GroupNormSwishGrad
from benchmarks.operator import Array, Call, Golden, Problem, Route, Shape, backward_of, root_mean_square, sample

if TYPE_CHECKING:
    from torch import Tensor


class GroupNormBackward(GroupNormSwishGrad):
    """Samples, groups, channels of a group, pixels; every tensor in one dtype but for the statistics: float32."""

    name = "group_norm_backward"
    picture = None  # the README has group norm + swish

    def bytes(self, shape: Shape, itemsize: int) -> int:
        """dy, x and dx; mean and rstd; gamma and the parameters' gradients."""
        return super().bytes(shape, itemsize) - shape[1] * shape[2] * itemsize

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Those of group norm + swish, without beta."""
        samples, groups, width, pixels = shape
        made = super().make(shape, dtype, rng)
        dy, mean, rstd, x, gamma, _ = made.inputs.values()
        inputs = {"grad_out": dy, "input": x, "mean": mean, "rstd": rstd, "gamma": gamma}
        names = ("grad_input", "grad_gamma_out", "grad_beta_out")
        outputs = dict(zip(names, made.outputs.values(), strict=True))
        sizes = {"n": samples, "c": groups * width, "hxw": pixels, "group": groups}
        return Problem(shape, dtype, inputs, outputs, sizes)

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
        dy, rstd, gamma = (problem.inputs[name] for name in ("grad_out", "rstd", "gamma"))
        slopes = gamma[across].astype(np.float64) * rstd[np.ix_(rows, across // width)]
        terms = root_mean_square(dy[images].astype(np.float64) * slopes[:, :, None])
        return Golden(images, dx, terms), Golden(channels, dgamma), Golden(channels, dbeta)

    def torch_eager(self) -> Mapping[str, Route]:
        """PyTorch's operator, autograd, and the formula by hand."""
        return {
            "native_group_norm_backward": operator,
            "autograd of F.group_norm": autograd(group_norm.forward),
            "the formula in eager operations": call(formula),
        }

    def torch_compile(self) -> Mapping[str, Route]:
        """The compiled formula, and autograd through the compiled forward."""
        from benchmarks.frameworks import compiled

        return {
            "the compiled formula": call(compiled(formula)),
            "autograd of the compiled forward": autograd(compiled(group_norm.forward)),
        }

    def jax(self) -> Mapping[str, Route]:
        """The formula under jit."""
        return {"jit of the formula": jax_formula}

    def onednn(self) -> Mapping[str, Route]:
        """It has the norm's gradient, which is not bound here without swish."""
        return {}

    def arithmetic(self, problem: Problem, threads: int) -> Callable[[], float] | None:
        """Memory takes longer."""
        return None

    def yardstick(self) -> tuple[str, Route]:
        """PyTorch's operator."""
        return "torch.ops.aten.native_group_norm_backward", operator


def backward(inputs: Mapping[str, Array], rows: Array, groups: Array, channels: Array) -> tuple[Any, ...]:
    """The reference on some samples and some groups with their channels."""
    from descend import reference

    statistics, elements = np.ix_(rows, groups), np.ix_(rows, channels)
    dy, x = (inputs[name][elements] for name in ("grad_out", "input"))
    sizes = (len(rows), len(channels), x.shape[2], len(groups))
    mean, rstd = (inputs[name][statistics] for name in ("mean", "rstd"))
    return reference.group_norm_backward(dy, x, mean, rstd, inputs["gamma"][channels], *sizes)


def autograd(function: Any) -> Route:
    """The backward pass alone."""

    def route(dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, gamma: Tensor, groups: int) -> Call:
        beta = gamma.detach().clone()
        return backward_of(lambda *inputs: function(*inputs, groups), (x, gamma, beta), dy)

    return route


def operator(dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, gamma: Tensor, groups: int) -> Call:
    """PyTorch's operator on the same tensors; it has the statistics in the dtype of gamma."""
    mean, rstd = (statistic.to(gamma.dtype) for statistic in (mean, rstd))
    return group_norm_swish_grad.group_norm_backward(dy, mean, rstd, x, gamma, gamma, groups)


def call(function: Any) -> Route:
    """A function of the inputs and the groups as a job."""
    return lambda *tensors, groups: lambda: function(*tensors, groups)


def formula(
    dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, gamma: Tensor, groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The operator as one would write it in PyTorch, computed in float32."""
    shape = (x.shape[0], groups, x.shape[1] // groups, -1)
    scale = rstd.view(*shape[:2], 1, 1)
    xhat = (x.float().view(shape) - mean.view(*shape[:2], 1, 1)) * scale
    dz = dy.float().view(shape)
    g = dz * gamma.float().view(1, *shape[1:3], 1)
    dx = scale * (g - g.mean((2, 3), keepdim=True) - xhat * (g * xhat).mean((2, 3), keepdim=True))
    dgamma, dbeta = (dz * xhat).sum((0, 3)).view(-1), dz.sum((0, 3)).view(-1)
    return dx.view(x.shape).to(x.dtype), dgamma.to(x.dtype), dbeta.to(x.dtype)


def jax_formula(dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, groups: int) -> Call:
    """The same formula in JAX."""
    from benchmarks.frameworks import jitted
    from descend.jax import definitions

    def run(dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any) -> Any:
        n, c, hxw = x.shape
        return definitions.group_norm_backward(dy, x, mean, rstd, gamma, n, c, hxw, groups, (True, True, True))

    return jitted(run, dy, x, mean, rstd, gamma)


OPERATOR = GroupNormBackward()
