"""CrossEntropyLossGrad: what is measured, and how each peer does the same job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import kinds
from benchmarks.cross_entropy_loss import CrossEntropyLoss, targets
from benchmarks.operator import Call, Golden, Problem, Route, Shape, aligned, normal, root_mean_square, sample
from benchmarks.rms_norm import call

if TYPE_CHECKING:
    from torch import Tensor


class CrossEntropyLossGrad(CrossEntropyLoss):
    """Tokens and classes."""

    name = "cross_entropy_loss_grad"
    kind = kinds.CLASSES_ALONE

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Logarithms of probabilities of normal scores, and a gradient of each row's loss."""
        from descend import cross_entropy_loss

        target, log_prob = targets(shape, rng), normal(shape, dtype, rng, 2.0)
        cross_entropy_loss(log_prob, target, out=(None, log_prob, ..., ...))
        inputs = {"grad_loss": normal(shape[:1], dtype, rng), "log_prob": log_prob, "target": target}
        return Problem(shape, dtype, inputs, {"out": aligned(shape, dtype)}, {"reduction": "none"})

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole rows."""
        from descend import reference

        grad, log_prob, target = problem.inputs.values()
        rows = sample(log_prob.shape[0], log_prob.shape[1], rng)
        values = reference.cross_entropy_loss_grad(grad[rows], log_prob[rows], target[rows], reduction="none")
        return (Golden(rows, values, root_mean_square(values)),)

    def torch_eager(self) -> Mapping[str, Route]:
        """The backward operators of which F.cross_entropy's gradient consists, and the formula by hand."""
        return {
            "nll_loss_backward and _log_softmax_backward_data": call(operators),
            "the formula in eager operations": call(formula),
        }

    def torch_compile(self) -> Mapping[str, Route]:
        """The compiled formula."""
        from benchmarks.frameworks import compiled

        return {"the compiled formula": call(compiled(formula))}

    def jax(self) -> Mapping[str, Route]:
        """The formula under jit."""
        return {"jit of the formula": jax_formula}

    def yardstick(self) -> tuple[str, Route]:
        """PyTorch's operators."""
        return "nll_loss_backward and _log_softmax_backward_data", call(operators)


def operators(grad: Tensor, log_prob: Tensor, target: Tensor) -> Tensor:
    """The gradient by PyTorch's operators."""
    import torch

    total = torch.full((), float(len(log_prob)), dtype=log_prob.dtype)
    aten: Any = torch.ops.aten
    of_log_prob = aten.nll_loss_backward(grad, log_prob, target, None, 0, -100, total)
    result: Tensor = aten._log_softmax_backward_data(of_log_prob, log_prob, 1, log_prob.dtype)
    return result


def formula(grad: Tensor, log_prob: Tensor, target: Tensor) -> Tensor:
    """The operator as one would write it in PyTorch, computed in float32."""
    import torch

    is_target = torch.arange(log_prob.shape[1]) == target[:, None]
    return ((log_prob.float().exp() - is_target.float()) * grad.float()[:, None]).to(log_prob.dtype)


def jax_formula(grad: Any, log_prob: Any, target: Any) -> Call:
    """The same formula in JAX."""
    import jax.numpy as jnp

    from benchmarks.frameworks import jitted

    def backward(grad: Any, log_prob: Any, target: Any) -> Any:
        is_target = jnp.arange(log_prob.shape[1]) == target[:, None]
        share = grad.astype(jnp.float32)[:, None]
        return ((jnp.exp(log_prob.astype(jnp.float32)) - is_target) * share).astype(log_prob.dtype)

    return jitted(backward, grad, log_prob, target)


OPERATOR = CrossEntropyLossGrad()
