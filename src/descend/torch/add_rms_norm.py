"""RMS norm of a sum. Its gradient is RMS norm's, of the sum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from descend.torch import definitions
from descend.torch.batching import batch_first, call_each
from descend.torch.derivatives import add_through_statistics, keep, results_again
from descend.torch.library import Operator, recording, statistics_dtype
from descend.torch.rms_norm import rms_norm_grad
from descend.torch.sharding import Split, rows, sharded

_FORWARD = Operator("add_rms_norm")


def add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """RMS norm of a sum, and the sum. Differentiable in ``x1``, ``x2`` and ``gamma``::

        x    = x1 + x2
        rstd = 1 / sqrt(mean(x * x over the row) + epsilon)
        y    = x * rstd * gamma

    Shapes: ``x2`` as ``x1``; ``gamma`` has the last dimensions of ``x1``. Floating dtypes, mixed at will. Returns ``y``
    like ``x1``, ``rstd``, float32 (float64 for float64 ``x1``), of ``x1``'s rank with 1 for each dimension of
    ``gamma``, and ``x`` like ``x1``. ``y`` is computed from the sum before that is rounded; its gradients are those of
    `rms_norm_grad`, from ``x``.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnAddRmsNorm.
    """
    result: tuple[Tensor, Tensor, Tensor] = _FORWARD(x1, x2, gamma, epsilon)
    return result


@_FORWARD.fake
def _fake(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    statistics = [*x1.shape[: x1.dim() - gamma.dim()], *[1] * gamma.dim()]
    y, x = (x1.new_empty(x1.shape) for _ in range(2))
    return y, x1.new_empty(statistics, dtype=statistics_dtype(x1)), x


class _AddRmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, keyset: Any, named: dict[str, Any], x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float
    ) -> Any:
        y, rstd, x = _FORWARD.forward(keyset, (x1, x2, gamma, epsilon), named)
        terms = (keep(x1), keep(x2)) if recording() else (None, None)  # the sum has all that is asked of them
        of_x = ctx.needs_input_grad[2] or ctx.needs_input_grad[3]  # dgamma does not ask for gamma
        ctx.save_for_backward(*terms, keep(gamma, of_x), rstd, x)
        ctx.epsilon, ctx.of_x = epsilon, of_x
        ctx.set_materialize_grads(False)
        return y, rstd, x

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, drstd: Tensor | None, dx: Tensor | None) -> Any:
        x1, x2, gamma, rstd, x = ctx.saved_tensors
        if x1 is not None:
            rstd, x = results_again(_FORWARD, (x1, x2, gamma, ctx.epsilon), (rstd, x))
        dgamma = None
        if dy is not None:
            through_y, dgamma = rms_norm_grad(dy, x, rstd, gamma)
            dx = through_y if dx is None else dx + through_y
        if drstd is not None and ctx.of_x:
            dx = add_through_statistics(dx, x, None, rstd, None, drstd, gamma.numel())
        return None, None, dx, dx, dgamma, None


_FORWARD.differentiable(_AddRmsNorm, definitions.add_rms_norm)


@_FORWARD.batched
def _batched(
    size: int, dims: list[int | None], x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float
) -> tuple[Any, Any]:
    if dims[2] is not None:
        return call_each(_FORWARD, size, dims, (x1, x2, gamma, epsilon))
    x1, x2 = (batch_first(x, dim, size) for x, dim in zip((x1, x2), dims, strict=False))
    return _FORWARD.overload(x1, x2, gamma, epsilon), (0, 0, 0)


@sharded(_FORWARD)
def _sharded(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float) -> Iterable[Split]:
    return [Split((d, d, None), (d, d, d)) for d in rows(x1, gamma.dim())]
