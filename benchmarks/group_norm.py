"""GroupNorm: what is measured, and how each peer does the same job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import group_norm_swish
from benchmarks.group_norm_silu import GroupNormSilu
from benchmarks.group_norm_swish_grad import EPSILON
from benchmarks.operator import Call, Golden, Problem, Route, Shape

if TYPE_CHECKING:
    from torch import Tensor


class GroupNorm(GroupNormSilu):
    """Samples, groups, channels of a group, pixels; the parameters in the dtype of x, the statistics in float32."""

    name = "group_norm"

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Those of group norm + SiLU."""
        samples, groups, width, pixels = shape
        made = super().make(shape, dtype, rng)
        sizes = {"n": samples, "c": groups * width, "hxw": pixels, "group": groups, "eps": EPSILON}
        return Problem(shape, dtype, made.inputs, made.outputs, sizes)

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole groups."""
        return self.golden_groups(problem, rng, activate=False)

    def torch_eager(self) -> Mapping[str, Route]:
        """PyTorch's operator, and the formula by hand."""
        call = group_norm_swish.call
        return {"native_group_norm": group_norm_swish.native, "the formula in eager operations": call(formula)}

    def torch_compile(self) -> Mapping[str, Route]:
        """The compiled formula, and PyTorch's compiled function."""
        from benchmarks.frameworks import compiled

        call = group_norm_swish.call
        return {"the compiled formula": call(compiled(formula)), "compiled F.group_norm": call(compiled(forward))}

    def jax(self) -> Mapping[str, Route]:
        """The formula under jit."""
        return {"jit of the formula": jax_formula}

    def onednn(self) -> Mapping[str, Route]:
        """It has the norm, which is not bound here without swish."""
        return {}

    def arithmetic(self, problem: Problem, threads: int) -> Callable[[], float] | None:
        """Memory takes longer."""
        return None


def forward(x: Tensor, gamma: Tensor, beta: Tensor, groups: int) -> Tensor:
    """PyTorch's forward."""
    from torch.nn import functional

    return functional.group_norm(x, groups, gamma, beta, EPSILON)


def formula(x: Tensor, gamma: Tensor, beta: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """The operator as one would write it in PyTorch, computed in float32."""
    wide = x.float().view(x.shape[0], groups, x.shape[1] // groups, -1)
    weight, bias = (tensor.float().view(1, *wide.shape[1:3], 1) for tensor in (gamma, beta))
    mean = wide.mean((2, 3), keepdim=True)
    centred = wide - mean
    rstd = (centred.square().mean((2, 3), keepdim=True) + EPSILON).rsqrt()
    y = (centred * rstd * weight + bias).view(x.shape).to(x.dtype)
    return y, mean[:, :, 0, 0], rstd[:, :, 0, 0]


def jax_formula(x: Any, gamma: Any, beta: Any, groups: int) -> Call:
    """The same formula in JAX."""
    from benchmarks.frameworks import jitted
    from descend.jax import definitions

    def run(x: Any, gamma: Any, beta: Any) -> Any:
        return definitions.group_norm(x, gamma, beta, x.shape[0], x.shape[1], x.shape[2], groups, EPSILON)

    return jitted(run, x, gamma, beta)


OPERATOR = GroupNorm()
