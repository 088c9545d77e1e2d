"""RMS norm and its gradient."""

from __future__ import annotations

from collections.abc import Iterable
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


@_FORWARD.fake
def _fake_forward(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    statistics = [*x.shape[: x.dim() - gamma.dim()], *[1] * gamma.dim()]
    return x.new_empty(x.shape), x.new_empty(statistics, dtype=statistics_dtype(x))


@_BACKWARD.fake
def _fake_backward(dy: Tensor, x: Tensor, rstd: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(gamma.shape, dtype=statistics_dtype(x))


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keyset: Any, named: dict[str, Any], x: Tensor, gamma: Tensor, epsilon: float) -> Any:
        y, rstd = _FORWARD.forward(keyset, (x, gamma, epsilon), named)
        ctx.save_for_backward(keep(x), keep(gamma, ctx.needs_input_grad[2]), rstd)  # dgamma does not ask for gamma
        ctx.epsilon = epsilon
        ctx.set_materialize_grads(False)
        return y, rstd

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, drstd: Tensor | None) -> Any:
        x, gamma, rstd = ctx.saved_tensors
        (rstd,) = results_again(_FORWARD, (x, gamma, ctx.epsilon), (rstd,))
        dx = dgamma = None
        if dy is not None:
            dx, dgamma = _BACKWARD.overload(dy, x, rstd, gamma)
        if drstd is not None and ctx.needs_input_grad[2]:
            dx = add_through_statistics(dx, x, None, rstd, None, drstd, gamma.numel())
        return None, None, dx, dgamma, None


_FORWARD.differentiable(_RmsNorm, definitions.rms_norm)
differentiate_backward(_BACKWARD, definitions.rms_norm_grad)


@_FORWARD.batched
def _batched_forward(size: int, dims: list[int | None], x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Any, Any]:
    if dims[1] is not None:
        return call_each(_FORWARD, size, dims, (x, gamma, epsilon))
    return _FORWARD.overload(batch_first(x, dims[0], size), gamma, epsilon), (0, 0)


@_BACKWARD.batched
def _batched_backward(
    size: int, dims: list[int | None], dy: Tensor, x: Tensor, rstd: Tensor, gamma: Tensor
) -> tuple[Any, Any]:
    return call_each(_BACKWARD, size, dims, (dy, x, rstd, gamma))


@sharded(_FORWARD)
def _sharded_forward(x: Tensor, gamma: Tensor, epsilon: float) -> Iterable[Split]:
    return [Split((d, None), (d, d)) for d in rows(x, gamma.dim())]


@sharded(_BACKWARD)
def _sharded_backward(dy: Tensor, x: Tensor, rstd: Tensor, gamma: Tensor) -> Iterable[Split]:
    return [Split((d, d, d, None), (d, "sum")) for d in rows(x, gamma.dim(), rstd)]
