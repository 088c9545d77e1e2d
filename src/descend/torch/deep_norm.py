"""The gradient of deep norm, which is layer norm of ``alpha * x + gx``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from descend.torch import definitions
from descend.torch.batching import call_each
from descend.torch.derivatives import differentiate_backward
from descend.torch.library import Operator, statistics_dtype
from descend.torch.sharding import Split, rows, sharded

_BACKWARD = Operator("deep_norm_grad")


def deep_norm_grad(
    dy: Tensor, x: Tensor, gx: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, alpha: float = 0.3
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of deep norm; differentiable in all tensors::

        xhat   = (alpha * x + gx - mean) * rstd
        g      = dy * gamma
        dgx    = rstd * (g - mean(g over the row) - xhat * mean(g * xhat over the row))
        dx     = alpha * dgx
        dbeta  = sum over rows of dy
        dgamma = sum over rows of dy * xhat

    Shapes: ``dy`` and ``gx`` as ``x``, ``gamma`` the last dimensions of ``x``, ``mean`` and ``rstd`` one number a row.
    Returns ``dx`` and ``dgx`` like ``x``, ``dbeta`` and ``dgamma`` of gamma's shape, float32 (float64 for float64
    ``x``).

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnDeepNormGrad.
    """
    result: tuple[Tensor, Tensor, Tensor, Tensor] = _BACKWARD(dy, x, gx, gamma, mean, rstd, alpha)
    return result


@_BACKWARD.fake
def _fake(
    dy: Tensor, x: Tensor, gx: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, alpha: float = 0.3
) -> tuple[Tensor, ...]:
    dx, dgx = (x.new_empty(x.shape) for _ in range(2))
    return dx, dgx, *(x.new_empty(gamma.shape, dtype=statistics_dtype(x)) for _ in range(2))


def _definition(
    dy: Tensor, x: Tensor, gx: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, alpha: float = 0.3
) -> tuple[Tensor, ...]:
    """The operator composed of PyTorch's own, for second derivatives and forward mode."""
    dy, wide_x, gx, weight = (t.to(statistics_dtype(t)) for t in (dy, x, gx, gamma))
    gradients = definitions.layer_norm_backward(dy, wide_x * alpha + gx, gamma.shape, mean, rstd, weight)
    dgx, dgamma, dbeta = (g for g in gradients if g is not None)
    return (dgx * alpha).to(x.dtype), dgx.to(x.dtype), *(g.to(statistics_dtype(x)) for g in (dbeta, dgamma))


differentiate_backward(_BACKWARD, _definition)


@_BACKWARD.batched
def _batched(size: int, dims: list[int | None], *args: Any) -> tuple[Any, Any]:
    return call_each(_BACKWARD, size, dims, args)


@sharded(_BACKWARD)
def _sharded(
    dy: Tensor, x: Tensor, gx: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, alpha: float
) -> Iterable[Split]:
    return [Split((d, d, d, None, d, d), (d, d, "sum", "sum")) for d in rows(x, gamma.dim(), mean, rstd)]
