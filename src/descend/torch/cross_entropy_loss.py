"""Cross entropy of scores with the class of each row, and its gradient."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from descend.torch import definitions
from descend.torch.batching import call_each
from descend.torch.derivatives import differentiate_backward, keep, results_again
from descend.torch.library import Operator, recording
from descend.torch.sharding import Split, sharded

_FORWARD = Operator("cross_entropy_loss")
_BACKWARD = Operator("cross_entropy_loss_grad")


def cross_entropy_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Cross entropy, as CANN has it. Differentiable in ``input`` and ``weight``, through all results::

        lse      = log(sum over c of exp(input))
        log_prob = input - lse
        loss     = -(1 - s) * weight[t] * log_prob[t] - s / C * sum over c of weight * log_prob
        zloss    = scale * lse^2, which is added to the loss

    t is the row's target and s ``label_smoothing``. "mean" divides losses by the sum of weight[t], zlosses by the
    number of rows; rows whose target is ``ignore_index`` count for nothing, and one whose target is no class gets NaN.

    Shapes: ``input`` [N, C], a floating dtype; ``target`` [N], int64 or int32; ``weight`` [C]. Returns ``loss`` ([1],
    or [N] for "none"), ``log_prob`` [N, C], ``zloss`` where ``return_zloss`` is true, and ``lse`` [N] where the scale
    is not 0; else None. `cross_entropy` is what a training step asks for, and does not write ``log_prob``.

    Raises AclnnError (a ValueError) where shapes, dtypes or attributes do not fit. Source: aclnnCrossEntropyLoss.
    """
    attributes = reduction, ignore_index, label_smoothing, lse_square_scale_for_zloss, return_zloss
    result: tuple[Tensor, Tensor, Tensor | None, Tensor | None] = _FORWARD(input, target, weight, *attributes)
    return result


def cross_entropy_loss_grad(
    grad_loss: Tensor,
    log_prob: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    grad_zloss: Tensor | None = None,
    lse_for_zloss: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
) -> Tensor:
    """The gradient of cross entropy for its input; differentiable in all floating tensors::

        out = exp(log_prob) * (a + b * sum of weight + z) - b * weight - (a at the target)
        a   = g * (1 - s) * weight[t],  b = g * s / C,  z = 2 * scale * lse * (grad_loss + grad_zloss)

    g is ``grad_loss``, of "mean" over the sum of weight[t]; z of "mean" is over the number of rows that count.

    Shapes: ``log_prob`` [N, C]; ``grad_loss`` and ``grad_zloss`` [N] for "none", else one number; ``lse_for_zloss``
    [N], or [N, 1]: then ``log_prob`` is the forward's input, of which it is taken away first. Returns the gradient,
    like ``log_prob``.

    Raises AclnnError (a ValueError) where shapes, dtypes or attributes do not fit. Source: aclnnCrossEntropyLossGrad.
    """
    attributes = reduction, ignore_index, label_smoothing, lse_square_scale_for_zloss
    result: Tensor = _BACKWARD(grad_loss, log_prob, target, weight, grad_zloss, lse_for_zloss, *attributes)
    return result


@_FORWARD.fake
def _fake_forward(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    losses = input.shape[:1] if reduction == "none" else (1,)
    return (
        input.new_empty(losses),
        input.new_empty(input.shape),
        input.new_empty(losses) if return_zloss else None,
        input.new_empty(input.shape[:1]) if lse_square_scale_for_zloss else None,
    )


@_BACKWARD.fake
def _fake_backward(grad_loss: Tensor, log_prob: Tensor, *_: Any, **__: Any) -> Tensor:
    return log_prob.new_empty(log_prob.shape)


class _CrossEntropyLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        keyset: Any,
        named: dict[str, Any],
        input: Tensor,
        target: Tensor,
        weight: Tensor | None,
        *attributes: Any,
    ) -> Any:
        results = _FORWARD.forward(keyset, (input, target, weight, *attributes), named)
        _, log_prob, _, lse = results
        ctx.save_for_backward(log_prob, lse, keep(target), keep(weight), input if recording() else None)
        ctx.attributes = attributes
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(
        ctx: Any, loss: Tensor | None, of_log_prob: Tensor | None, zloss: Tensor | None, of_lse: Tensor | None
    ) -> Any:
        log_prob, lse, target, weight, input = ctx.saved_tensors
        if input is not None:
            saved = log_prob, log_prob, lse  # as many as there are results behind the loss
            log_prob, _, lse = results_again(_FORWARD, (input, target, weight, *ctx.attributes), saved)
        *attributes, _ = ctx.attributes
        dx = dweight = None
        if ctx.needs_input_grad[2]:
            if loss is not None or zloss is not None:
                grad = zloss.new_zeros(zloss.shape) if loss is None and zloss is not None else loss
                dx = _BACKWARD.overload(grad, log_prob, target, weight, zloss, lse, *attributes)
            if of_log_prob is not None or of_lse is not None:
                through = definitions.through_log_prob(log_prob, of_log_prob, of_lse)
                dx = through if dx is None else dx + through
        if weight is not None and ctx.needs_input_grad[4] and loss is not None:
            given = log_prob, target, weight, *attributes[:3]
            dweight = definitions.cross_entropy_loss_weight_gradient(loss, *given)
        return None, None, dx, None, dweight, *[None] * 5


_FORWARD.differentiable(_CrossEntropyLoss, definitions.cross_entropy_loss)
differentiate_backward(_BACKWARD, definitions.cross_entropy_loss_grad)


@_FORWARD.batched
def _batched_forward(size: int, dims: list[int | None], *args: Any) -> tuple[Any, Any]:
    return call_each(_FORWARD, size, dims, args)


@_BACKWARD.batched
def _batched_backward(size: int, dims: list[int | None], *args: Any) -> tuple[Any, Any]:
    return torch.stack([_BACKWARD.overload(*_sample(args, dims, i)) for i in range(size)]), 0


def _sample(args: Iterable[Any], dims: Iterable[int | None], i: int) -> list[Any]:
    return [a if d is None else a.select(d, i) for a, d in zip(args, dims, strict=True)]


@sharded(_FORWARD)
def _sharded_forward(
    input: Tensor, target: Tensor, weight: Tensor | None, reduction: str, *attributes: Any
) -> Iterable[Split]:
    # A mean is over all rows: it is no sum of the parts' means.
    if reduction == "mean":
        return []
    loss: Any = 0 if reduction == "none" else "sum"
    return [Split((0, 0, None), (loss, 0, loss, 0))]


@sharded(_BACKWARD)
def _sharded_backward(
    grad_loss: Tensor,
    log_prob: Tensor,
    target: Tensor,
    weight: Tensor | None,
    grad_zloss: Tensor | None,
    lse_for_zloss: Tensor | None,
    reduction: str,
    *attributes: Any,
) -> Iterable[Split]:
    if reduction == "mean":
        return []
    loss = 0 if reduction == "none" else None
    zloss, lse = None if grad_zloss is None else loss, None if lse_for_zloss is None else 0
    return [Split((loss, 0, 0, None, zloss, lse), (0,))]
