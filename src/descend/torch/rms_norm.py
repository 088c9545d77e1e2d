"""RMS norm and its gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from descend.torch import definitions
from descend.torch.batching import batch_first, call_each
from descend.torch.derivatives import add_through_statistics, differentiate_backward, keep, results_again
from descend.torch.library import Operator, statistics_dtype
from descend.torch.sharding import Split, rows, sharded

_FORWARD = Operator("rms_norm")
_BACKWARD = Operator("rms_norm_grad")


def rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """RMS norm: each row divided by its root mean square, times a weight. Differentiable in ``x`` and ``gamma``::

        rstd = 1 / sqrt(mean(x * x over the row) + epsilon)
        y    = x * rstd * gamma

    Shapes: ``gamma`` has the last dimensions of ``x``. Floating dtypes, mixed at will. Returns ``y`` like ``x`` and
    ``rstd``, float32 (float64 for float64 ``x``), of ``x``'s rank with 1 for each dimension of ``gamma``.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnRmsNorm.
    """
    result: tuple[Tensor, Tensor] = _FORWARD(x, gamma, epsilon)
    return result


def rms_norm_grad(dy: Tensor, x: Tensor, rstd: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of RMS norm; differentiable in all four::

        xhat   = x * rstd
        g      = dy * gamma
        dx     = rstd * (g - xhat * mean(g * xhat over the row))
        dgamma = sum over rows of dy * xhat

    Shapes: ``dy`` as ``x``, ``gamma`` the last dimensions of ``x``, ``rstd`` one number a row. Returns ``dx`` like
    ``x`` and ``dgamma`` shaped as ``gamma``, float32 (float64 for float64 ``x``).

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnRmsNormGrad.
    """
    result: tuple[Tensor, Tensor] = _BACKWARD(dy, x, rstd, gamma)
    return result


@_BACKWARD.fake
def _fake_backward(dy: Tensor, x: Tensor, rstd: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(gamma.shape, dtype=statistics_dtype(x))


differentiate_backward(_BACKWARD, definitions.rms_norm_grad)


@_BACKWARD.batched
def _batched_backward(
    size: int, dims: list[int | None], dy: Tensor, x: Tensor, rstd: Tensor, gamma: Tensor
) -> tuple[Any, Any]:
    return call_each(_BACKWARD, size, dims, (dy, x, rstd, gamma))


@sharded(_BACKWARD)
def _sharded_backward(dy: Tensor, x: Tensor, rstd: Tensor, gamma: Tensor) -> Iterable[Split]:
    return [Split((d, d, d, None), (d, "sum")) for d in rows(x, gamma.dim(), rstd)]


def define(operator: Operator, definition: Any, weight: Callable[[Tensor], Tensor]) -> None:
    """Defines shapes, gradients, batches and shards of RMS norm with the weight ``weight(gamma)``."""

    @operator.fake
    def _fake(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
        statistics = [*x.shape[: x.dim() - gamma.dim()], *[1] * gamma.dim()]
        return x.new_empty(x.shape), x.new_empty(statistics, dtype=statistics_dtype(x))

    class _RmsNorm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, keyset: Any, named: dict[str, Any], x: Tensor, gamma: Tensor, epsilon: float) -> Any:
            y, rstd = operator.forward(keyset, (x, gamma, epsilon), named)
            ctx.save_for_backward(keep(x), keep(gamma, ctx.needs_input_grad[2]), rstd)  # dgamma does not ask for gamma
            ctx.epsilon = epsilon
            ctx.set_materialize_grads(False)
            return y, rstd

        @staticmethod
        def backward(ctx: Any, dy: Tensor | None, drstd: Tensor | None) -> Any:
            x, gamma, rstd = ctx.saved_tensors
            (rstd,) = results_again(operator, (x, gamma, ctx.epsilon), (rstd,))
            dx = dgamma = None
            if dy is not None:
                dx, dgamma = _BACKWARD.overload(dy, x, rstd, weight(gamma))
            if drstd is not None and ctx.needs_input_grad[2]:
                dx = add_through_statistics(dx, x, None, rstd, None, drstd, gamma.numel())
            return None, None, dx, dgamma, None

    operator.differentiable(_RmsNorm, definition)

    @operator.batched
    def _batched(size: int, dims: list[int | None], x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Any, Any]:
        if dims[1] is not None:
            return call_each(operator, size, dims, (x, gamma, epsilon))
        return operator.overload(batch_first(x, dims[0], size), gamma, epsilon), (0, 0)

    @sharded(operator)
    def _sharded(x: Tensor, gamma: Tensor, epsilon: float) -> Iterable[Split]:
        return [Split((d, None), (d, d)) for d in rows(x, gamma.dim())]


define(_FORWARD, definitions.rms_norm, lambda gamma: gamma)
