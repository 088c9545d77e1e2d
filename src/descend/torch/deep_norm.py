"""Deep norm, which is layer norm of ``alpha * x + gx``, and its gradient."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from descend.torch import definitions
from descend.torch.batching import batch_first, call_each
from descend.torch.derivatives import add_through_statistics, differentiate_backward, keep
from descend.torch.library import Operator, recording, statistics_dtype
from descend.torch.sharding import Split, rows, sharded

_FORWARD = Operator("deep_norm")
_BACKWARD = Operator("deep_norm_grad")


def deep_norm(
    x: Tensor, gx: Tensor, beta: Tensor, gamma: Tensor, alpha: float = 0.3, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """Deep norm. Differentiable in ``x``, ``gx``, ``beta`` and ``gamma``::

        z         = alpha * x + gx
        mean, var = mean and biased variance of each row of z
        rstd      = 1 / sqrt(var + epsilon)
        y         = (z - mean) * rstd * gamma + beta

    Shapes: ``gx`` as ``x``; ``gamma`` and ``beta`` the last dimensions of ``x``. Floating dtypes, mixed at will.
    Returns ``mean`` and ``rstd``, float32 (float64 for float64 ``x``), of ``x``'s rank with 1 for each dimension of
    ``gamma``, and ``y`` like ``x``.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnDeepNorm.
    """
    result: tuple[Tensor, Tensor, Tensor] = _FORWARD(x, gx, beta, gamma, alpha, epsilon)
    return result


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


@_FORWARD.fake
def _fake_forward(
    x: Tensor, gx: Tensor, beta: Tensor, gamma: Tensor, alpha: float = 0.3, epsilon: float = 1e-6
) -> tuple[Tensor, ...]:
    statistics = [*x.shape[: x.dim() - gamma.dim()], *[1] * gamma.dim()]
    mean, rstd = (x.new_empty(statistics, dtype=statistics_dtype(x)) for _ in range(2))
    return mean, rstd, x.new_empty(x.shape)


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


class _DeepNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        keyset: Any,
        named: dict[str, Any],
        x: Tensor,
        gx: Tensor,
        beta: Tensor,
        gamma: Tensor,
        alpha: float,
        epsilon: float,
    ) -> Any:
        results = _FORWARD.forward(keyset, (x, gx, beta, gamma, alpha, epsilon), named)
        of_rows = ctx.needs_input_grad[2] or ctx.needs_input_grad[3]  # the others do not ask for gamma
        # The gradient has no beta: it is there for results that are computed again.
        ctx.save_for_backward(
            keep(x), keep(gx), keep(beta, recording()), keep(gamma, of_rows or recording()), *results[:2]
        )
        ctx.alpha, ctx.epsilon = alpha, epsilon
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, dmean: Tensor | None, drstd: Tensor | None, dy: Tensor | None) -> Any:
        x, gx, beta, gamma, mean, rstd = ctx.saved_tensors
        if recording():
            mean, rstd, _ = _FORWARD.overload(x, gx, beta, gamma, ctx.alpha, ctx.epsilon)
        dx = dgx = dbeta = dgamma = None
        if dy is not None:
            dx, dgx, dbeta, dgamma = _BACKWARD.overload(dy, x, gx, gamma, mean, rstd, ctx.alpha)
        if (ctx.needs_input_grad[2] or ctx.needs_input_grad[3]) and not (dmean is None and drstd is None):
            dgx = add_through_statistics(dgx, ctx.alpha * x + gx, mean, rstd, dmean, drstd, gamma.numel())
            dx = (ctx.alpha * dgx).to(x.dtype)
        return None, None, dx, dgx, dbeta, dgamma, None, None


_FORWARD.differentiable(_DeepNorm, definitions.deep_norm)


@_FORWARD.batched
def _batched_forward(
    size: int,
    dims: list[int | None],
    x: Tensor,
    gx: Tensor,
    beta: Tensor,
    gamma: Tensor,
    alpha: float,
    epsilon: float,
) -> tuple[Any, Any]:
    if dims[2] is not None or dims[3] is not None:
        return call_each(_FORWARD, size, dims, (x, gx, beta, gamma, alpha, epsilon))
    x, gx = (batch_first(t, dim, size) for t, dim in zip((x, gx), dims, strict=False))
    return _FORWARD.overload(x, gx, beta, gamma, alpha, epsilon), (0, 0, 0)


@_BACKWARD.batched
def _batched(size: int, dims: list[int | None], *args: Any) -> tuple[Any, Any]:
    return call_each(_BACKWARD, size, dims, args)


@sharded(_FORWARD)
def _sharded_forward(
    x: Tensor, gx: Tensor, beta: Tensor, gamma: Tensor, alpha: float, epsilon: float
) -> Iterable[Split]:
    return [Split((d, d), (d, d, d)) for d in rows(x, gamma.dim())]


@sharded(_BACKWARD)
def _sharded(
    dy: Tensor, x: Tensor, gx: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, alpha: float
) -> Iterable[Split]:
    return [Split((d, d, d, None, d, d), (d, d, "sum", "sum")) for d in rows(x, gamma.dim(), mean, rstd)]
