"""Cross entropy."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from descend.torch.definitions.tensors import exp_of, widened


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
    """``loss``, ``log_prob``, ``zloss`` and ``lse`` of cross entropy."""
    wide, scale = widened(input), lse_square_scale_for_zloss
    rows = _Targets(wide, target, weight, ignore_index)
    most = wide.detach().amax(1, keepdim=True)
    lse = exp_of(wide - most).sum(1, keepdim=True).log() + most
    log_prob = wide - lse
    loss = -log_prob.gather(1, rows.target).squeeze(1) * rows.weight
    if label_smoothing:
        smooth = -(log_prob * rows.of_classes).sum(1) * rows.counts
        loss = (1 - label_smoothing) * loss + label_smoothing / input.shape[1] * smooth
    zloss = scale * (lse * lse).squeeze(1) * rows.counts
    if reduction != "none":
        loss, zloss = _total(loss), _total(zloss)
    if reduction == "mean":
        loss, zloss = loss / _total(rows.weight), zloss / _total(rows.counts)
    loss = loss + zloss if scale else loss
    return (
        loss.to(input.dtype),
        log_prob.to(input.dtype),
        zloss.to(input.dtype) if return_zloss else None,
        lse.squeeze(1).to(input.dtype) if scale else None,
    )


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
    """The gradient of cross entropy for its input."""
    scores, scale = widened(log_prob), lse_square_scale_for_zloss
    rows = _Targets(scores, target, weight, ignore_index)
    if lse_for_zloss is not None and lse_for_zloss.dim() == 2:
        scores = scores - lse_for_zloss.to(scores.dtype)
    grad = grad_loss.to(scores.dtype).flatten()
    both = grad if grad_zloss is None or not grad_zloss.numel() else grad + grad_zloss.to(scores.dtype).flatten()
    if reduction == "mean":
        grad, both = grad / _total(rows.weight), both / _total(rows.counts)
    of_row, smooth = grad * (1 - label_smoothing) * rows.weight, grad * (label_smoothing / log_prob.shape[1])
    factor = of_row + smooth * _total(rows.of_classes) if label_smoothing else of_row
    if scale and lse_for_zloss is not None:
        factor = factor + 2 * scale * lse_for_zloss.to(scores.dtype).flatten() * both
    out = (exp_of(scores) * factor.unsqueeze(1)).scatter_add(1, rows.target, -of_row.unsqueeze(1))
    if label_smoothing:
        out = out - smooth.unsqueeze(1) * rows.of_classes
    return out.masked_fill(rows.counts.unsqueeze(1) == 0, 0.0).to(log_prob.dtype)


def through_log_prob(log_prob: Tensor, of_log_prob: Tensor | None, of_lse: Tensor | None) -> Tensor:
    """The gradient of cross entropy's input through ``log_prob`` and ``lse``."""
    wide = widened(log_prob)
    direct = torch.zeros_like(wide) if of_log_prob is None else of_log_prob.to(wide.dtype)
    lse = -direct.sum(1, keepdim=True)
    if of_lse is not None:
        lse = lse + of_lse.to(wide.dtype).unsqueeze(1)
    return (direct + exp_of(wide) * lse).to(log_prob.dtype)


def cross_entropy_loss_weight_gradient(
    loss: Tensor,
    log_prob: Tensor,
    target: Tensor,
    weight: Tensor,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """The gradient of the weights of classes, from that of the loss."""
    wide = widened(log_prob)
    rows = _Targets(wide, target, weight, ignore_index)
    target = rows.target.squeeze(1)
    nll = -(1 - label_smoothing) * wide.gather(1, rows.target).squeeze(1) * rows.counts
    smooth = -label_smoothing / wide.shape[1] * wide * rows.counts.unsqueeze(1)
    grad = loss.to(wide.dtype).expand(target.shape)
    if reduction == "mean":
        grad = grad / _total(rows.weight)
        mean = (_total(nll * rows.weight) + _total((smooth * rows.of_classes).sum(1))) / _total(rows.weight)
        nll = nll - mean * rows.counts
    of_target = torch.zeros_like(rows.of_classes).scatter_add(0, target, grad * nll)
    return (of_target + (grad.unsqueeze(1) * smooth).sum(0)).to(weight.dtype)


def _total(numbers: Tensor) -> Tensor:
    """Their sum, [1]: over no samples ``vmap`` takes no numbers without dimensions."""
    return numbers.sum(0, keepdim=True)


class _Targets:
    """Of each row the class [N, 1], 1 where it counts, else 0, and the class's weight, NaN where there is no class."""

    def __init__(self, scores: Tensor, target: Tensor, weight: Tensor | None, ignored: int) -> None:
        counts, exists = target != ignored, (target >= 0) & (target < scores.shape[1])
        self.counts = counts.to(scores.dtype)
        self.target = target.long().masked_fill(~(counts & exists), 0).unsqueeze(1)
        self.of_classes = scores.new_ones(scores.shape[1]) if weight is None else weight.to(scores.dtype)
        of_rows = self.of_classes.gather(0, self.target.squeeze(1))
        self.weight = of_rows.masked_fill(~exists, math.nan).masked_fill(~counts, 0)
