"""Layer norm of a sum, and its gradient."""

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

_FORWARD = Operator("add_layer_norm")
_BACKWARD = Operator("add_layer_norm_grad")


def add_layer_norm(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    beta: Tensor,
    bias: Tensor | None = None,
    epsilon: float = 1e-5,
    additional_output: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Layer norm of a sum, and the sum. Differentiable in all tensors::

        x         = x1 + x2 + bias
        mean, var = mean and biased variance of each row of x
        rstd      = 1 / sqrt(var + epsilon)
        y         = (x - mean) * rstd * gamma + beta

    Shapes: ``x2`` as ``x1``; ``gamma`` and ``beta`` the last dimensions of ``x1``; ``bias`` as ``gamma`` or as ``x1``,
    None for zeros. Floating dtypes, mixed at will. Returns ``y`` like ``x1``, ``mean`` and ``rstd``, float32 (float64
    for float64 ``x1``), of ``x1``'s rank with 1 for each dimension of ``gamma``, and ``x`` like ``x1``, None without
    ``additional_output``. Where ``x1`` and ``x2`` have two dtypes ``y`` and ``x`` are float32, or float64 if one is.
    ``y`` is computed from the sum before that is rounded; its gradients are those of `add_layer_norm_grad`, from ``x``.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnAddLayerNorm.
    """
    result: tuple[Tensor, Tensor, Tensor, Tensor | None] = _FORWARD(
        x1, x2, gamma, beta, bias, epsilon, additional_output
    )
    return result


def add_layer_norm_grad(
    dy: Tensor,
    x1: Tensor,
    x2: Tensor | None,
    rstd: Tensor,
    mean: Tensor,
    gamma: Tensor,
    dsum: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of layer norm of a sum; differentiable in all tensors::

        xhat   = (x1 + x2 - mean) * rstd
        g      = dy * gamma
        dx     = rstd * (g - mean(g over the row) - xhat * mean(g * xhat over the row)) + dsum
        dgamma = sum over rows of dy * xhat
        dbeta  = sum over rows of dy

    Shapes: ``x1``, ``x2`` and ``dsum`` as ``dy``; ``gamma`` the last dimensions of ``dy``; ``mean`` and ``rstd`` one
    number a row. ``x2`` None: ``x1`` is the sum; ``dsum`` None: nothing came in for it. Returns ``dx`` like ``dy``,
    ``dgamma`` and ``dbeta`` of gamma's shape, float32 (float64 for float64 ``dy``).

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnAddLayerNormGrad.
    """
    result: tuple[Tensor, Tensor, Tensor] = _BACKWARD(dy, x1, x2, rstd, mean, gamma, dsum)
    return result


@_FORWARD.fake
def _fake_forward(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    beta: Tensor,
    bias: Tensor | None = None,
    epsilon: float = 1e-5,
    additional_output: bool = False,
) -> tuple[Tensor | None, ...]:
    statistics = [*x1.shape[: x1.dim() - gamma.dim()], *[1] * gamma.dim()]
    mean, rstd = (x1.new_empty(statistics, dtype=statistics_dtype(x1)) for _ in range(2))
    y, x = (x1.new_empty(x1.shape, dtype=definitions.sum_dtype(x1, x2)) for _ in range(2))
    return y, mean, rstd, x if additional_output else None


@_BACKWARD.fake
def _fake_backward(
    dy: Tensor,
    x1: Tensor,
    x2: Tensor | None,
    rstd: Tensor,
    mean: Tensor,
    gamma: Tensor,
    dsum: Tensor | None = None,
) -> tuple[Tensor, ...]:
    dgamma, dbeta = (dy.new_empty(gamma.shape, dtype=statistics_dtype(dy)) for _ in range(2))
    return dy.new_empty(dy.shape), dgamma, dbeta


class _AddLayerNorm(torch.autograd.Function):
    """Where the sum is a result it is what is kept: a tensor less than its terms."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, named: dict[str, Any], *args: Any) -> Any:
        x1, x2, gamma, beta, bias, epsilon, additional_output = args
        y, mean, rstd, x = _FORWARD.forward(keyset, args, named)
        needs = ctx.needs_input_grad[2:]
        of_rows = needs[0] or needs[1] or needs[4]  # the gradients of the parameters do not ask for gamma
        terms = [keep(t) if x is None or recording() else None for t in (x1, x2, bias)]
        ctx.save_for_backward(*terms, keep(gamma, of_rows or recording()), keep(beta, recording()), mean, rstd, x)
        ctx.attributes, ctx.of_rows = (epsilon, additional_output), of_rows
        ctx.dtypes = [None if t is None else t.dtype for t in (x1, x2, bias)]
        ctx.bias_shape = None if bias is None else bias.shape
        ctx.set_materialize_grads(False)
        return y, mean, rstd, x

    @staticmethod
    def backward(
        ctx: Any, dy: Tensor | None, dmean: Tensor | None, drstd: Tensor | None, dx: Tensor | None = None
    ) -> Any:
        x1, x2, bias, gamma, beta, mean, rstd, x = ctx.saved_tensors
        if recording():
            _, mean, rstd, x = _FORWARD.overload(x1, x2, gamma, beta, bias, *ctx.attributes)
        if x is None and bias is not None:
            x = definitions.sum_of(x1, x2, bias)
        if x is not None:
            x1, x2 = x, None
        dgamma = dbeta = None
        if dy is not None:
            dx, dgamma, dbeta = _BACKWARD.overload(dy, x1, x2, rstd, mean, gamma, dx)
        if ctx.of_rows and not (dmean is None and drstd is None):
            total = x1 if x2 is None else x1 + x2
            dx = add_through_statistics(dx, total, mean, rstd, dmean, drstd, gamma.numel())
        of_x1, of_x2, of_bias = (None if dx is None or d is None else dx.to(d) for d in ctx.dtypes)
        if of_bias is not None and dx is not None and of_bias.shape != ctx.bias_shape:
            of_bias = dx.to(statistics_dtype(dx)).sum_to_size(ctx.bias_shape).to(of_bias.dtype)
        return None, None, of_x1, of_x2, dgamma, dbeta, of_bias, None, None


_FORWARD.differentiable(_AddLayerNorm, definitions.add_layer_norm)
differentiate_backward(_BACKWARD, definitions.add_layer_norm_grad)


@_FORWARD.batched
def _batched_forward(size: int, dims: list[int | None], *args: Any) -> tuple[Any, Any]:
    x1, x2, gamma, beta, bias, *attributes = args
    if any(dim is not None for dim in dims[2:5]):
        return call_each(_FORWARD, size, dims, args)
    x1, x2 = (batch_first(x, dim, size) for x, dim in zip((x1, x2), dims, strict=False))
    if bias is not None and bias.dim() > gamma.dim():
        bias = batch_first(bias, None, size)
    results = _FORWARD.overload(x1, x2, gamma, beta, bias, *attributes)
    return results, tuple(None if r is None else 0 for r in results)


@_BACKWARD.batched
def _batched_backward(size: int, dims: list[int | None], *args: Any) -> tuple[Any, Any]:
    return call_each(_BACKWARD, size, dims, args)


@sharded(_FORWARD)
def _sharded_forward(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    beta: Tensor,
    bias: Tensor | None,
    epsilon: float,
    additional_output: bool,
) -> Iterable[Split]:
    for d in rows(x1, gamma.dim()):
        of_bias = d if bias is not None and bias.dim() > gamma.dim() else None
        yield Split((d, d, None, None, of_bias), (d, d, d, d if additional_output else None))


@sharded(_BACKWARD)
def _sharded_backward(
    dy: Tensor,
    x1: Tensor,
    x2: Tensor | None,
    rstd: Tensor,
    mean: Tensor,
    gamma: Tensor,
    dsum: Tensor | None,
) -> Iterable[Split]:
    for d in rows(dy, gamma.dim(), mean, rstd):
        of_x2, of_dsum = (None if t is None else d for t in (x2, dsum))
        yield Split((d, d, of_x2, d, d, None, of_dsum), (d, "sum", "sum"))
