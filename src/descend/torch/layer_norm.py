"""Layer norm and its gradient."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from descend.torch import definitions
from descend.torch.batching import batch_first, call_each
from descend.torch.derivatives import add_through_statistics, differentiate_backward, keep, results_again
from descend.torch.library import Operator, constant_sizes, statistics_dtype
from descend.torch.sharding import Split, rows, sharded

_FORWARD = Operator("layer_norm")
_BACKWARD = Operator("layer_norm_backward")


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    """Layer norm. Differentiable in ``input``, ``weight`` and ``bias``::

        mean, var = mean and biased variance of each row
        rstd      = 1 / sqrt(var + eps)
        out       = (input - mean) * rstd * weight + bias

    Shapes: ``normalized_shape`` is the last dimensions of ``input`` and the shape of ``weight`` and ``bias``; None
    stands for ones and zeros. Floating dtypes, mixed at will. Returns ``out`` like ``input``, ``mean`` and ``rstd``,
    float32 (float64 for float64 ``input``), of ``input``'s rank with 1 for each normalised dimension.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnLayerNorm.
    """
    result: tuple[Tensor, Tensor, Tensor] = _FORWARD(input, constant_sizes(normalized_shape), weight, bias, eps)
    return result


def layer_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    output_mask: Sequence[bool] = (True, True, True),
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of layer norm, None where ``output_mask`` is false; differentiable in all tensors::

        xhat        = (input - mean) * rstd
        g           = grad_out * weight
        grad_input  = rstd * (g - mean(g over the row) - xhat * mean(g * xhat over the row))
        grad_weight = sum over rows of grad_out * xhat
        grad_bias   = sum over rows of grad_out

    Shapes: ``grad_out`` as ``input``, ``mean`` and ``rstd`` one number a row, the rest as in `layer_norm`; ``bias``
    gives its dtype alone. Returns gradients with the shapes and dtypes of what they are for.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnLayerNormBackward.
    """
    result: tuple[Tensor | None, Tensor | None, Tensor | None] = _BACKWARD(
        grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask
    )
    return result


@_FORWARD.fake
def _fake_forward(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    split = input.dim() - len(normalized_shape)
    statistics = [*input.shape[:split], *[1] * len(normalized_shape)]
    mean, rstd = (input.new_empty(statistics, dtype=statistics_dtype(input)) for _ in range(2))
    return input.new_empty(input.shape), mean, rstd


@_BACKWARD.fake
def _fake_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    output_mask: Sequence[bool] = (True, True, True),
) -> tuple[Tensor | None, ...]:
    dtypes = (input.dtype, *definitions.parameter_dtypes(input, weight, bias))
    shapes = (input.shape, normalized_shape, normalized_shape)
    return tuple(
        input.new_empty(shape, dtype=dtype) if wanted else None
        for shape, dtype, wanted in zip(shapes, dtypes, output_mask, strict=True)
    )


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        keyset: Any,
        named: dict[str, Any],
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
    ) -> Any:
        results = _FORWARD.forward(keyset, (input, normalized_shape, weight, bias, eps), named)
        values = ctx.needs_input_grad[2]  # the parameters' gradients do not ask for their values
        ctx.save_for_backward(keep(input), keep(weight, values), keep(bias, values), *results[1:])
        ctx.normalized_shape, ctx.eps = normalized_shape, eps
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_mean: Tensor | None, grad_rstd: Tensor | None) -> Any:
        input, weight, bias, *statistics = ctx.saved_tensors
        args = (input, ctx.normalized_shape, weight, bias, ctx.eps)
        mean, rstd = results_again(_FORWARD, args, tuple(statistics))
        _, _, needs_input, _, *needs = ctx.needs_input_grad
        grad_input = grad_weight = grad_bias = None
        if grad_out is not None:
            grad_input, grad_weight, grad_bias = _BACKWARD.overload(
                grad_out, input, ctx.normalized_shape, mean, rstd, weight, bias, (needs_input, needs[0], needs[1])
            )
        if needs_input and (grad_mean is not None or grad_rstd is not None):
            elements = math.prod(ctx.normalized_shape)
            grad_input = add_through_statistics(grad_input, input, mean, rstd, grad_mean, grad_rstd, elements)
        return None, None, grad_input, None, grad_weight, grad_bias, None


_FORWARD.differentiable(_LayerNorm, definitions.layer_norm)
differentiate_backward(_BACKWARD, definitions.layer_norm_backward)


@_FORWARD.batched
def _batched_forward(
    size: int,
    dims: list[int | None],
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Any, Any]:
    if dims[2] is not None or dims[3] is not None:
        return call_each(_FORWARD, size, dims, (input, normalized_shape, weight, bias, eps))
    return _FORWARD.overload(batch_first(input, dims[0], size), normalized_shape, weight, bias, eps), (0, 0, 0)


@_BACKWARD.batched
def _batched_backward(size: int, dims: list[int | None], *args: Any) -> tuple[Any, Any]:
    return call_each(_BACKWARD, size, dims, args)


@sharded(_FORWARD)
def _sharded_forward(input: Tensor, normalized_shape: Sequence[int], *_: Any) -> Iterable[Split]:
    return [Split((d,), (d, d, d)) for d in rows(input, len(normalized_shape))]


@sharded(_BACKWARD)
def _sharded_backward(
    grad_out: Tensor, input: Tensor, normalized_shape: Sequence[int], mean: Tensor, rstd: Tensor, *_: Any
) -> Iterable[Split]:
    return [Split((d, d, None, d, d), (d, "sum", "sum")) for d in rows(input, len(normalized_shape), mean, rstd)]
