"""RMS norm with the weight 1 + gamma. Its gradient is RMS norm's with that weight."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from descend.torch import definitions
from descend.torch.batching import batch_first, call_each
from descend.torch.derivatives import add_through_statistics, keep, results_again
from descend.torch.library import Operator, statistics_dtype
from descend.torch.rms_norm import rms_norm_grad
from descend.torch.sharding import Split, rows, sharded

_FORWARD = Operator("gemma_rms_norm")


def gemma_rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """RMS norm as Gemma has it. Differentiable in ``x`` and ``gamma``::

        rstd = 1 / sqrt(mean(x * x over the row) + epsilon)
        y    = x * rstd * (1 + gamma)

    Shapes: ``gamma`` has the last dimensions of ``x``. Floating dtypes, mixed at will. Returns ``y`` like ``x`` and
    ``rstd``, float32 (float64 for float64 ``x``), of ``x``'s rank with 1 for each dimension of ``gamma``.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnGemmaRmsNorm.
    """
    result: tuple[Tensor, Tensor] = _FORWARD(x, gamma, epsilon)
    return result


@_FORWARD.fake
def _fake(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    statistics = [*x.shape[: x.dim() - gamma.dim()], *[1] * gamma.dim()]
    return x.new_empty(x.shape), x.new_empty(statistics, dtype=statistics_dtype(x))


class _GemmaRmsNorm(torch.autograd.Function):
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
            dx, dgamma = rms_norm_grad(dy, x, rstd, 1 + gamma.to(statistics_dtype(gamma)))
        if drstd is not None and ctx.needs_input_grad[2]:
            dx = add_through_statistics(dx, x, None, rstd, None, drstd, gamma.numel())
        return None, None, dx, dgamma, None


_FORWARD.differentiable(_GemmaRmsNorm, definitions.gemma_rms_norm)


@_FORWARD.batched
def _batched(size: int, dims: list[int | None], x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Any, Any]:
    if dims[1] is not None:
        return call_each(_FORWARD, size, dims, (x, gamma, epsilon))
    return _FORWARD.overload(batch_first(x, dims[0], size), gamma, epsilon), (0, 0)


@sharded(_FORWARD)
def _sharded(x: Tensor, gamma: Tensor, epsilon: float) -> Iterable[Split]:
    return [Split((d, None), (d, d)) for d in rows(x, gamma.dim())]
