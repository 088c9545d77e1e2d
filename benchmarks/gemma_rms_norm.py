"""GemmaRmsNorm: RMS norm with the weight 1 + gamma, which the peers compute in each call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import rms_norm
from benchmarks.operator import Golden, Problem, Route, sample
from benchmarks.rms_norm import call
from benchmarks.rms_norm_grad import EPSILON
from benchmarks.rms_norm_grad import rms_norm as norm

if TYPE_CHECKING:
    from torch import Tensor


class GemmaRmsNorm(rms_norm.RmsNorm):
    """Rows and columns; gamma in the dtype of x, rstd in float32."""

    name = "gemma_rms_norm"

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole rows."""
        from descend import reference

        x, gamma = problem.inputs.values()
        rows = sample(x.shape[0], x.shape[1], rng)
        return tuple(Golden(rows, part) for part in reference.gemma_rms_norm(x[rows], gamma, EPSILON))

    def torch_eager(self) -> Mapping[str, Route]:
        """PyTorch's operator, and the formula by hand."""
        return {"F.rms_norm by 1 + gamma": call(by_one_more), "the formula in eager operations": call(formula)}

    def torch_compile(self) -> Mapping[str, Route]:
        """Both, compiled."""
        from benchmarks.frameworks import compiled

        return {
            "the compiled formula": call(compiled(formula)),
            "compiled F.rms_norm by 1 + gamma": call(compiled(by_one_more)),
        }

    def jax(self) -> Mapping[str, Route]:
        """The formula under jit."""
        return {"jit of the formula": lambda x, gamma: rms_norm.jax_formula(x, gamma, 1.0)}

    def onednn(self) -> Mapping[str, Route]:
        """It has no such primitive."""
        return {}

    def yardstick(self) -> tuple[str, Route]:
        """PyTorch's operator."""
        return "torch.nn.functional.rms_norm by 1 + gamma", call(by_one_more)


def by_one_more(x: Tensor, gamma: Tensor) -> Tensor:
    """PyTorch's operator; in 16 bits the weight is rounded."""
    return norm(x, 1 + gamma)


def formula(x: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """The operator as one would write it in PyTorch, computed in float32."""
    return rms_norm.formula(x, 1 + gamma.float())


OPERATOR = GemmaRmsNorm()
